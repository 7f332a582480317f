//! prefix-router beside its peers, in one run on one machine: what each costs, in front of
//! instant pods, and what its routing is worth, in front of pods that take their time.
//!
//! Timings of one machine mean little; the ratios of one run are what to read.

mod chats;
mod cost;
mod plot;
mod report;
mod routers;

use anyhow::Result;
use bench::pods::Pods;
use bench::readme;
use chats::{Outcome, SHAPE};
use clap::Parser;
use e2e::bootstrap::root;
use report::Report;
use routers::{Fleet, DIRECT};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Cost and worth of prefix-router and its peers, in one run")]
pub struct Arguments {
    /// Rounds of the cost; each measures every router at every size
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds per measurement of the cost
    #[arg(long, default_value_t = 500)]
    millis: u64,
    /// Rounds of chats, each with other chats
    #[arg(long, default_value_t = 2)]
    chat_rounds: u64,
    /// Worker threads of Envoy
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Body sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 16_000, 100_000, 1_000_000])]
    sizes: Vec<usize>,
    /// Other settings of sglang-router, vllm-router and smg for the chats
    #[arg(long, allow_hyphen_values = true)]
    radix: Option<String>,
    /// Only these rows (comma-separated), and then nothing but target/peers/report.md is written
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Pods of both phases.
const PODS: usize = 4;
/// Blocks of a pod that takes its time, of 16 tokens each; its speed.
const BLOCKS: usize = 8_192;
const PREFILL_TOKENS_PER_S: usize = 30_000;
const DECODE_MS: usize = 4;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut report = Report::default();
    if arguments.rounds > 0 {
        measure_cost(&arguments, &mut report).await?;
    }
    if arguments.chat_rounds > 0 {
        play_chats(&arguments, &mut report).await?;
    }
    let text = report.whole(&arguments);
    println!("{text}");
    std::fs::create_dir_all(root().join("target/peers"))?;
    std::fs::write(root().join("target/peers/report.md"), &text)?;
    let complete =
        arguments.only.is_empty() && !report.costs.is_empty() && !report.chats.is_empty();
    if complete {
        let directory = root().join("tests/bench");
        std::fs::write(directory.join("peers.md"), &text)?;
        plot::draw(&directory.join("peers.svg"), &report, &arguments.sizes)?;
        readme::write_block("peers", &report.summary(&arguments))?;
    }
    Ok(())
}

async fn measure_cost(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let pods = Pods::start(PODS, &["--fast", "--model", "m"])?;
    let fleet = Fleet {
        ports: &pods.ports,
        cache_tokens: None,
        workers: arguments.workers,
        radix: arguments.radix.as_deref(),
    };
    let (routers, skipped) = routers::start(fleet, &arguments.only).await?;
    report.skipped(skipped);
    let time = Duration::from_millis(arguments.millis);
    report.costs = cost::measure(&routers, &arguments.sizes, arguments.rounds, time)?;
    report.cost_settings = report::settings(&routers);
    Ok(())
}

async fn play_chats(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let (blocks, rate) = (BLOCKS.to_string(), PREFILL_TOKENS_PER_S.to_string());
    let decode = DECODE_MS.to_string();
    let pods = Pods::start(
        PODS,
        &[
            "--model",
            "m",
            "--log-requests",
            "0",
            "--num-gpu-blocks",
            &blocks,
            "--prefill-tokens-per-s",
            &rate,
            "--decode-ms-per-token",
            &decode,
            "--reply-tokens",
            "4096",
        ],
    )?;
    let fleet = Fleet {
        ports: &pods.ports,
        cache_tokens: Some(BLOCKS * 16),
        workers: arguments.workers,
        radix: arguments.radix.as_deref(),
    };
    let (mut routers, skipped) = routers::start(fleet, &arguments.only).await?;
    routers.retain(|router| router.name != DIRECT);
    report.skipped(skipped);
    let mut outcomes = vec![Outcome::default(); routers.len()];
    for round in 0..arguments.chat_rounds {
        for turn in 0..routers.len() {
            let who = (turn + round as usize) % routers.len();
            let router = &routers[who];
            let start = Instant::now();
            let outcome = chats::play(router, &pods.ports, SHAPE, 1 + round).await?;
            let took = start.elapsed().as_secs_f64();
            eprintln!("chats, round {}: {}, {took:.1} s", round + 1, router.name);
            outcomes[who].add(&outcome);
        }
    }
    report.chat_settings = report::settings(&routers);
    let names = routers.iter().map(|router| router.name.clone());
    report.chats = names.zip(outcomes).collect();
    Ok(())
}
