use super::*;
use crate::store::MemoryStore;

const START: f64 = 1000.0;

fn board(owner: u64) -> LoadBoard {
    LoadBoard::new("p", owner)
}

fn running(board: &LoadBoard, store: &MemoryStore, slots: &[usize], now: u64) -> Vec<u32> {
    let (loads, _) = board.read(store, slots, START, now);
    loads.into_iter().map(|load| load.running).collect()
}

fn backlog(board: &LoadBoard, store: &MemoryStore, now: u64) -> f64 {
    board.read(store, &[0], START, now).0[0].backlog
}

#[test]
fn own_counts_are_exact_and_others_appear_after_the_cache() {
    let (store, a, b) = (MemoryStore::default(), board(1), board(2));
    assert_eq!(running(&b, &store, &[0, 1], 100), [0, 0]);
    let on_0 = a.begin(&store, 0, 0, 100);
    let on_1 = a.begin(&store, 1, 0, 100);
    let also_1 = a.begin(&store, 1, 0, 101);
    assert_eq!(running(&a, &store, &[0, 1, 7], 101), [1, 2, 0]);
    assert_eq!(running(&b, &store, &[0, 1], 104), [0, 0], "cached");
    assert_eq!(running(&b, &store, &[0, 1], 105), [1, 2]);
    let mut of_b = b.begin(&store, 1, 0, 105);
    assert_eq!(running(&b, &store, &[1], 105), [3]);
    for ticket in [on_1, also_1, on_0] {
        a.end(&store, ticket, 106);
    }
    b.first_byte(&store, &mut of_b, Some(START), 106);
    b.end(&store, of_b, 106);
    assert_eq!(running(&a, &store, &[0, 1], 200), [0, 0]);
    assert_eq!(running(&b, &store, &[0, 1], 200), [0, 0]);
    assert_eq!(store.keys(), 2);
}

#[test]
fn the_oldest_prefill_shrinks_with_time_and_the_others_wait_for_it() {
    let (store, a, b) = (MemoryStore::default(), board(1), board(2));
    let mut first = a.begin(&store, 0, 500, 1000);
    let mut second = b.begin(&store, 0, 300, 1100);
    assert_eq!(
        backlog(&b, &store, 1100).round(),
        700.0,
        "100 of 500 are done"
    );
    assert_eq!(backlog(&a, &store, 1110).round(), 690.0);
    assert_eq!(
        backlog(&a, &store, 9000),
        300.0,
        "stuck: the rest still waits"
    );
    a.first_byte(&store, &mut first, None, 9000);
    assert_eq!(
        backlog(&b, &store, 9100).round(),
        200.0,
        "its turn came at 9000"
    );
    b.first_byte(&store, &mut second, None, 9200);
    assert_eq!(backlog(&a, &store, 9300).round(), 0.0);
    a.end(&store, first, 9400);
    b.end(&store, second, 9400);
    assert_eq!(running(&a, &store, &[0], 9500), [0]);
}

#[test]
fn an_abort_takes_its_tokens_along() {
    let (store, a) = (MemoryStore::default(), board(1));
    let first = a.begin(&store, 0, 500, 0);
    let second = a.begin(&store, 0, 300, 0);
    let third = a.begin(&store, 0, 200, 0);
    a.end(&store, second, 100);
    assert_eq!(backlog(&a, &store, 100).round(), 600.0);
    a.end(&store, first, 200);
    assert_eq!(backlog(&a, &store, 200).round(), 200.0);
    a.end(&store, third, 300);
    assert_eq!(backlog(&a, &store, 300).round(), 0.0);
}

#[test]
fn the_rate_is_learned_from_first_bytes_of_all_workers() {
    let (store, a, b) = (MemoryStore::default(), board(1), board(2));
    a.read(&store, &[0], START, 0);
    for turn in 0..200 {
        let mut ticket = a.begin(&store, 0, 4000, turn * 2000);
        a.first_byte(&store, &mut ticket, Some(START), turn * 2000 + 1000);
        a.end(&store, ticket, turn * 2000 + 1500);
    }
    for board in [&a, &b] {
        let (_, rate) = board.read(&store, &[0], START, 400_000);
        assert!((3500.0..4100.0).contains(&rate), "{rate}");
    }
}

#[test]
fn counts_of_a_dead_vm_expire_and_its_place_is_reused() {
    let (store, dead, live) = (MemoryStore::default(), board(1), board(2));
    dead.begin(&store, 3, 9, 0);
    assert_eq!(running(&live, &store, &[3], 10), [1]);
    assert_eq!(running(&live, &store, &[3], LEASE_MS), [0]);
    live.begin(&store, 3, 9, LEASE_MS);
    assert_eq!(store.keys(), 1, "the place of the dead VM was taken");
}

#[test]
fn a_vm_that_slept_past_its_lease_does_not_overwrite_the_new_owner() {
    let (store, slow, other) = (MemoryStore::default(), board(1), board(2));
    slow.begin(&store, 0, 9, 0);
    other.begin(&store, 1, 9, LEASE_MS);
    slow.renew(&store, LEASE_MS + 1);
    assert_eq!(running(&slow, &store, &[0, 1], LEASE_MS + 9), [1, 1]);
    assert_eq!(running(&other, &store, &[0, 1], LEASE_MS + 9), [1, 1]);
    assert_eq!(store.keys(), 2);
}

#[test]
fn renewing_keeps_a_long_request_counted() {
    let (store, a, b) = (MemoryStore::default(), board(1), board(2));
    a.begin(&store, 0, 9, 0);
    for second in 1..60 {
        a.renew(&store, second * 1000);
    }
    assert_eq!(running(&b, &store, &[0], 60_000), [1]);
}

#[test]
fn junk_and_slots_out_of_range_do_no_harm() {
    let (store, a) = (MemoryStore::default(), board(1));
    store
        .set("prefix_router/p/load.1/0", b"junk", Expect::Any)
        .unwrap();
    let mut ticket = a.begin(&store, MAX_SLOTS, 9, 0);
    a.first_byte(&store, &mut ticket, Some(START), 1);
    a.end(&store, ticket, 2);
    assert_eq!(running(&a, &store, &[0, MAX_SLOTS], 2), [0, 0]);
}
