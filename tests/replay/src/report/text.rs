//! CSV of all cells, Markdown of the summary, and the block of README that holds it.
//!
//! Owns the words around the numbers. Invariant: the same runs give the same bytes.

use super::table::{Ratio, Table};
use crate::grid::{self, Chooser, Kind};
use crate::stats::{geometric_mean, mean, Measures};
use anyhow::{Context, Result};
use std::fmt::Write;

const BEGIN: &str = "<!-- replay:begin -->";
const END: &str = "<!-- replay:end -->";

/// Every cell and chooser on a line, with 95 % intervals over the seeds.
pub fn csv(table: &Table) -> String {
    let mut out = String::from(
        "workload,pods,utilisation,cache_tokens,gateways,rule,hit_share,hit_share_ci,cached_share,\
         ttft_mean_s,ttft_mean_ci,ttft_p50_s,ttft_p90_s,ttft_p90_ci,ttft_p99_s,imbalance\n",
    );
    for (at, cell) in table.cells.iter().enumerate() {
        for (who, chooser) in table.choosers.iter().enumerate() {
            let value = |of: fn(&Measures) -> f64| table.value(at, who, of);
            let interval = |of: fn(&Measures) -> f64| table.interval(at, who, of);
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{:.4},{:.4},{:.4},{:.4},{:.4},{:.4},{:.4},{:.4},{:.4},{:.3}",
                cell.kind.name().replace(',', ";"),
                cell.pods,
                cell.utilisation,
                cell.cache_tokens,
                cell.gateways,
                chooser.name(),
                value(|m| m.hits),
                interval(|m| m.hits),
                value(|m| m.cached),
                value(|m| m.mean),
                interval(|m| m.mean),
                value(|m| m.p50),
                value(|m| m.p90),
                interval(|m| m.p90),
                value(|m| m.p99),
                value(|m| m.imbalance),
            );
        }
    }
    out
}

/// The filter in every cell, beside the best rule and the oracle.
pub fn cells(table: &Table) -> String {
    let mut out = String::from(
        "| workload | pods | utilisation | cache, tokens | gateways | hits, % of infinite | mean TTFT, s | p50 | p90 | p99 | imbalance | mean × best | best by mean | p90 × best | best by p90 | hits, % of oracle |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|---|--:|\n",
    );
    for (at, cell) in table.cells.iter().enumerate() {
        let value = |of: fn(&Measures) -> f64| table.value(at, table.filter(), of);
        let by_mean = table.best(at, |m| m.mean);
        let by_p90 = table.best(at, |m| m.p90);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {:.1} | {:.3} | {:.3} | {:.3} | {:.3} | {:.2} | {:.3} | {} | {:.3} | {} | {:.1} |",
            cell.kind.name(),
            cell.pods,
            cell.utilisation,
            cell.cache_tokens,
            cell.gateways,
            100.0 * value(|m| m.hits),
            value(|m| m.mean),
            value(|m| m.p50),
            value(|m| m.p90),
            value(|m| m.p99),
            value(|m| m.imbalance),
            value(|m| m.mean) / table.value(at, by_mean, |m| m.mean),
            table.choosers[by_mean].name(),
            value(|m| m.p90) / table.value(at, by_p90, |m| m.p90),
            table.choosers[by_p90].name(),
            100.0 * value(|m| m.hits) / table.value(at, table.oracle(), |m| m.hits),
        );
    }
    out
}

/// What README shows.
pub fn summary(table: &Table) -> String {
    let all: Vec<usize> = (0..table.cells.len()).collect();
    let of = |gateways: usize| -> Vec<usize> {
        let mut cells = all.clone();
        cells.retain(|cell| table.cells[*cell].gateways == gateways);
        cells
    };
    let (one, two) = (of(1), of(2));
    let mut out = format!(
        "Of {} cells: workloads × 4, 8, 16 pods × utilisation 0.5, 0.8, 1.1 (of the work that an infinite single cache leaves) × a cache\n\
         smaller and one larger than what is in use. In each the rules are measured against the best of them (not the oracle, nor the filter\n\
         with another setting); numbers are geometric means over the cells,\n\
         ± half of the 95 % interval over {} seeds. Pods prefill {} tokens a second, first come first served, and run {} requests at most.\n\n",
        one.len(),
        grid::SEEDS,
        grid::RATE,
        grid::MAX_RUNNING,
    );
    out += &rules(table, &one);
    let _ = write!(
        out,
        "\nTwo gateways that share nothing and take turns ({} cells of 8 pods and the larger cache; the oracle sees both):\n\n",
        two.len()
    );
    out += &rules(table, &two);
    out += "\nThe filter by workload, one gateway:\n\n";
    out += &workloads(table, &one);
    out
}

fn rules(table: &Table, cells: &[usize]) -> String {
    let mut out = String::from(
        "| rule | mean TTFT × best | worst cell | p90 × best | worst cell | hits, % of infinite | of the oracle's | imbalance |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut rows: Vec<(f64, String)> = Vec::new();
    for (who, chooser) in table.choosers.iter().enumerate() {
        let ttft = table.ratio(cells, who, |m| m.mean);
        let p90 = table.ratio(cells, who, |m| m.p90);
        let bold = if who == table.filter() { "**" } else { "" };
        let row = format!(
            "| {bold}{}{bold} | {} | {} | {} | {} | {:.1} | {:.1} | {:.2} |\n",
            chooser.name(),
            with_interval(ttft),
            factor(ttft.worst),
            with_interval(p90),
            factor(p90.worst),
            100.0 * mean_of(table, cells, who, |m| m.hits),
            100.0
                * table
                    .against(cells, who, |_| table.oracle(), |m| m.hits)
                    .mean,
            mean_of(table, cells, who, |m| m.imbalance),
        );
        rows.push((ttft.mean, row));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    out.extend(rows.into_iter().map(|(_, row)| row));
    out
}

fn workloads(table: &Table, cells: &[usize]) -> String {
    let mut out = String::from(
        "| workload | hits, % of infinite | of the oracle's | mean TTFT × best | worst cell | p90 × best | worst cell | least request: mean | next best by mean |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for kind in Kind::ALL {
        let mut own = cells.to_vec();
        own.retain(|cell| table.cells[*cell].kind == kind);
        if own.is_empty() {
            continue;
        }
        let filter = table.filter();
        let ttft = table.ratio(&own, filter, |m| m.mean);
        let p90 = table.ratio(&own, filter, |m| m.p90);
        let peers =
            (0..table.choosers.len()).filter(|c| matches!(table.choosers[*c], Chooser::Peer(_)));
        let ratios: Vec<(usize, Ratio)> = peers
            .map(|c| (c, table.ratio(&own, c, |m| m.mean)))
            .collect();
        let next = ratios.iter().min_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        let least = ratios
            .iter()
            .find(|(c, _)| table.choosers[*c] == Chooser::Peer(crate::gateway::Rule::LeastRequest));
        let name = |c: usize| table.choosers[c].name();
        let _ = writeln!(
            out,
            "| {} | {:.1} | {:.1} | {} | {} | {} | {} | {} | {} |",
            kind.name(),
            100.0 * mean_of(table, &own, filter, |m| m.hits),
            100.0
                * table
                    .against(&own, filter, |_| table.oracle(), |m| m.hits)
                    .mean,
            with_interval(ttft),
            factor(ttft.worst),
            with_interval(p90),
            factor(p90.worst),
            least.map_or(String::new(), |(_, r)| factor(r.mean)),
            next.map_or(String::new(), |(c, r)| format!(
                "{} {}",
                name(*c),
                factor(r.mean)
            )),
        );
    }
    out
}

/// Variants of the filter against the first of them.
pub fn sweep(table: &Table, names: &[String]) -> String {
    let mut out = String::new();
    for gateways in [1, 2] {
        let mut cells: Vec<usize> = (0..table.cells.len()).collect();
        cells.retain(|cell| table.cells[*cell].gateways == gateways);
        let _ = write!(
            out,
            "{} cells, gateways: {gateways}\n\n| variant | mean TTFT | worst | p90 | worst | hits | learned rate |",
            cells.len()
        );
        let kinds: Vec<Kind> = Kind::ALL
            .into_iter()
            .filter(|kind| cells.iter().any(|c| table.cells[*c].kind == *kind))
            .collect();
        for kind in &kinds {
            let _ = write!(out, " {} |", kind.name());
        }
        let _ = writeln!(out, "\n|---|{}", "--:|".repeat(6 + kinds.len()));
        for (who, name) in names.iter().enumerate() {
            let against =
                |cells: &[usize], of: fn(&Measures) -> f64| table.against(cells, who, |_| 0, of);
            let (ttft, p90) = (against(&cells, |m| m.mean), against(&cells, |m| m.p90));
            let rates = cells
                .iter()
                .map(|c| table.value(*c, who, |m| m.learned_rate));
            let _ = write!(
                out,
                "| {name} | {} | {:.2} | {} | {:.2} | {:.3} | {:.0} |",
                with_interval(ttft),
                ttft.worst,
                with_interval(p90),
                p90.worst,
                against(&cells, |m| m.hits).mean,
                geometric_mean(&rates.collect::<Vec<_>>()),
            );
            for kind in &kinds {
                let mut own = cells.clone();
                own.retain(|cell| table.cells[*cell].kind == *kind);
                let _ = write!(out, " {:.3} |", against(&own, |m| m.mean).mean);
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

/// Puts `block` between the markers of `readme`.
pub fn insert(readme: &str, block: &str) -> Result<String> {
    let (before, rest) = readme
        .split_once(BEGIN)
        .context("README has no begin marker")?;
    let (_, after) = rest.split_once(END).context("README has no end marker")?;
    Ok(format!(
        "{before}{BEGIN}\n{}\n{END}{after}",
        block.trim_end()
    ))
}

fn mean_of(table: &Table, cells: &[usize], who: usize, of: fn(&Measures) -> f64) -> f64 {
    mean(
        &cells
            .iter()
            .map(|c| table.value(*c, who, of))
            .collect::<Vec<_>>(),
    )
}

fn with_interval(ratio: Ratio) -> String {
    match ratio.mean < 2.0 {
        true => format!("{:.3} ± {:.3}", ratio.mean, ratio.interval),
        false => format!("{:.1} ± {:.1}", ratio.mean, ratio.interval),
    }
}

fn factor(ratio: f64) -> String {
    match ratio {
        r if r < 10.0 => format!("{r:.2}"),
        r => format!("{r:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_replaced_and_all_else_is_kept() {
        let readme = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = insert(&readme, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(insert(&once, "new\n").unwrap(), once);
        assert!(insert("no markers", "new").is_err());
    }
}
