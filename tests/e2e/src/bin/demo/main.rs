//! Plays a short sample of chats through a real Envoy in front of three simulated vLLM pods, and
//! prints where each turn went and what the pod itself found in its cache.
//!
//! `demo --check` ends after the sample, with an error if a later turn missed its pod;
//! `demo --serve` (or nothing) keeps serving.

mod sample;

use e2e::bootstrap::{self, Bootstrap};
use e2e::client::{self, Conn, Version};
use e2e::decision::{Decision, HEADER};
use e2e::envoy::{free_port, Envoy, Options};
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use sample::{system, CHATS};
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{signal, SignalKind};

const CHAT: &str = "/v1/chat/completions";
const MODEL: &str = "sim";
const PREFILL_TOKENS_PER_S: f64 = 4000.0;
const REPLY_TOKENS: usize = 128;

/// One answered turn.
struct Turn {
    decision: Decision,
    prompt_tokens: u64,
    cached_tokens: u64,
    first_token: Duration,
    text: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        None | Some("--serve") => false,
        Some("--check") => true,
        Some(other) => {
            eprintln!("demo [--serve | --check]: {other:?}?");
            return ExitCode::from(2);
        }
    };
    let pods = [0, 1, 2].map(start_pod);
    let ports = pods.each_ref().map(|pod| pod.addr.port());
    let options = Options {
        listener: port_or_free(bootstrap::LISTENER, "Envoy"),
        api: port_or_free(bootstrap::API, "the API's listener"),
        admin: port_or_free(bootstrap::ADMIN, "Envoy's admin listener"),
        ..Options::new(2)
    };
    let shipped = Bootstrap::shipped().with_ports(&options, ports);
    let envoy = Envoy::start(&shipped, options).await;

    let missed = play(&envoy).await;
    if check {
        return if missed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    say_where(&envoy, ports);
    wait_for_the_end().await;
    println!();
    envoy.stop();
    ExitCode::SUCCESS
}

/// A pod whose prefill is slow enough to be seen.
fn start_pod(number: usize) -> SimPod {
    let name = format!("vllm-{number}");
    let port = port_or_free(bootstrap::PODS[number], &name);
    let config = PodConfig {
        listen: (Ipv4Addr::LOCALHOST, port).into(),
        prefill_tokens_per_s: PREFILL_TOKENS_PER_S,
        decode_ms_per_token: 1.0,
        reply_tokens: REPLY_TOKENS,
        ..PodConfig::named(name)
    };
    SimPod::start(config).expect("the pod starts")
}

/// The port that the shipped bootstrap names or, where it is taken, a free one.
fn port_or_free(wanted: u16, who: &str) -> u16 {
    if TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).is_ok() {
        return wanted;
    }
    let port = free_port();
    println!("port {wanted} is taken: {who} is on {port}");
    port
}

/// Plays all chats, a turn of each in turn, and counts the later turns that missed their pod.
async fn play(envoy: &Envoy) -> usize {
    println!(
        "{:14} {:>4}  {:7} {:>14}  {:8} {:>6} {:>6} {:>11}",
        "chat", "turn", "pod", "matched/chunks", "reason", "prompt", "cached", "first token"
    );
    println!("{:60} {:>6} {:>6}", "", "tokens", "tokens");
    let mut missed = 0;
    let mut histories: Vec<Vec<Value>> = CHATS
        .iter()
        .map(|chat| vec![json!({ "role": "system", "content": system(chat.team) })])
        .collect();
    let mut before: Vec<Option<Decision>> = vec![None; CHATS.len()];
    for number in 0..CHATS[0].turns.len() {
        for (i, chat) in CHATS.iter().enumerate() {
            histories[i].push(json!({ "role": "user", "content": chat.turns[number] }));
            // A connection of its own: any worker may get it.
            let turn = match ask(envoy, &histories[i]).await {
                Ok(turn) => turn,
                Err(error) => {
                    println!("{:14} {:>4}  {error}", chat.name, number + 1);
                    missed += 1;
                    continue;
                }
            };
            let decision = &turn.decision;
            let hit = before[i].as_ref().is_none_or(|before| {
                decision.pod == before.pod
                    && decision.matched >= before.chunks
                    && turn.cached_tokens > 0
            });
            missed += usize::from(!hit);
            println!(
                "{:14} {:>4}  {:7} {:>14}  {:8} {:>6} {:>6} {:>8} ms{}",
                chat.name,
                number + 1,
                decision.pod,
                format!("{}/{}", decision.matched, decision.chunks),
                decision.reason,
                turn.prompt_tokens,
                turn.cached_tokens,
                turn.first_token.as_millis(),
                if hit { "" } else { "   MISSED" },
            );
            histories[i].push(json!({ "role": "assistant", "content": turn.text }));
            before[i] = Some(turn.decision);
        }
    }
    match missed {
        0 => println!("every later turn found its prefix"),
        n => println!("{n} turns missed"),
    }
    missed
}

/// One streamed request.
async fn ask(envoy: &Envoy, messages: &[Value]) -> Result<Turn, String> {
    let body = json!({
        "model": MODEL, "messages": messages, "max_tokens": REPLY_TOKENS,
        "stream": true, "stream_options": { "include_usage": true },
    });
    let mut conn = Conn::try_open(envoy.address(), Version::H1).await?;
    let headers = [("content-type", "application/json")];
    let request = client::request(Method::POST, CHAT, &headers, client::full(body.to_string()));
    let sent = Instant::now();
    let (head, mut stream) = conn.start(request).await?.into_parts();
    if head.status != 200 {
        return Err(format!("status {}", head.status));
    }
    let mut first_token = None;
    let mut events = Vec::new();
    while let Some(frame) = stream.frame().await {
        let frame = frame.map_err(|e| e.to_string())?;
        first_token.get_or_insert_with(|| sent.elapsed());
        events.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
    let (text, usage) = read_events(&String::from_utf8_lossy(&events))?;
    Ok(Turn {
        decision: decision(&head.headers)?,
        prompt_tokens: usage["prompt_tokens"].as_u64().unwrap_or(0),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0),
        first_token: first_token.unwrap_or_default(),
        text,
    })
}

fn decision(headers: &HeaderMap) -> Result<Decision, String> {
    let header = headers
        .get(HEADER)
        .ok_or_else(|| format!("no {HEADER} in the answer"))?;
    Decision::parse(header.to_str().map_err(|e| e.to_string())?)
}

/// The text and the usage of a streamed answer.
fn read_events(events: &str) -> Result<(String, Value), String> {
    let (mut text, mut usage) = (String::new(), Value::Null);
    for data in events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        if data == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(data).map_err(|e| format!("{data}: {e}"))?;
        text.push_str(
            event["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or(""),
        );
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    match usage {
        Value::Null => Err("the answer carries no usage".into()),
        usage => Ok((text, usage)),
    }
}

/// Ctrl-C, or an ordinary `kill`: both end Envoy and remove its directory.
async fn wait_for_the_end() {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn say_where(envoy: &Envoy, pods: [u16; 3]) {
    let (address, admin) = (envoy.address(), envoy.admin_address());
    println!("\nserving until Ctrl-C:");
    println!("  chats    http://{address}{CHAT}");
    println!("  metrics  http://{admin}/stats/prometheus?filter=prefix_router");
    println!(
        "  pods     {}",
        pods.map(|port| format!("http://127.0.0.1:{port}"))
            .join("  ")
    );
    println!("\ntry it twice, with a prompt of 300 bytes or more:\n");
    println!("  curl -si http://{address}{CHAT} -H 'content-type: application/json' \\");
    println!("    -d \"{{\\\"model\\\": \\\"{MODEL}\\\", \\\"messages\\\": [{{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"$(seq -s ' ' 300)\\\"}}]}}\"");
}
