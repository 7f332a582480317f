use super::balanced::costs;
use super::*;
use crate::config::Balanced;
use proptest::prelude::*;

const RATE: f64 = 1000.0;

fn pod(pod: usize, name: &str) -> Candidate<'_> {
    Candidate {
        pod,
        name,
        standing: Standing::Fit,
        cold_share: 1.0,
        matched: 0,
        uncached: 1000.0,
        backlog: 0.0,
        running: 0,
    }
}

fn pods(names: &[String]) -> Vec<Candidate<'_>> {
    let pods = names.iter().enumerate();
    pods.map(|(index, name)| pod(index, name)).collect()
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("pod-{i}")).collect()
}

fn by_cost(candidates: &[Candidate<'_>], home: u64) -> Ranking {
    let policy = Policy::Balanced(Balanced::default());
    rank(&policy, candidates.to_vec(), RATE, home).unwrap()
}

fn by_length(candidates: &[Candidate<'_>], home: u64) -> Ranking {
    rank(&Policy::LongestPrefix, candidates.to_vec(), RATE, home).unwrap()
}

#[test]
fn longest_prefix_goes_by_match_then_load_then_the_hash() {
    let names = names(3);
    let mut three = pods(&names);
    for (pod, (matched, running)) in three.iter_mut().zip([(3, 0), (5, 9), (5, 4)]) {
        (pod.matched, pod.running) = (matched, running);
        pod.backlog = 1e9 * f64::from(matched);
    }
    let ranking = by_length(&three, 1);
    assert_eq!(
        (ranking.pods, ranking.reason),
        (vec![2, 1, 0], Reason::Prefix)
    );
    three.iter_mut().for_each(|pod| pod.matched = 0);
    let ranking = by_length(&three, 1);
    assert_eq!(
        (ranking.pods, ranking.reason),
        (vec![0, 2, 1], Reason::Cold)
    );
    assert_eq!(rank(&Policy::LongestPrefix, vec![], RATE, 1), None);
}

#[test]
fn every_term_of_the_cost() {
    let names = names(2);
    let mut two = pods(&names);
    (two[0].backlog, two[0].running, two[0].uncached) = (500.0, 3, 200.0);
    (two[1].backlog, two[1].running) = (2000.0, 0);
    let keys = Balanced {
        running_weight_tokens: 10.0,
        recompute_penalty: 0.5,
        recompute_penalty_per_backlog_second: 2.0,
        home_discount: 0.25,
        ..Balanced::default()
    };
    let [a, b] = costs(&two, Some(1), RATE, &keys)[..] else {
        panic!("two")
    };
    // L = 0.5 + 2 · 500 / 1000
    assert_eq!(
        (a.backlog, a.recompute, a.running),
        (500.0, 200.0 * 2.5, 30.0)
    );
    assert_eq!(
        (b.backlog, b.recompute, b.running),
        (2000.0, 750.0 * 2.5, 0.0)
    );
    assert_eq!(b.total(), 2000.0 + 1875.0);
}

#[test]
fn a_match_is_left_when_waiting_costs_more_than_computing() {
    let names = names(2);
    let mut two = pods(&names);
    (two[0].matched, two[0].uncached) = (10, 360.0);
    assert_eq!(by_cost(&two, 7).reason, Reason::Prefix);
    assert_eq!(by_cost(&two, 7).pods[0], 0);
    two[0].backlog = 5000.0;
    let ranking = by_cost(&two, 7);
    assert_eq!((ranking.pods[0], ranking.reason), (1, Reason::Load));
    two[1].backlog = 4500.0;
    assert_eq!(
        by_cost(&two, 7).pods[0],
        0,
        "when all are busy, a hit is worth more"
    );
}

#[test]
fn a_burst_of_one_cold_prompt_stays_together_up_to_its_cost_and_then_spills() {
    let names = names(4);
    let mut four = pods(&names);
    four.iter_mut().for_each(|pod| pod.uncached = 4000.0);
    let mut chosen = Vec::new();
    for _ in 0..200 {
        let best = by_cost(&four, 99).pods[0];
        chosen.push(best);
        let pod = &mut four[best];
        (pod.backlog, pod.running) = (pod.backlog + pod.uncached, pod.running + 1);
        (pod.matched, pod.uncached) = (15, 10.0);
    }
    let first = chosen[0];
    assert!(chosen[..8].iter().all(|pod| *pod == first), "{chosen:?}");
    let on = |pod: usize| chosen.iter().filter(|chosen| **chosen == pod).count();
    assert!((0..4).all(|pod| on(pod) > 20), "{chosen:?}");
}

#[test]
fn cold_prompts_spread_over_idle_pods() {
    let names = names(4);
    let four = pods(&names);
    for choose in [by_cost, by_length] {
        let mut won = [0u32; 4];
        for home in 0..4000 {
            won[choose(&four, home).pods[0]] += 1;
        }
        assert!(won.iter().all(|n| (850..1150).contains(n)), "{won:?}");
    }
}

#[test]
fn a_pod_that_leaves_moves_only_its_own_prompts() {
    let names = names(4);
    let four = pods(&names);
    for home in 0..500 {
        let before = by_cost(&four, home).pods[0];
        let after = by_cost(&four[..3], home).pods[0];
        assert!(before == 3 || before == after);
    }
}

#[test]
fn a_new_pod_takes_its_share_of_the_cold_prompts_and_all_of_the_warm() {
    let names = names(4);
    let mut four = pods(&names);
    let won = |four: &[Candidate<'_>]| {
        (0..4000)
            .filter(|home| by_cost(four, *home).pods[0] == 3)
            .count()
    };
    let mut before = 0;
    for (share, most) in [(0.0, 0), (0.25, 350), (0.5, 650), (1.0, 1150)] {
        four[3].cold_share = share;
        let now = won(&four);
        assert!(now <= most && now >= before, "{share}: {now}");
        before = now;
    }
    (four[3].cold_share, four[3].matched, four[3].uncached) = (0.0, 9, 10.0);
    assert_eq!(won(&four), 4000);
    four.iter_mut().for_each(|pod| pod.cold_share = 0.0);
    (four[3].matched, four[3].uncached) = (0, 1000.0);
    assert!(won(&four) > 850, "when all are new, none is");
}

#[test]
fn when_no_pod_is_fit_all_are() {
    let names = names(3);
    let mut three = pods(&names);
    three
        .iter_mut()
        .for_each(|pod| pod.standing = Standing::Unfit);
    (three[1].matched, three[1].uncached) = (3, 10.0);
    let ranking = by_cost(&three, 5);
    assert!(ranking.panic);
    assert_eq!((ranking.pods[0], ranking.reason), (1, Reason::Prefix));
}

#[test]
fn a_probe_is_chosen_like_a_fit_pod_and_is_no_measure_for_the_others() {
    let names = names(3);
    let mut three = pods(&names);
    three[0].standing = Standing::Probe;
    three[1].backlog = 4000.0;
    three[2].backlog = 4000.0;
    assert_eq!(by_cost(&three, 5).pods[0], 0);
    let keys = Balanced::default();
    let recompute = costs(&three, None, RATE, &keys)[1].recompute;
    assert_eq!(
        recompute,
        1000.0 * (1.25 + 8.0 * 4.0),
        "the lightest fit pod has 4 s"
    );
}

#[derive(Debug, Clone)]
struct Facts {
    matched: u32,
    running: u32,
    backlog: f64,
    fit: bool,
}

fn facts() -> impl Strategy<Value = Vec<Facts>> {
    let one =
        (0u32..20, 0u32..3, 0u32..5, any::<bool>()).prop_map(|(matched, running, backlog, fit)| {
            Facts {
                matched,
                running,
                backlog: f64::from(backlog) * 700.0,
                fit,
            }
        });
    prop::collection::vec(one, 1..8)
}

fn candidates<'a>(facts: &[Facts], names: &'a [String]) -> Vec<Candidate<'a>> {
    let mut pods = pods(names);
    pods.truncate(facts.len());
    for (pod, facts) in pods.iter_mut().zip(facts) {
        (pod.matched, pod.running, pod.backlog) = (facts.matched, facts.running, facts.backlog);
        pod.uncached = 1300.0 - f64::from(facts.matched) * 64.0;
        pod.standing = match facts.fit {
            true => Standing::Fit,
            false => Standing::Unfit,
        };
    }
    pods
}

proptest! {
    #[test]
    fn the_order_of_candidates_does_not_matter(facts in facts(), home: u64, rotate in 0usize..8) {
        let names = names(8);
        let mut pods = candidates(&facts, &names);
        let first = (by_cost(&pods, home), by_length(&pods, home));
        let turns = rotate % pods.len();
        pods.rotate_left(turns);
        pods.reverse();
        prop_assert_eq!(first, (by_cost(&pods, home), by_length(&pods, home)));
    }

    #[test]
    fn an_unhealthy_pod_never_wins_over_a_healthy_one(facts in facts(), home: u64) {
        let names = names(8);
        let pods = candidates(&facts, &names);
        for ranking in [by_cost(&pods, home), by_length(&pods, home)] {
            let fit: Vec<bool> = ranking.pods.iter().map(|pod| facts[*pod].fit).collect();
            prop_assert!(fit.is_sorted_by(|a, b| a >= b), "fit ones first: {:?}", fit);
            prop_assert_eq!(ranking.panic, !facts.iter().any(|f| f.fit));
        }
    }

    #[test]
    fn more_backlog_never_makes_a_pod_likelier(
        mut facts in facts(), home: u64, which in 0usize..8, more in 1u32..9000,
    ) {
        let names = names(8);
        // The weight of requests in flight can turn it round: their backlog is what it stands for.
        facts.iter_mut().for_each(|facts| facts.running = 1);
        let which = which % facts.len();
        let place = |facts: &[Facts]| {
            by_cost(&candidates(facts, &names), home).pods[0] == which
        };
        let before = place(&facts);
        facts[which].backlog += f64::from(more);
        prop_assert!(before || !place(&facts));
    }

    #[test]
    fn gateways_with_equal_tables_and_no_load_agree(facts in facts(), home: u64) {
        let names = names(8);
        let mut pods = candidates(&facts, &names);
        for pod in &mut pods {
            (pod.running, pod.backlog) = (0, 0.0);
        }
        let here = by_cost(&pods, home);
        let policy = Policy::Balanced(Balanced::default());
        let there = rank(&policy, pods, RATE * 20.0, home).unwrap();
        prop_assert_eq!(here, there);
    }
}
