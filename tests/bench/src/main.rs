//! The cost of the filter: the shipped bootstrap in a real Envoy, beside the same Envoy without
//! the filter, alternating in one run, in front of the same instant pods.
//!
//! Timings of one machine mean little; the ratios of one run are what to read.

use anyhow::{Context, Result};
use bench::load::{self, Measured};
use bench::median;
use bench::pods::Pods;
use bench::process::cpu_time;
use clap::Parser;
use e2e::bootstrap::Bootstrap;
use e2e::envoy::{Envoy, Options};
use std::sync::Arc;
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

/// One Envoy and what was measured through it, by case.
struct Subject {
    envoy: Envoy,
    single: Vec<Vec<Measured>>,
    many: Vec<Vec<(Measured, Duration)>>,
}

const CONNECTIONS: usize = 16;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let keys = serde_json::from_str(&arguments.plugin).context("--plugin")?;
    let pods = Pods::start(3, &["--fast"])?;
    let mut with = subject(&pods, &arguments, |bootstrap| bootstrap.with_plugin(keys)).await;
    let mut without = subject(&pods, &arguments, Bootstrap::without_filter).await;
    let cases: Vec<Arc<Vec<Vec<u8>>>> = arguments
        .sizes
        .iter()
        .map(|size| Arc::new(load::requests(*size)))
        .collect();
    let time = Duration::from_millis(arguments.millis);
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for (case, requests) in cases.iter().enumerate() {
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

async fn subject(
    pods: &Pods,
    arguments: &Arguments,
    change: impl FnOnce(Bootstrap) -> Bootstrap,
) -> Subject {
    let options = Options::new(arguments.workers);
    let ports = [pods.ports[0], pods.ports[1], pods.ports[2]];
    let shipped = Bootstrap::shipped().with_ports(&options, ports);
    let envoy = Envoy::start(&change(shipped), options).await;
    let cases = arguments.sizes.len();
    Subject {
        envoy,
        single: vec![Vec::new(); cases],
        many: vec![Vec::new(); cases],
    }
}

impl Subject {
    fn measure(&mut self, case: usize, time: Duration, requests: &Arc<Vec<Vec<u8>>>) -> Result<()> {
        let to = self.envoy.address();
        self.single[case].push(load::run(to, 1, time, requests)?);
        let before = cpu_time(self.envoy.pid())?;
        let many = load::run(to, CONNECTIONS, time, requests)?;
        let cpu = cpu_time(self.envoy.pid())?.saturating_sub(before);
        let each = cpu / u32::try_from(many.latencies.len().max(1))?;
        self.many[case].push((many, each));
        Ok(())
    }

    /// Medians over the rounds: p50 and p99 in ms at one connection, requests/s at many, CPU in µs.
    fn medians(&self, case: usize) -> [f64; 4] {
        let single = |q| median(self.single[case].iter().map(|m| m.quantile_ms(q)));
        let many = &self.many[case];
        [
            single(0.5),
            single(0.99),
            median(many.iter().map(|(m, _)| m.per_second())),
            median(many.iter().map(|(_, cpu)| cpu.as_secs_f64() * 1e6)),
        ]
    }
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
