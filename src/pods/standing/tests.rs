use super::*;
use crate::store::MemoryStore;

const POD: PodKey = PodKey(7);

fn pool() -> (MemoryStore, Standings) {
    (MemoryStore::default(), Standings::new("p", 30_000))
}

#[test]
fn a_failure_ejects_and_one_request_tries_again() {
    let (store, standings) = pool();
    let standing = |now| standings.read(&store).standing(POD, now);
    assert_eq!(standing(0), Standing::Fit);
    for _ in 0..50 {
        standings.failed(&store, POD, 1000);
    }
    assert_eq!(standing(5999), Standing::Unfit);
    assert!(!standings.claim_probe(&store, POD, 5999));
    assert_eq!(standing(6000), Standing::Probe);
    assert!(standings.claim_probe(&store, POD, 6000));
    assert!(!standings.claim_probe(&store, POD, 6000), "only one");
    assert_eq!(standing(6001), Standing::Unfit);
    assert!(!standings.answered(&store, POD, 6500));
    assert_eq!(standing(6500), Standing::Fit);
    assert_eq!(standings.read(&store).cold_share(POD, 6500), 1.0);
}

#[test]
fn ejections_double_up_to_a_minute() {
    let (store, standings) = pool();
    let mut now = 0;
    let mut times = Vec::new();
    for _ in 0..6 {
        standings.failed(&store, POD, now);
        let from = now;
        while standings.read(&store).standing(POD, now) == Standing::Unfit {
            now += 1000;
        }
        times.push((now - from) / 1000);
        assert!(standings.claim_probe(&store, POD, now));
    }
    assert_eq!(times, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn evidence_from_after_the_failure_brings_one_trial_forward() {
    let (store, standings) = pool();
    standings.serves(&store, POD, 500, 900);
    assert!(standings.read(&store).is_empty(), "nothing is unusual");
    standings.failed(&store, POD, 1000);
    let standing = |now| standings.read(&store).standing(POD, now);
    standings.serves(&store, POD, 1000, 1400);
    assert_eq!(standing(1400), Standing::Unfit, "asked before it failed");
    standings.serves(&store, POD, 1001, 1400);
    standings.serves(&store, POD, 1500, 1800);
    assert_eq!(standing(2899), Standing::Unfit);
    assert_eq!(standing(2900), Standing::Probe);
    assert!(standings.claim_probe(&store, POD, 3000));
    standings.serves(&store, POD, 3100, 3200);
    assert_eq!(standing(4700), Standing::Unfit, "one at a time");
    standings.failed(&store, POD, 4000);
    standings.serves(&store, POD, 8000, 8999);
    assert_eq!(standing(13_999), Standing::Unfit, "doubled");
    standings.serves(&store, POD, 8000, 9000);
    assert_eq!(standing(10_500), Standing::Probe);
    assert!(!standings.answered(&store, POD, 11_000));
    standings.failed(&store, POD, 12_000);
    standings.serves(&store, POD, 12_100, 12_200);
    assert_eq!(standing(13_700), Standing::Probe, "answers start anew");
}

/// When a pod is tried that fails each trial, and of which there is evidence once a second
/// from `from_s` on.
fn trials(from_s: u64) -> Vec<u64> {
    let (store, standings) = pool();
    let (mut times, mut writes) = (vec![], 0);
    for second in 0..600 {
        let now = second * 1000;
        if second > from_s {
            let before = store.get(&standings.key).unwrap().version;
            standings.serves(&store, POD, now - 1, now);
            writes += u64::from(store.get(&standings.key).unwrap().version != before);
        }
        let first = second == 0;
        if first || standings.claim_probe(&store, POD, now) {
            standings.failed(&store, POD, now);
            times.push(second);
        }
    }
    assert!(writes <= 5, "{writes}");
    times
}

#[test]
fn a_pod_that_answers_all_but_requests_gets_few_trials_early() {
    let without = trials(600);
    assert_eq!(without[..6], [0, 5, 15, 35, 75, 135]);
    let with = trials(0);
    assert_eq!(with[..7], [0, 3, 10, 22, 44, 86, 146]);
    assert!(with.len() <= without.len() + 1, "{with:?}");
    assert_eq!(trials(80)[..9], [0, 5, 15, 35, 75, 83, 90, 102, 124]);
}

#[test]
fn evidence_hides_no_restart() {
    let (store, standings) = pool();
    standings.failed(&store, POD, 0);
    assert!(standings.claim_probe(&store, POD, 5000));
    standings.failed(&store, POD, 5000);
    standings.serves(&store, POD, 9000, 9000);
    assert!(standings.claim_probe(&store, POD, GONE_MS + 500));
    assert_eq!(
        standings.read(&store).gone(GONE_MS + 1).next(),
        Some(POD),
        "still to be forgotten"
    );
    assert!(standings.answered(&store, POD, GONE_MS + 2));
    // Known to have restarted while it was ejected: it is new when it comes back.
    standings.failed(&store, POD, 100_000);
    standings.arrived(&store, POD, 101_000);
    standings.serves(&store, POD, 100_500, 101_000);
    assert!(standings.claim_probe(&store, POD, 102_500));
    assert!(!standings.answered(&store, POD, 103_000));
    assert_eq!(standings.read(&store).cold_share(POD, 103_000), 0.0);
}

#[test]
fn a_probe_without_a_result_is_followed_by_another() {
    let (store, standings) = pool();
    standings.failed(&store, POD, 0);
    assert!(standings.claim_probe(&store, POD, 5000));
    assert!(!standings.claim_probe(&store, POD, 9999));
    assert!(standings.claim_probe(&store, POD, 10_000));
}

#[test]
fn who_was_gone_is_forgotten_once_and_comes_back_as_new() {
    let (store, standings) = pool();
    standings.failed(&store, POD, 0);
    let gone = |now| standings.read(&store).gone(now).collect::<Vec<_>>();
    assert_eq!(gone(GONE_MS), []);
    assert_eq!(gone(GONE_MS + 1), [POD]);
    standings.forgotten(&store, POD);
    assert_eq!(gone(GONE_MS + 1), []);
    assert!(!standings.answered(&store, POD, 20_000), "was forgotten");
    let share = |now| standings.read(&store).cold_share(POD, now);
    assert_eq!(
        (share(20_000), share(35_000), share(60_000)),
        (0.0, 0.5, 1.0)
    );
    standings.tidy(&store, &[POD], 20_000 + STALE_MS);
    assert!(standings.read(&store).is_empty());
}

#[test]
fn an_answer_after_a_long_silence_says_to_forget() {
    let (store, standings) = pool();
    standings.failed(&store, POD, 0);
    assert!(standings.answered(&store, POD, GONE_MS + 1));
    assert!(!standings.answered(&store, POD, GONE_MS + 2));
}

#[test]
fn there_is_room_for_so_many_and_the_dead_leave() {
    let (store, standings) = pool();
    for pod in 0..2 * MAX_ENTRIES as u64 {
        standings.arrived(&store, PodKey(pod), 0);
    }
    let bytes = || store.get("prefix_router/p/standing.1").unwrap().bytes.len();
    assert_eq!(bytes(), MAX_ENTRIES * ENTRY_BYTES);
    standings.failed(&store, PodKey(1), 1);
    standings.tidy(&store, &[PodKey(1), PodKey(2)], 1);
    assert_eq!(bytes(), MAX_ENTRIES * ENTRY_BYTES, "others may know them");
    standings.failed(&store, PodKey(2), STALE_MS);
    standings.tidy(&store, &[PodKey(1), PodKey(2)], 2 * STALE_MS);
    assert_eq!(bytes(), 2 * ENTRY_BYTES);
    store.set(&standings.key, b"junk", Expect::Any).unwrap();
    assert_eq!(standings.read(&store).standing(PodKey(1), 0), Standing::Fit);
}
