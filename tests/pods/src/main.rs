//! `sim-vllm --pods 3`: several simulated vLLM pods in one process.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sim_vllm::{PodConfig, SimPod};

/// Simulated vLLM pods with a real prefix cache and simulated time.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Number of pods, named vllm-0, vllm-1, …
    #[arg(long, default_value_t = 1)]
    pods: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port of the first pod, the next ones follow; 0 takes free ports
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Names are this and the pod's number
    #[arg(long, default_value = "vllm-")]
    name: String,
    /// Model that is served (repeatable); none accepts any name
    #[arg(long = "model")]
    models: Vec<String>,
    /// Tokens of a cache block
    #[arg(long, default_value_t = 16)]
    block_size: usize,
    /// Blocks of each pod's cache
    #[arg(long, default_value_t = 65_536)]
    num_gpu_blocks: usize,
    /// Prefill speed in tokens/s; 0 is instant
    #[arg(long, default_value_t = 0.0)]
    prefill_tokens_per_s: f64,
    /// Decode time of a token in milliseconds; 0 is instant
    #[arg(long, default_value_t = 0.0)]
    decode_ms_per_token: f64,
    /// Requests that run at once; the others wait
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Tokens of an answer, unless the request asks for fewer
    #[arg(long, default_value_t = 16)]
    reply_tokens: usize,
    /// Answer inference requests with a fixed JSON, without parsing them
    #[arg(long)]
    fast: bool,
    /// Requests kept for /sim/received
    #[arg(long, default_value_t = 4096)]
    log_requests: usize,
    /// Worker threads for all pods
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Start nothing: succeed if the pod at this address is healthy (for containers without a shell)
    #[arg(long, value_name = "ADDRESS")]
    is_healthy: Option<SocketAddr>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim-vllm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> std::io::Result<()> {
    if let Some(pod) = args.is_healthy {
        return is_healthy(pod);
    }
    if args.block_size == 0
        || args.num_gpu_blocks == 0
        || args.max_num_seqs == 0
        || args.threads == 0
    {
        return Err(std::io::Error::other(
            "block_size, num_gpu_blocks, max_num_seqs and threads start at 1",
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads)
        .enable_all()
        .build()?;
    let mut pods = Vec::new();
    let mut out = std::io::stdout();
    for i in 0..args.pods {
        let port = if args.port == 0 {
            0
        } else {
            args.port.saturating_add(i)
        };
        let pod = SimPod::start_on(
            runtime.handle(),
            PodConfig {
                name: format!("{}{i}", args.name),
                listen: SocketAddr::new(args.host, port),
                models: args.models.clone(),
                block_size: args.block_size,
                num_gpu_blocks: args.num_gpu_blocks,
                prefill_tokens_per_s: args.prefill_tokens_per_s,
                decode_ms_per_token: args.decode_ms_per_token,
                max_num_seqs: args.max_num_seqs,
                reply_tokens: args.reply_tokens,
                fast: args.fast,
                log_requests: args.log_requests,
                ..PodConfig::default()
            },
        )?;
        writeln!(out, "pod {} listening on {}", pod.name(), pod.addr)?;
        out.flush()?;
        pods.push(pod);
    }
    runtime.block_on(tokio::signal::ctrl_c())
}

/// An error unless the pod answers `/health` with 200.
fn is_healthy(pod: SocketAddr) -> std::io::Result<()> {
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&pod, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    if status != *b"HTTP/1.1 200" {
        let status = String::from_utf8_lossy(&status);
        return Err(std::io::Error::other(format!("{pod} answers {status}")));
    }
    Ok(())
}
