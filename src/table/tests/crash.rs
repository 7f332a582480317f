//! A writer that dies between any two of its host calls.

use super::*;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Lets `left` calls through and then dies, as a VM that traps.
struct Dying<'a> {
    store: &'a MemoryStore,
    left: Cell<u32>,
}

struct Death;

impl Dying<'_> {
    fn call(&self) {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => std::panic::resume_unwind(Box::new(Death)),
        }
    }
}

impl SharedStore for Dying<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.call();
        self.store.get(key)
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        self.call();
        self.store.set(key, bytes, expect)
    }
}

/// Runs `operation` on fresh state from `prepare`, dying after 0, 1, 2, … calls until it gets
/// through, and `check`s each time. Returns how many calls it takes.
fn at_every_call<S>(
    prepare: impl Fn(&Table, &MemoryStore) -> S,
    operation: impl Fn(&Table, &dyn SharedStore, &S),
    check: impl Fn(&Table, &MemoryStore, &S),
) -> u32 {
    for calls in 0.. {
        let store = MemoryStore::default();
        let state = prepare(&Table::new("p", geometry(2, 128)), &store);
        let dying = Dying {
            store: &store,
            left: Cell::new(calls),
        };
        let run = || operation(&Table::new("p", geometry(2, 128)), &dying, &state);
        let survived = catch_unwind(AssertUnwindSafe(run)).is_ok();
        // A worker that has just started sees what is left.
        let table = Table::new("p", geometry(2, 128));
        validate(&table, &store, false);
        check(&table, &store, &state);
        validate(&table, &store, false);
        if survived {
            return calls;
        }
    }
    unreachable!()
}

const CAPACITY: u32 = 128;

/// The slot of a full pod: 32 prompts of 4 chunks, and the last of them again.
fn full(table: &Table, store: &MemoryStore) -> Slot {
    let slot = slots(table, store, 1)[0];
    for id in 0..32 {
        notify(table, store, &prompt(0, id, 4), slot, CAPACITY);
    }
    assert_eq!(table.occupancy(store, slot), CAPACITY);
    slot
}

/// Chunks that queries of all known prompts see.
fn seen(table: &Table, store: &MemoryStore, slot: Slot) -> u32 {
    let old = (0..32)
        .map(|id| matched(table, store, &prompt(0, id, 4), slot))
        .sum::<u32>();
    old + matched(table, store, &prompt(0, 99, 100), slot)
        + matched(table, store, &prompt(0, 98, 100), slot)
}

#[test]
fn of_a_notify_that_evicts() {
    let calls = at_every_call(
        full,
        |table, store, slot| {
            notify(table, store, &prompt(0, 99, 100), *slot, CAPACITY);
        },
        |table, store, slot| {
            assert!(seen(table, store, *slot) <= CAPACITY, "T2");
            // The next notify works, and mends what was left behind.
            let done = notify(table, store, &prompt(0, 98, 100), *slot, CAPACITY);
            assert_eq!((done.stored, done.dropped), (100, 0));
            assert_eq!(matched(table, store, &prompt(0, 98, 100), *slot), 100);
            assert!(seen(table, store, *slot) <= CAPACITY, "T2");
            let watermark = table.read_slots(store).0.get(slot.index).unwrap().watermark;
            let floor = table.read_ring(store, slot.index).0.unwrap().floor();
            assert!(!watermark.is_before(floor), "the watermark was mended");
            // Counting too much heals as epochs die.
            for id in 200..264 {
                notify(table, store, &prompt(0, id, 4), *slot, CAPACITY);
            }
            validate(table, store, true);
            let kept = table.occupancy(store, *slot);
            assert!(kept >= CAPACITY - CAPACITY / 8 - 4, "{kept} kept");
        },
    );
    assert!(calls >= 8, "slots, pages, ring, watermark, pages: {calls}");
}

#[test]
fn of_a_notify_that_touches() {
    at_every_call(
        full,
        |table, store, slot| {
            notify(table, store, &prompt(0, 0, 4), *slot, CAPACITY);
        },
        |table, store, slot| assert_eq!(seen(table, store, *slot), CAPACITY, "nothing is lost"),
    );
}

#[test]
fn of_an_undo() {
    let calls = at_every_call(
        |table, store| {
            let slot = slots(table, store, 1)[0];
            notify(table, store, &prompt(2, 0, 4), slot, CAPACITY);
            let receipt = notify(table, store, &prompt(2, 1, 100), slot, CAPACITY).receipt;
            (slot, receipt.expect("98 chunks"))
        },
        |table, store, (_, receipt)| {
            table.undo(store, &prompt(2, 1, 100), receipt.clone());
        },
        |table, store, (slot, _)| {
            assert_eq!(matched(table, store, &prompt(2, 0, 4), *slot), 4, "T8");
            let done = notify(table, store, &prompt(2, 1, 100), *slot, CAPACITY);
            assert_eq!(
                (
                    done.stored,
                    matched(table, store, &prompt(2, 1, 100), *slot)
                ),
                (100, 100)
            );
        },
    );
    assert!(calls >= 6, "{calls}");
}

#[test]
fn of_a_forget() {
    let calls = at_every_call(
        |table, store| {
            let slot = full(table, store);
            // Leaves the current epoch with room.
            notify(table, store, &prompt(0, 0, 4), slot, CAPACITY);
            slot
        },
        |table, store, slot| assert!(table.forget(store, *slot)),
        |table, store, slot| {
            let left = seen(table, store, *slot);
            assert!(left == 0 || left == CAPACITY, "all or nothing");
            notify(table, store, &prompt(0, 99, 4), *slot, CAPACITY);
            let new = matched(table, store, &prompt(0, 99, 4), *slot);
            assert_eq!(new, 4, "what comes later counts");
            assert!(table.forget(store, *slot));
            assert_eq!(
                (seen(table, store, *slot), table.occupancy(store, *slot)),
                (0, 0),
                "T7"
            );
            notify(table, store, &prompt(0, 3, 4), *slot, CAPACITY);
            assert_eq!(seen(table, store, *slot), 4);
        },
    );
    assert_eq!(calls, 4);
}

#[test]
fn of_a_slot_changing_hands() {
    let calls = at_every_call(
        |table, store| {
            let both = slots(table, store, 2);
            notify(table, store, &prompt(0, 0, 4), both[0], CAPACITY);
            notify(table, store, &prompt(0, 1, 4), both[1], CAPACITY);
            both
        },
        |table, store, _| {
            table
                .slot(store, pod(7), &[pod(1), pod(7)])
                .expect("the slot of the gone");
        },
        |table, store, both| {
            // The old owner, if it still is one, can go on.
            let back = table.slot(store, pod(0), &[pod(0), pod(1)]);
            let back = back.expect("nobody else uses it");
            notify(table, store, &prompt(0, 2, 4), back, CAPACITY);
            assert_eq!(matched(table, store, &prompt(0, 2, 4), back), 4);
            assert_eq!(
                matched(table, store, &prompt(0, 1, 4), both[1]),
                4,
                "the other is untouched"
            );
            let new = table
                .slot(store, pod(7), &[pod(1), pod(7)])
                .expect("the slot of the gone");
            for id in 0..3 {
                assert_eq!(
                    matched(table, store, &prompt(0, id, 4), new),
                    0,
                    "T6: nothing is revived"
                );
            }
        },
    );
    assert_eq!(calls, 4);
}
