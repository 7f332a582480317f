//! Where the cost of a request goes: Envoys that do one step more each, in one run, in front of
//! the same instant pods.

use anyhow::Result;
use bench::pods::Pods;
use bench::subject::{self, Subject, CONNECTIONS};
use clap::Parser;
use e2e::bootstrap::{Bootstrap, Shipped};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "CPU per request with one step of the filter more each time, in one run")]
struct Arguments {
    /// Rounds; each measures every step.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds per measurement.
    #[arg(long, default_value_t = 1000)]
    millis: u64,
    /// Envoy's worker threads.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Body sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 16_000, 100_000])]
    sizes: Vec<usize>,
    /// Other modules to measure beside the one that `make build` left.
    #[arg(long, value_delimiter = ',')]
    modules: Vec<PathBuf>,
}

/// What is done to a request, and by which bootstrap.
type Step = (&'static str, Shipped, fn(Bootstrap) -> Bootstrap);

const STEPS: [Step; 6] = [
    ("stock Envoy, one cluster", Shipped::ClusterHeader, |it| {
        it.without_filter()
    }),
    (
        "stock Envoy, a pod's own clusters",
        Shipped::ClusterHeader,
        |it| {
            // The filter's work done by a constant.
            let header = json!({ "key": "x-vllm-cluster", "value": "vllm-0" });
            let constant = json!([{
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": [{ "append": { "header": header } }],
                },
            }]);
            it.without_filter()
                .with_manager("early_header_mutation_extensions", constant)
        },
    ),
    ("the filter, out of scope", Shipped::ClusterHeader, |it| {
        it.with_plugin(json!({ "match": { "path_prefixes": ["/nothing"] } }))
    }),
    ("the filter, observing", Shipped::ClusterHeader, |it| {
        it.with_plugin(json!({ "mode": "observe" }))
    }),
    (
        "the filter, a pod's own clusters",
        Shipped::ClusterHeader,
        |it| it,
    ),
    ("the filter, `override_host`", Shipped::OverrideHost, |it| {
        it
    }),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (workers, cases) = (arguments.workers, arguments.sizes.len());
    let pods = Pods::start(3, &["--fast"])?;
    let mut subjects = Vec::new();
    for (name, shipped, change) in STEPS {
        let subject = Subject::start(shipped, &pods, workers, cases, change).await;
        subjects.push((name.to_string(), subject));
    }
    for module in &arguments.modules {
        let change = |it: Bootstrap| it.with_module(module);
        let subject = Subject::start(Shipped::ClusterHeader, &pods, workers, cases, change).await;
        subjects.push((format!("`{}`", module.display()), subject));
    }
    let time = Duration::from_millis(arguments.millis);
    let requests = subject::requests(&arguments.sizes);
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for (case, requests) in requests.iter().enumerate() {
            let mut order: Vec<&mut Subject> = subjects.iter_mut().map(|(_, it)| it).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for subject in order {
                subject.measure(case, time, requests)?;
            }
        }
    }
    for (case, size) in arguments.sizes.iter().enumerate() {
        println!(
            "\n{} KB, medians of {} rounds\n",
            size / 1000,
            arguments.rounds
        );
        println!("| | p50 ms, 1 connection | requests/s, {CONNECTIONS} connections | CPU µs |");
        println!("|---|---|---|---|");
        for (name, subject) in &subjects {
            let [p50, _, rate, cpu] = subject.medians(case);
            println!("| {name} | {p50:.3} | {rate:.0} | {cpu:.0} |");
        }
    }
    Ok(())
}
