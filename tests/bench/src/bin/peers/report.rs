//! The report: Markdown tables of what was measured, in full and for README.

use crate::chats::{Outcome, SHAPE};
use crate::cost::{Cost, MANY};
use crate::routers::{Router, DIRECT, OURS};
use crate::{Arguments, BLOCKS, DECODE_MS, PODS, PREFILL_TOKENS_PER_S};
use std::fmt::Write;

/// Everything that one run measured.
#[derive(Default)]
pub struct Report {
    pub costs: Vec<Cost>,
    pub cost_settings: Vec<Settings>,
    pub chats: Vec<(String, Outcome)>,
    pub chat_settings: Vec<Settings>,
    skipped: Vec<String>,
}

/// Name, version and settings of a router.
pub struct Settings([String; 3]);

pub fn settings(routers: &[Router]) -> Vec<Settings> {
    let of = |r: &Router| Settings([r.name.clone(), r.version.clone(), r.settings.clone()]);
    routers.iter().map(of).collect()
}

/// A Markdown table; the first line of `rows` is its head.
fn table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}

fn size(bytes: usize) -> String {
    match bytes {
        1_000_000.. => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} KB", bytes / 1_000),
    }
}

fn ratio(value: f64) -> String {
    format!("{value:.1} ×")
}

impl Report {
    pub fn skipped(&mut self, skipped: Vec<String>) {
        for line in skipped {
            if !self.skipped.contains(&line) {
                self.skipped.push(line);
            }
        }
    }

    fn cost(&self, name: &str) -> Option<&Cost> {
        self.costs.iter().find(|cost| cost.name == name)
    }

    /// The fastest cache-aware peer at a size.
    fn fastest_peer(&self, case: usize) -> Option<&Cost> {
        let peers = self
            .costs
            .iter()
            .filter(|c| c.cache_aware && c.name != OURS);
        let rate = |cost: &Cost| cost.cases[case].many.per_second;
        peers.max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }

    /// `target/peers/report.md`.
    pub fn whole(&self, arguments: &Arguments) -> String {
        let mut text =
            String::from("# prefix-router and its peers\n\n`make bench-peers` wrote this file. ");
        let _ = writeln!(text, "{}", machine());
        if !self.costs.is_empty() {
            let _ = writeln!(
                text,
                "\n## What a router costs\n\n{}\n",
                cost_note(arguments)
            );
            text.push_str(&self.cost_table(arguments));
            text.push_str(&self.ratios(arguments));
            text.push('\n');
            text.push_str(&settings_table(&self.cost_settings));
        }
        if !self.chats.is_empty() {
            let _ = writeln!(
                text,
                "\n## What its routing is worth\n\n{}\n",
                chats_note(arguments)
            );
            text.push_str(&self.chats_table());
            text.push('\n');
            text.push_str(&settings_table(&self.chat_settings));
        }
        text.push_str(&self.skipped_note());
        text
    }

    /// The block of README.
    pub fn summary(&self, arguments: &Arguments) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "`make bench-peers` (ten minutes; installs the peers into `target/`): {PODS} simulated pods behind each, in one run. {}\n\
             Every figure, setting and version: [`tests/bench/peers.md`](tests/bench/peers.md).\n",
            machine()
        );
        text.push_str(&self.rates(arguments));
        text.push_str(&self.ratios(arguments));
        let _ = writeln!(text, "\n{}\n", chats_note(arguments));
        text.push_str(&self.chats_table());
        text.push_str(&self.skipped_note());
        text.push_str("\n![Requests per second by body size, and time to first token](tests/bench/peers.svg)\n");
        text
    }

    fn skipped_note(&self) -> String {
        match self.skipped.as_slice() {
            [] => String::new(),
            some => format!("\nSkipped: {}.\n", some.join("; ")),
        }
    }

    fn cost_table(&self, arguments: &Arguments) -> String {
        let many = format!("requests/s, {MANY} connections");
        let mut rows = vec![row(&[
            "body",
            "router",
            "p50 ms, 1 connection",
            "added",
            "p99 ms",
            "added",
            "requests/s",
            &many,
            "p50 ms",
            "p99 ms",
            "CPU µs per request",
        ])];
        for (case, bytes) in arguments.sizes.iter().enumerate() {
            let direct = self.cost(DIRECT).map(|cost| cost.cases[case].one);
            for cost in &self.costs {
                let figures = cost.cases[case];
                let (one, many) = (figures.one, figures.many);
                let added = |value: f64, of: Option<f64>| {
                    let of = of.filter(|_| cost.name != DIRECT);
                    of.map_or(String::new(), |of| format!("{:.3}", value - of))
                };
                rows.push(vec![
                    size(*bytes),
                    cost.name.clone(),
                    format!("{:.3}", one.p50_ms),
                    added(one.p50_ms, direct.map(|d| d.p50_ms)),
                    format!("{:.3}", one.p99_ms),
                    added(one.p99_ms, direct.map(|d| d.p99_ms)),
                    format!("{:.0}", one.per_second),
                    format!("{:.0}", many.per_second),
                    format!("{:.2}", many.p50_ms),
                    format!("{:.2}", many.p99_ms),
                    figures
                        .cpu_us
                        .map_or(String::new(), |cpu| format!("{cpu:.0}")),
                ]);
            }
        }
        let mut text = table(&rows);
        let mut rows = vec![row(&[
            "router",
            "resident MB when started",
            "after the run",
        ])];
        for cost in &self.costs {
            if let Some((before, after)) = cost.resident {
                let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
                rows.push(vec![cost.name.clone(), megabytes(before), megabytes(after)]);
            }
        }
        text.push('\n');
        text.push_str(&table(&rows));
        text
    }

    /// Requests/s at many connections and p99, a column for each size.
    fn rates(&self, arguments: &Arguments) -> String {
        let mut head = vec![format!("requests/s · p99 ms, {MANY} connections")];
        head.extend(arguments.sizes.iter().map(|bytes| size(*bytes)));
        head.extend(row(&["CPU µs, 16 KB", "resident MB after"]));
        let sixteen = arguments.sizes.iter().position(|bytes| *bytes == 16_000);
        let mut rows = vec![head];
        for cost in self.costs.iter().filter(|cost| cost.name != DIRECT) {
            let mut cells = vec![cost.name.clone()];
            cells.extend(
                cost.cases
                    .iter()
                    .map(|case| format!("{:.0} · {:.1}", case.many.per_second, case.many.p99_ms)),
            );
            let cpu = sixteen.and_then(|case| cost.cases[case].cpu_us);
            cells.push(cpu.map_or(String::new(), |cpu| format!("{cpu:.0}")));
            let after = cost.resident.map(|(_, after)| after as f64 / 1e6);
            cells.push(after.map_or(String::new(), |after| format!("{after:.0}")));
            rows.push(cells);
        }
        table(&rows)
    }

    /// How many times the requests/s of the fastest cache-aware peer.
    fn ratios(&self, arguments: &Arguments) -> String {
        let Some(ours) = self.cost(OURS) else {
            return String::new();
        };
        let mut parts = Vec::new();
        for (case, bytes) in arguments.sizes.iter().enumerate() {
            let Some(peer) = self.fastest_peer(case) else {
                return String::new();
            };
            let (ours, theirs) = (ours.cases[case].many, peer.cases[case].many);
            parts.push(format!(
                "{} {} (p99 {:.1} against {:.1} ms, {})",
                size(*bytes),
                ratio(ours.per_second / theirs.per_second),
                ours.p99_ms,
                theirs.p99_ms,
                peer.name,
            ));
        }
        format!(
            "\n{OURS} serves, of the requests/s of the fastest cache-aware peer at {MANY} connections: {}.\n",
            parts.join(", ")
        )
    }

    fn chats_table(&self) -> String {
        let mut rows = vec![row(&[
            "router",
            "cached tokens",
            "time to first token: mean",
            "p50",
            "p90",
            "p99",
            "requests by pod",
            "busiest over mean",
            "chats that failed",
        ])];
        for (name, outcome) in &self.chats {
            let ms = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
            let requests: Vec<String> = outcome.requests.iter().map(u64::to_string).collect();
            rows.push(vec![
                name.clone(),
                format!("{:.1} %", outcome.cached_share() * 100.0),
                ms(outcome.mean()),
                ms(outcome.quantile(0.5)),
                ms(outcome.quantile(0.9)),
                ms(outcome.quantile(0.99)),
                requests.join(" "),
                format!("{:.2}", outcome.busiest()),
                outcome.failed.to_string(),
            ]);
        }
        table(&rows)
    }
}

fn settings_table(settings: &[Settings]) -> String {
    let mut rows = vec![row(&["router", "version", "settings"])];
    rows.extend(settings.iter().map(|settings| settings.0.to_vec()));
    table(&rows)
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cpus} CPUs shared by client, router and pods: believe the ratios, not the figures.")
}

fn cost_note(arguments: &Arguments) -> String {
    format!(
        "{PODS} pods that answer at once; chats behind one system prompt, 24 to 512 different ones of each size, again and again. \
         Medians of {} rounds of {} ms, every router in turn in each. \"Added\" is over the pods themselves; CPU is the router's alone. \
         Resident memory is after the same chats for all.",
        arguments.rounds, arguments.millis
    )
}

fn chats_note(arguments: &Arguments) -> String {
    format!(
        "Chats through pods that take their time: {PODS} pods of {PREFILL_TOKENS_PER_S} tokens/s of prefill, {DECODE_MS} ms a token, {} tokens of cache each; \
         {} chats of {} to {} turns behind {} system prompts, {} rounds. Cached tokens as the pods counted them.",
        BLOCKS * 16,
        SHAPE.chats,
        SHAPE.turns.0,
        SHAPE.turns.1,
        SHAPE.system_prompts,
        arguments.chat_rounds,
    )
}
