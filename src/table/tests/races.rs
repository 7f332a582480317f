//! Two writers, one of which runs between two host calls of the other.

use super::*;
use std::cell::{Cell, RefCell};

/// What the other writer does, once.
type Other<'a> = Box<dyn FnOnce(&MemoryStore) + 'a>;

/// Runs the other writer before call number `at`.
struct Interrupted<'a> {
    store: &'a MemoryStore,
    calls: Cell<u32>,
    at: u32,
    other: RefCell<Option<Other<'a>>>,
}

impl Interrupted<'_> {
    fn call(&self) {
        let call = self.calls.get();
        self.calls.set(call + 1);
        if call == self.at {
            if let Some(other) = self.other.take() {
                other(self.store);
            }
        }
    }
}

impl SharedStore for Interrupted<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.call();
        self.store.get(key)
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        self.call();
        self.store.set(key, bytes, expect)
    }
}

/// A fresh worker.
fn worker() -> Table {
    Table::new("p", geometry(2, 256))
}

/// One pod that holds the first 20 chunks of prompt 0, with the receipt for its last 8.
struct Setup {
    slot: Slot,
    receipt: Receipt,
}

const CAPACITY: u32 = 256;

fn setup(store: &MemoryStore) -> Setup {
    let slot = slots(&worker(), store, 1)[0];
    notify(&worker(), store, &prompt(12, 0, 12), slot, CAPACITY);
    let receipt = notify(&worker(), store, &prompt(12, 0, 20), slot, CAPACITY).receipt;
    Setup {
        slot,
        receipt: receipt.expect("8 chunks"),
    }
}

/// Runs `one` with `other` before each of its calls in turn, and `check`s each outcome.
fn at_every_call(
    one: impl Fn(&dyn SharedStore, &Setup),
    other: impl Fn(&MemoryStore, &Setup),
    check: impl Fn(&MemoryStore, &Setup, u32),
) {
    for at in 0.. {
        let store = MemoryStore::default();
        let setup = setup(&store);
        let run: Other = Box::new(|store| other(store, &setup));
        let interrupted = Interrupted {
            store: &store,
            calls: Cell::new(0),
            at,
            other: RefCell::new(Some(run)),
        };
        one(&interrupted, &setup);
        let done = interrupted.other.borrow().is_some();
        drop(interrupted);
        if done {
            assert!(at >= 3, "only {at} calls");
            return;
        }
        validate(&worker(), &store, false);
        check(&store, &setup, at);
    }
}

fn stores(setup: &Setup, store: &dyn SharedStore, chain: &[ChunkHash], capacity: u32) {
    let table = worker();
    let done = notify(&table, store, chain, setup.slot, capacity);
    assert_eq!(done.dropped, 0);
    assert_eq!(table.stats().dropped_notifies, 0);
}

fn holds(store: &MemoryStore, setup: &Setup, chain: &[ChunkHash]) -> u32 {
    matched(&worker(), store, chain, setup.slot)
}

#[test]
fn the_same_prompt_twice() {
    let chain = prompt(12, 0, 100);
    at_every_call(
        |store, setup| stores(setup, store, &chain, CAPACITY),
        |store, setup| stores(setup, store, &chain, CAPACITY),
        |store, setup, at| {
            assert_eq!(holds(store, setup, &chain), 100, "T5");
            // What both inserted counts once; the 20 that both moved may count twice for a while.
            let counted = worker().occupancy(store, setup.slot);
            assert!((100..=120).contains(&counted), "{counted} at {at}");
        },
    );
}

/// Only the first of two that were looked up at one time finds nothing.
#[test]
fn the_second_of_two_finds_what_the_first_stored() {
    let store = MemoryStore::default();
    let setup = setup(&store);
    let (one, other) = (worker(), worker());
    for (shared, id, len) in [(0, 7, 100), (12, 8, 60)] {
        let chain = prompt(shared, id, len);
        let queries = [&one, &other].map(|table| table.query(&store, &chain, &[setup.slot]));
        let [first, second] = queries;
        let first = one.notify(&store, &chain, setup.slot, CAPACITY, first);
        assert_eq!(first.found, shared as u32);
        let second = other.notify(&store, &chain, setup.slot, CAPACITY, second);
        assert_eq!(second.found, len as u32);
        assert_eq!(second.receipt, None);
    }
}

#[test]
fn two_prompts_that_part() {
    let (one, other) = (prompt(12, 1, 100), prompt(12, 2, 70));
    at_every_call(
        |store, setup| stores(setup, store, &one, CAPACITY),
        |store, setup| stores(setup, store, &other, CAPACITY),
        |store, setup, at| {
            assert_eq!(
                (holds(store, setup, &one), holds(store, setup, &other)),
                (100, 70),
                "T5"
            );
            let counted = worker().occupancy(store, setup.slot);
            assert!(
                (166..=178).contains(&counted),
                "{counted} at {at}: the 12 that both moved"
            );
        },
    );
}

#[test]
fn two_prompts_of_which_one_evicts() {
    let (one, other) = (prompt(0, 1, 30), prompt(0, 2, 30));
    at_every_call(
        |store, setup| stores(setup, store, &one, 48),
        |store, setup| stores(setup, store, &other, 48),
        |store, setup, at| {
            let all = [&one, &other, &prompt(12, 0, 20)];
            let seen: u32 = all.iter().map(|chain| holds(store, setup, chain)).sum();
            assert!(seen <= 48, "T2: {seen} at {at}");
            let whole = all
                .iter()
                .filter(|chain| holds(store, setup, chain) == 30)
                .count();
            assert!(whole >= 1, "the later of the two is whole");
        },
    );
}

#[test]
fn a_forget_beats_a_notify_under_way() {
    let chain = prompt(12, 0, 100);
    at_every_call(
        |store, setup| {
            notify(&worker(), store, &chain, setup.slot, CAPACITY);
        },
        |store, setup| assert!(worker().forget(store, setup.slot)),
        |store, setup, at| {
            // Reads come first: slots, two pages, and the ring. Until the ring is written, the
            // notify counts as later than the forget.
            let held = holds(store, setup, &chain);
            assert!(held == 0 || (held == 100 && at <= 4), "T7: {held} at {at}");
            assert_eq!(worker().occupancy(store, setup.slot), held);
            notify(&worker(), store, &prompt(12, 0, 20), setup.slot, CAPACITY);
            assert_eq!(
                holds(store, setup, &prompt(12, 0, 20)),
                20,
                "what comes later counts"
            );
        },
    );
}

#[test]
fn a_notify_during_a_forget() {
    let chain = prompt(12, 0, 100);
    at_every_call(
        |store, setup| assert!(worker().forget(store, setup.slot)),
        |store, setup| stores(setup, store, &chain, CAPACITY),
        |store, setup, _| {
            let held = holds(store, setup, &chain);
            assert!(held == 0, "T7: {held}");
            assert_eq!(worker().occupancy(store, setup.slot), 0);
        },
    );
}

#[test]
fn a_slot_that_changes_hands_during_a_notify() {
    let chain = prompt(12, 0, 100);
    at_every_call(
        |store, setup| {
            notify(&worker(), store, &chain, setup.slot, CAPACITY);
        },
        |store, setup| {
            let live = [pod(8), pod(9)];
            for pod in live {
                let slot = worker().slot(store, pod, &live).expect("a slot");
                notify(&worker(), store, &prompt(0, 7, 30), slot, CAPACITY);
            }
            let taken = worker().read_slots(store).0.resolve(setup.slot);
            assert_eq!(taken, None);
        },
        |store, setup, at| {
            assert_eq!(holds(store, setup, &chain), 0, "the old owner is gone");
            for new in [8, 9] {
                let slot = worker()
                    .slot(store, pod(new), &[pod(8), pod(9)])
                    .expect("a slot");
                assert_eq!(
                    matched(&worker(), store, &chain, slot),
                    0,
                    "credit of another, at {at}"
                );
                notify(&worker(), store, &chain, slot, CAPACITY);
                assert_eq!(matched(&worker(), store, &chain, slot), 100);
                let own = matched(&worker(), store, &prompt(0, 7, 30), slot);
                assert_eq!(own, 30, "the new owner keeps its own, at {at}");
            }
        },
    );
}

#[test]
fn two_pods_that_want_the_last_slot() {
    let live = [pod(0), pod(8), pod(9)];
    let got = Cell::new(None);
    at_every_call(
        |store, _| got.set(worker().slot(store, pod(8), &live)),
        |store, _| {
            worker().slot(store, pod(9), &live);
        },
        |store, setup, _| {
            let (view, _) = worker().read_slots(store);
            let owners = [8, 9].map(|number| view.find(pod(number)));
            assert_eq!(owners.iter().flatten().count(), 1, "one of them");
            assert_eq!(got.get().map(|slot| slot.index), owners[0], "and it knows");
            assert_eq!(holds(store, setup, &prompt(12, 0, 20)), 20);
        },
    );
}

#[test]
fn an_undo_of_what_another_touches() {
    let chain = prompt(12, 0, 20);
    at_every_call(
        |store, setup| {
            worker().undo(store, &chain, setup.receipt.clone());
        },
        |store, setup| {
            notify(&worker(), store, &chain, setup.slot, CAPACITY);
        },
        |store, setup, at| {
            assert_eq!(
                holds(store, setup, &chain),
                20,
                "T8: touched since, at {at}"
            );
        },
    );
}

#[test]
fn a_notify_of_what_another_takes_back() {
    let chain = prompt(12, 0, 100);
    at_every_call(
        |store, setup| {
            notify(&worker(), store, &chain, setup.slot, CAPACITY);
        },
        |store, setup| {
            worker().undo(store, &prompt(12, 0, 20), setup.receipt.clone());
        },
        |store, setup, at| {
            let held = holds(store, setup, &chain);
            assert!(
                held == 12 || held == 100,
                "{held} at {at}: all, or it is dropped from there on"
            );
            notify(&worker(), store, &chain, setup.slot, CAPACITY);
            assert_eq!(holds(store, setup, &chain), 100);
        },
    );
}

/// A store where every write of a page is lost to somebody else.
struct Contended<'a>(&'a MemoryStore);

impl SharedStore for Contended<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.0.get(key)
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        if key.contains("/page/") {
            return Err(Conflict);
        }
        self.0.set(key, bytes, expect)
    }
}

#[test]
fn a_notify_that_always_loses_is_dropped_and_counted() {
    let store = MemoryStore::default();
    let setup = setup(&store);
    let table = worker();
    let chain = prompt(0, 5, 100);
    let done = notify(&table, &Contended(&store), &chain, setup.slot, CAPACITY);
    assert_eq!((done.stored, done.dropped, done.receipt), (0, 100, None));
    assert_eq!(table.stats().dropped_notifies, 1);
    assert_eq!(table.stats().cas_retries, u64::from(RETRIES));
    assert_eq!(holds(&store, &setup, &prompt(12, 0, 20)), 20);
}
