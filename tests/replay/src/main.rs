use replay::grid::{self, Chooser};
use replay::report::table::Table;
use replay::workload::mooncake;
fn main() {
    let trace = mooncake::read(std::path::Path::new(
        "/work/shared/traces/conversation_trace.jsonl",
    ))
    .unwrap();
    let cells = grid::cells(true);
    let choosers = Chooser::all();
    let t = std::time::Instant::now();
    let scores = grid::run(&cells, &choosers, &trace);
    println!("{:?}", t.elapsed());
    let t = Table::new(cells.clone(), choosers.clone(), &scores).unwrap();
    for gw in [1, 2] {
        let ids: Vec<usize> = (0..cells.len())
            .filter(|c| cells[*c].gateways == gw)
            .collect();
        for (i, c) in choosers.iter().enumerate() {
            let m = t.ratio(&ids, i, |m| m.mean);
            let p = t.ratio(&ids, i, |m| m.p90);
            let h = t.against(&ids, i, |_| 2, |m| m.hits);
            let hits = replay::stats::mean(
                &ids.iter()
                    .map(|c| t.value(*c, i, |m| m.hits))
                    .collect::<Vec<_>>(),
            );
            println!(
                "{:20} {:.3}±{:.3} worst {:.2} {:?} | {:.3}±{:.3} {:.2} {:?} | {:.3} {:.3}",
                c.name(),
                m.mean,
                m.interval,
                m.worst,
                (
                    cells[m.at].kind,
                    cells[m.at].pods,
                    cells[m.at].utilisation,
                    cells[m.at].cache_tokens
                ),
                p.mean,
                p.interval,
                p.worst,
                (
                    cells[p.at].kind,
                    cells[p.at].pods,
                    cells[p.at].utilisation,
                    cells[p.at].cache_tokens
                ),
                hits,
                h.mean
            );
        }
    }
}
