//! Requests in flight per pod, over all workers.
//!
//! Owns one value in shared data per live VM, `prefix_router/<pool>/load/<place>`: an owner, a
//! lease on Envoy's monotonic clock, and the VM's own count for every pod (by table slot).
//! Only its owner writes a place, so counting needs no compare-and-swap; when a VM dies its
//! counts stop to matter as soon as its lease runs out, and the next VM takes the place over.
//! Invariant: own counts are exact; those of other workers are at most [`CACHED_MS`] old.
//! Cost: one `set` per change; one `get` per other worker at most every [`CACHED_MS`].

use crate::store::{Expect, SharedStore};
use core::cell::{Cell, RefCell};

/// How long a place belongs to a VM that does not write, in milliseconds. Every tick renews it.
pub const LEASE_MS: u64 = 10_000;
/// How old the other workers' counts may be, in milliseconds.
pub const CACHED_MS: u64 = 5;
/// Most VMs that can count at once; a VM without a place still counts for itself.
const MAX_PLACES: usize = 256;
/// Most pods that can be counted, as the table has at most that many slots.
const MAX_SLOTS: usize = 256;
const HEADER: usize = 16;

/// The requests in flight of one pool, as one VM sees them.
#[derive(Debug)]
pub struct LoadBoard {
    prefix: String,
    owner: u64,
    place: Cell<Option<usize>>,
    lease_until: Cell<u64>,
    own: RefCell<Vec<u32>>,
    others: RefCell<Others>,
}

#[derive(Debug, Default)]
struct Others {
    read_at: Option<u64>,
    running: Vec<u32>,
}

impl LoadBoard {
    /// The board of a pool. `owner` is a random number that no other VM has.
    pub fn new(pool: &str, owner: u64) -> Self {
        Self {
            prefix: format!("prefix_router/{pool}/load/"),
            owner,
            place: Cell::new(None),
            lease_until: Cell::new(0),
            own: RefCell::new(Vec::new()),
            others: RefCell::new(Others::default()),
        }
    }

    /// Counts a request that starts on the pod of `slot`.
    pub fn begin(&self, store: &dyn SharedStore, slot: usize, now_ms: u64) {
        self.change(store, slot, now_ms, |running| running.saturating_add(1));
    }

    /// Counts a request that ended on the pod of `slot`.
    pub fn end(&self, store: &dyn SharedStore, slot: usize, now_ms: u64) {
        self.change(store, slot, now_ms, |running| running.saturating_sub(1));
    }

    /// Keeps this VM's place; to be called on every tick.
    pub fn renew(&self, store: &dyn SharedStore, now_ms: u64) {
        if self.place.get().is_some() || self.own.borrow().iter().any(|n| *n > 0) {
            self.publish(store, now_ms);
        }
    }

    /// Requests in flight on each of `slots`, over all workers.
    pub fn running(&self, store: &dyn SharedStore, slots: &[usize], now_ms: u64) -> Vec<u32> {
        self.refresh(store, now_ms);
        let (own, others) = (self.own.borrow(), self.others.borrow());
        let at = |counts: &[u32], slot: usize| counts.get(slot).copied().unwrap_or(0);
        slots
            .iter()
            .map(|slot| at(&own, *slot).saturating_add(at(&others.running, *slot)))
            .collect()
    }

    fn change(&self, store: &dyn SharedStore, slot: usize, now_ms: u64, f: impl Fn(u32) -> u32) {
        if slot >= MAX_SLOTS {
            return;
        }
        if let Ok(mut own) = self.own.try_borrow_mut() {
            if own.len() <= slot {
                own.resize(slot.saturating_add(1), 0);
            }
            if let Some(running) = own.get_mut(slot) {
                *running = f(*running);
            }
        }
        self.publish(store, now_ms);
    }

    fn publish(&self, store: &dyn SharedStore, now_ms: u64) {
        if now_ms >= self.lease_until.get() {
            self.claim(store, now_ms);
        }
        let Some(place) = self.place.get() else {
            return;
        };
        let value = self.value(now_ms);
        if store.set(&self.key(place), &value, Expect::Any).is_ok() {
            self.lease_until.set(now_ms.saturating_add(LEASE_MS));
        }
    }

    /// Finds a place that nobody owns, or the own one again.
    fn claim(&self, store: &dyn SharedStore, now_ms: u64) {
        self.place.set(None);
        let value = self.value(now_ms);
        for place in 0..MAX_PLACES {
            let expect = match store.get(&self.key(place)) {
                None => Expect::Absent,
                Some(found) => match parse(&found.bytes) {
                    Some((owner, until, _)) if owner != self.owner && until > now_ms => continue,
                    _ => Expect::Version(found.version),
                },
            };
            if store.set(&self.key(place), &value, expect).is_ok() {
                self.place.set(Some(place));
                self.lease_until.set(now_ms.saturating_add(LEASE_MS));
                return;
            }
        }
    }

    fn refresh(&self, store: &dyn SharedStore, now_ms: u64) {
        let Ok(mut others) = self.others.try_borrow_mut() else {
            return;
        };
        if others
            .read_at
            .is_some_and(|at| now_ms < at.saturating_add(CACHED_MS))
        {
            return;
        }
        others.read_at = Some(now_ms);
        others.running.clear();
        for place in 0..MAX_PLACES {
            if Some(place) == self.place.get() {
                continue;
            }
            // Places are taken lowest first, so the first absent one ends the list.
            let Some(found) = store.get(&self.key(place)) else {
                break;
            };
            let Some((owner, until, counts)) = parse(&found.bytes) else {
                continue;
            };
            if owner == self.owner || until <= now_ms {
                continue;
            }
            for (slot, count) in counts.enumerate().take(MAX_SLOTS) {
                if others.running.len() <= slot {
                    others.running.resize(slot.saturating_add(1), 0);
                }
                if let Some(sum) = others.running.get_mut(slot) {
                    *sum = sum.saturating_add(count);
                }
            }
        }
    }

    fn key(&self, place: usize) -> String {
        format!("{}{place}", self.prefix)
    }

    fn value(&self, now_ms: u64) -> Vec<u8> {
        let own = self.own.borrow();
        let mut value = Vec::with_capacity(own.len().saturating_mul(4).saturating_add(HEADER));
        value.extend_from_slice(&self.owner.to_le_bytes());
        value.extend_from_slice(&now_ms.saturating_add(LEASE_MS).to_le_bytes());
        own.iter()
            .for_each(|running| value.extend_from_slice(&running.to_le_bytes()));
        value
    }
}

/// Owner, end of the lease, counts by slot.
fn parse(value: &[u8]) -> Option<(u64, u64, impl Iterator<Item = u32> + '_)> {
    let (owner, rest) = value.split_first_chunk::<8>()?;
    let (until, rest) = rest.split_first_chunk::<8>()?;
    let counts = rest
        .chunks_exact(4)
        .map(|count| count.try_into().map_or(0, u32::from_le_bytes));
    Some((
        u64::from_le_bytes(*owner),
        u64::from_le_bytes(*until),
        counts,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn own_counts_are_exact_and_others_appear_after_the_cache() {
        let (store, a, b) = (
            MemoryStore::default(),
            LoadBoard::new("p", 1),
            LoadBoard::new("p", 2),
        );
        assert_eq!(b.running(&store, &[0, 1], 100), [0, 0]);
        a.begin(&store, 0, 100);
        a.begin(&store, 1, 100);
        a.begin(&store, 1, 101);
        assert_eq!(a.running(&store, &[0, 1, 7], 101), [1, 2, 0]);
        assert_eq!(b.running(&store, &[0, 1], 104), [0, 0], "cached");
        assert_eq!(b.running(&store, &[0, 1], 105), [1, 2]);
        b.begin(&store, 1, 105);
        assert_eq!(b.running(&store, &[1], 105), [3]);
        a.end(&store, 1, 106);
        a.end(&store, 1, 106);
        a.end(&store, 0, 106);
        b.end(&store, 1, 106);
        assert_eq!(a.running(&store, &[0, 1], 200), [0, 0]);
        assert_eq!(b.running(&store, &[0, 1], 200), [0, 0]);
        assert_eq!(store.keys(), 2);
    }

    #[test]
    fn counts_of_a_dead_vm_expire_and_its_place_is_reused() {
        let (store, dead, live) = (
            MemoryStore::default(),
            LoadBoard::new("p", 1),
            LoadBoard::new("p", 2),
        );
        dead.begin(&store, 3, 0);
        assert_eq!(live.running(&store, &[3], 10), [1]);
        assert_eq!(live.running(&store, &[3], LEASE_MS), [0]);
        live.begin(&store, 3, LEASE_MS);
        assert_eq!(store.keys(), 1, "the place of the dead VM was taken");
    }

    #[test]
    fn a_vm_that_slept_past_its_lease_does_not_overwrite_the_new_owner() {
        let (store, slow, other) = (
            MemoryStore::default(),
            LoadBoard::new("p", 1),
            LoadBoard::new("p", 2),
        );
        slow.begin(&store, 0, 0);
        other.begin(&store, 1, LEASE_MS);
        slow.renew(&store, LEASE_MS + 1);
        assert_eq!(slow.running(&store, &[0, 1], LEASE_MS + 9), [1, 1]);
        assert_eq!(other.running(&store, &[0, 1], LEASE_MS + 9), [1, 1]);
        assert_eq!(store.keys(), 2);
    }

    #[test]
    fn renewing_keeps_a_long_request_counted() {
        let (store, a, b) = (
            MemoryStore::default(),
            LoadBoard::new("p", 1),
            LoadBoard::new("p", 2),
        );
        a.begin(&store, 0, 0);
        for second in 1..60 {
            a.renew(&store, second * 1000);
        }
        assert_eq!(b.running(&store, &[0], 60_000), [1]);
    }

    #[test]
    fn junk_and_ends_without_a_begin_do_no_harm() {
        let (store, a) = (MemoryStore::default(), LoadBoard::new("p", 1));
        store
            .set("prefix_router/p/load/0", b"junk", Expect::Any)
            .unwrap();
        a.end(&store, 0, 0);
        a.begin(&store, MAX_SLOTS, 0);
        assert_eq!(a.running(&store, &[0, MAX_SLOTS], 0), [0, 0]);
    }
}
