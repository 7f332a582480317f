//! The cost of the filter: the shipped bootstrap in a real Envoy, beside the same Envoy without
//! the filter, alternating in one run, in front of the same instant pods.
//!
//! Timings of one machine mean little; the ratios of one run are what to read.

use anyhow::{Context, Result};
use bench::pods::Pods;
use bench::subject::{self, Subject, CONNECTIONS};
use clap::Parser;
use e2e::bootstrap::{Bootstrap, Shipped};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Throughput and latency with and without the filter, in one run")]
struct Arguments {
    /// Rounds; each measures every case with and without the filter.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds per measurement.
    #[arg(long, default_value_t = 1500)]
    millis: u64,
    /// Envoy's worker threads.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Body sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 16_000, 100_000, 1_000_000])]
    sizes: Vec<usize>,
    /// Keys of the plugin's configuration to change, as JSON.
    #[arg(long, default_value = "{}")]
    plugin: String,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let keys = serde_json::from_str(&arguments.plugin).context("--plugin")?;
    let pods = Pods::start(3, &["--fast"])?;
    let (shipped, workers) = (Shipped::ClusterHeader, arguments.workers);
    let cases = arguments.sizes.len();
    let filter = |bootstrap: Bootstrap| bootstrap.with_plugin(keys);
    let mut with = Subject::start(shipped, &pods, workers, cases, filter).await;
    let bare = Bootstrap::without_filter;
    let mut without = Subject::start(shipped, &pods, workers, cases, bare).await;
    let time = Duration::from_millis(arguments.millis);
    let requests = subject::requests(&arguments.sizes);
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for (case, requests) in requests.iter().enumerate() {
            // Who goes first alternates, so that a drift of the machine hits both alike.
            let mut pair = [&mut with, &mut without];
            if round % 2 == 1 {
                pair.reverse();
            }
            for subject in pair {
                subject.measure(case, time, requests)?;
            }
        }
    }
    report(&arguments, &with, &without);
    Ok(())
}

fn report(arguments: &Arguments, with: &Subject, without: &Subject) {
    println!(
        "\nMedians of {} rounds, {} Envoy workers; filter / no filter\n",
        arguments.rounds, arguments.workers
    );
    println!("| body | p50 ms, 1 connection | added p50 ms | p99 ms | requests/s, {CONNECTIONS} connections | ratio | CPU µs per request |");
    println!("|---|---|---|---|---|---|---|");
    for (case, size) in arguments.sizes.iter().enumerate() {
        let [p50, p99, rate, cpu] = with.medians(case);
        let [bare_p50, bare_p99, bare_rate, bare_cpu] = without.medians(case);
        println!(
            "| {} KB | {p50:.3} / {bare_p50:.3} | {:.3} | {p99:.3} / {bare_p99:.3} | {rate:.0} / {bare_rate:.0} | {:.2} | {cpu:.0} / {bare_cpu:.0} |",
            size / 1000,
            p50 - bare_p50,
            rate / bare_rate,
        );
    }
}
