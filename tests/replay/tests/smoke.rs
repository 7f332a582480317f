//! One small cell, in seconds: the replayer keeps its books, gives the same numbers twice, and the
//! filter's policy does what it is for.

use prefix_router::config::{Balanced, Policy};
use replay::gateway::Rule;
use replay::grid::{Cell, Chooser, Kind};
use replay::sim::Run;
use replay::stats::Measures;
use replay::workload::Workload;

const ROUND_ROBIN: Chooser = Chooser::Peer(Rule::RoundRobin);

fn cell(kind: Kind) -> Cell {
    Cell {
        kind,
        pods: 4,
        utilisation: 0.8,
        cache_tokens: kind.cache_tokens()[1],
        gateways: 1,
    }
}

fn run(cell: Cell, chooser: Chooser) -> (Workload, Run, Measures) {
    let workload = cell.workload(0, &[]);
    let run = cell.run(&workload, 0, chooser).unwrap();
    let measures = Measures::of(&run, &workload, &workload.ideal_hits());
    (workload, run, measures)
}

/// Every request is served once, nothing is cached that could not be, and the pods were busy for
/// exactly what was not cached.
#[test]
fn tokens_are_conserved() {
    for chooser in Chooser::all() {
        let cell = cell(Kind::Chats);
        let (workload, run, measures) = run(cell, chooser);
        let name = chooser.name();
        assert_eq!(run.outcomes.len(), workload.requests.len());
        let mut computed = 0.0;
        for (outcome, request) in run.outcomes.iter().zip(&workload.requests) {
            assert!(outcome.cached < request.tokens, "{name}");
            let tokens = f64::from(request.tokens - outcome.cached);
            let took = outcome.first_token as f64 / 1e6;
            assert!(
                took >= tokens / replay::grid::RATE - 1e-5,
                "{name}: {took} s"
            );
            computed += tokens;
        }
        let end = run.series.len() as f64;
        let busy = run.busy.iter().sum::<f64>() * end * replay::grid::RATE;
        assert!(
            (busy / computed - 1.0).abs() < 0.02,
            "{name}: {busy} {computed}"
        );
        assert!(
            measures.hits <= 1.0,
            "{name}: one pod alone would be the infinite cache"
        );
        assert!(measures.p50 <= measures.p90 && measures.p90 <= measures.p99);
    }
}

#[test]
fn the_filter_hits_what_round_robin_misses() {
    let ours = run(cell(Kind::Chats), Chooser::default_filter()).2;
    let theirs = run(cell(Kind::Chats), ROUND_ROBIN).2;
    let oracle = run(cell(Kind::Chats), Chooser::Oracle).2;
    assert!(
        ours.hits > 0.9 && ours.hits > 1.3 * theirs.hits,
        "{ours:?} {theirs:?}"
    );
    assert!(ours.mean * 3.0 < theirs.mean, "{ours:?} {theirs:?}");
    assert!(ours.hits > 0.97 * oracle.hits, "{ours:?} {oracle:?}");
}

#[test]
fn a_shared_system_prompt_does_not_funnel() {
    let ours = run(cell(Kind::SystemPrompt), Chooser::default_filter()).2;
    let rfc = run(
        cell(Kind::SystemPrompt),
        Chooser::Filter(Policy::LongestPrefix),
    )
    .2;
    assert!(
        ours.imbalance < 1.3 && rfc.imbalance > 3.0,
        "{ours:?} {rfc:?}"
    );
    assert!(ours.hits > 0.9, "{ours:?}");
}

/// Whoever was on the pod that died is served by another one.
#[test]
fn a_restart_loses_nobody() {
    let (workload, run, measures) = run(cell(Kind::Restart), Chooser::default_filter());
    assert_eq!(run.outcomes.len(), workload.requests.len());
    let at = |share: f64| (workload.duration() as f64 * share) as u64;
    let mut while_down = run.outcomes.iter().zip(&workload.requests);
    assert!(while_down
        .all(|(o, r)| o.pod != 0 || !(at(0.4)..at(0.55)).contains(&(r.at + o.first_token))));
    assert!(run
        .outcomes
        .iter()
        .zip(&workload.requests)
        .any(|(o, r)| o.pod == 0 && r.at > at(0.55)));
    assert!(measures.hits > 0.7, "{measures:?}");
}

/// Long before its ejection ends, which has doubled several times by then.
#[test]
fn a_pod_that_is_back_is_soon_used() {
    let small = Cell {
        utilisation: 0.5,
        cache_tokens: Kind::Restart.cache_tokens()[0],
        ..cell(Kind::Restart)
    };
    let (workload, run, _) = run(small, Chooser::default_filter());
    let back = (workload.duration() as f64 * 0.55) as u64;
    let served = run.outcomes.iter().zip(&workload.requests);
    let after = served.filter(|(o, r)| o.pod == 0 && r.at > back);
    let first = after.map(|(_, r)| r.at - back).min().unwrap();
    assert!(first < 6_000_000, "after {first} µs");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let again = || {
        run(cell(Kind::Bursts), Chooser::default_filter())
            .1
            .outcomes
    };
    assert_eq!(again(), again());
}

/// The rate starts at 8000 tokens a second, twice what the pods do.
#[test]
fn the_rate_is_learned() {
    let learned = run(cell(Kind::Unique), Chooser::default_filter())
        .2
        .learned_rate;
    let real = replay::grid::RATE;
    assert!((0.8 * real..1.25 * real).contains(&learned), "{learned}");
}

/// Pods that join are not held back for long: slow start costs little of what they bring.
#[test]
fn pods_that_join_soon_help() {
    let quick = Balanced {
        slow_start_ms: 0,
        ..Balanced::default()
    };
    let ours = run(cell(Kind::Joining), Chooser::default_filter()).2;
    let at_once = run(
        cell(Kind::Joining),
        Chooser::Filter(Policy::Balanced(quick)),
    )
    .2;
    assert!(ours.mean < 1.05 * at_once.mean, "{ours:?} {at_once:?}");
}
