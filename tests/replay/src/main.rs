//! `make replay`: runs the grid and writes what came of it.
//!
//! Owns the command line and the files. A trace that is not there is skipped by name; the results
//! that are checked in, and README, are written only from a whole grid.

use anyhow::{Context, Result};
use clap::Parser;
use prefix_router::config::{Balanced, Policy};
use replay::gateway::Rule;
use replay::grid::{self, Cell, Chooser, Kind};
use replay::report::plot::{self, Series};
use replay::report::table::Table;
use replay::report::text;
use replay::workload::{mooncake, Request};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Replays traces over simulated pods: the filter's policy and tables beside published rules.
#[derive(Parser)]
struct Options {
    /// A trace in the Mooncake schema.
    #[arg(long, default_value = "../shared/traces/conversation_trace.jsonl")]
    trace: PathBuf,
    /// Where everything is written.
    #[arg(long, default_value = "target/replay")]
    out: PathBuf,
    /// Where the results that are checked in are written.
    #[arg(long)]
    results: Option<PathBuf>,
    /// A file with the markers between which the summary is written.
    #[arg(long)]
    readme: Option<PathBuf>,
    /// Instead: the filter with other parameters, against its default, on 8 pods.
    #[arg(long)]
    sweep: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    fs::create_dir_all(&options.out)?;
    let trace = match options.trace.exists() {
        true => mooncake::read(&options.trace)?,
        false => {
            println!(
                "skipped: {}: no {}",
                Kind::Mooncake.name(),
                options.trace.display()
            );
            Vec::new()
        }
    };
    match options.sweep {
        true => sweep(&options, &trace),
        false => replay(&options, &trace),
    }
}

fn replay(options: &Options, trace: &[Request]) -> Result<()> {
    let table = table(grid::cells(!trace.is_empty()), Chooser::all(), trace)?;
    let summary = text::summary(&table);
    let out = &options.out;
    fs::write(out.join("cells.csv"), text::csv(&table))?;
    fs::write(out.join("cells.md"), text::cells(&table))?;
    let pictures = |folder: &Path| -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("summary.md"), &summary)?;
        plot::utilisation(&table, &folder.join("utilisation.svg"))?;
        plot::load(&series(trace)?, 3, &folder.join("load.svg"))
    };
    pictures(out)?;
    println!("\n{summary}\nwritten to {}", out.display());
    if trace.is_empty() {
        println!("not rewritten: the checked-in results and README, which need the trace");
        return Ok(());
    }
    if let Some(folder) = &options.results {
        pictures(folder)?;
        if let Some(readme) = &options.readme {
            let block = format!(
                "{summary}\n![hits and p90 against utilisation]({0}/utilisation.svg)\n\n![requests on each pod over time]({0}/load.svg)\n",
                folder.display()
            );
            fs::write(readme, text::insert(&fs::read_to_string(readme)?, &block)?)?;
        }
    }
    Ok(())
}

fn table(cells: Vec<Cell>, choosers: Vec<Chooser>, trace: &[Request]) -> Result<Table> {
    let start = Instant::now();
    let runs = grid::run(&cells, &choosers, trace);
    let (took, count) = (start.elapsed(), runs.len());
    let (n, rules, seeds) = (cells.len(), choosers.len(), grid::SEEDS);
    println!("{n} cells × {rules} rules × {seeds} seeds = {count} runs in {took:.1?}");
    Table::new(cells, choosers, &runs).context("a run did not end")
}

/// A shared system prompt and a restart, as three rules see them.
fn series(trace: &[Request]) -> Result<Vec<Series>> {
    let rules = [
        Chooser::default_filter(),
        Chooser::Peer(Rule::LeastRequest),
        Chooser::Filter(Policy::LongestPrefix),
    ];
    let mut all = Vec::new();
    for kind in [Kind::SystemPrompt, Kind::Restart] {
        let cell = Cell {
            kind,
            pods: 8,
            utilisation: 0.8,
            cache_tokens: kind.cache_tokens()[1],
            gateways: 1,
        };
        let workload = cell.workload(0, trace);
        for rule in rules {
            let run = cell.run(&workload, 0, rule).context("a run did not end")?;
            all.push(Series {
                title: format!("{}: {}", kind.name(), rule.name()),
                cell,
                requests: run.series,
            });
        }
    }
    Ok(all)
}

fn sweep(options: &Options, trace: &[Request]) -> Result<()> {
    let default = Balanced::default();
    let mut variants = vec![("default".to_owned(), default)];
    let mut vary = |name: &str, values: &[f64], set: fn(&mut Balanced, f64)| {
        for value in values {
            let mut keys = default;
            set(&mut keys, *value);
            variants.push((format!("{name} {value}"), keys));
        }
    };
    vary("home_discount", &[0.0, 0.05, 0.25, 0.5], |k, v| {
        k.home_discount = v
    });
    vary("recompute_penalty", &[0.0, 0.5], |k, v| {
        k.recompute_penalty = v
    });
    vary(
        "recompute_penalty_per_backlog_second",
        &[2.0, 4.0, 16.0],
        |k, v| {
            k.recompute_penalty_per_backlog_second = v;
        },
    );
    vary("running_weight_tokens", &[0.0, 300.0], |k, v| {
        k.running_weight_tokens = v
    });
    vary("slow_start_ms", &[0.0, 30_000.0], |k, v| {
        k.slow_start_ms = v as u32
    });
    vary(
        "prefill_tokens_per_second",
        &[500.0, 4000.0, 32_000.0],
        |k, v| {
            k.prefill_tokens_per_second = v;
        },
    );
    let (names, choosers): (Vec<_>, Vec<_>) = variants
        .into_iter()
        .map(|(name, keys)| (name, Chooser::Filter(Policy::Balanced(keys))))
        .unzip();
    let mut cells = grid::cells(!trace.is_empty());
    cells.retain(|cell| cell.pods == 8);
    let text = text::sweep(&table(cells, choosers, trace)?, &names);
    fs::write(options.out.join("sweep.md"), &text)?;
    println!("\n{text}");
    Ok(())
}
