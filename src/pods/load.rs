//! The load of every pod, over all workers.
//!
//! Owns one value in shared data per live VM, `prefix_router/<pool>/load.1/<place>`: an owner, a
//! lease on Envoy's monotonic clock, what it learned of the prefill rate, and its own [`Lane`] for
//! every pod (by table slot). Only its owner writes a place, so counting needs no
//! compare-and-swap; when a VM dies its counts stop to matter as soon as its lease runs out, and
//! the next VM takes the place over.
//! Invariant: own counts are exact; those of other workers are at most [`CACHED_MS`] old; every
//! [`Ticket`] is counted until it is ended.
//! Cost: one `set` per change; one `get` per other worker at most every [`CACHED_MS`].

use super::lane::{Lane, Lanes, Queue, LANE_BYTES};
use super::rate::Rate;
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

/// One request that is counted on a pod.
#[derive(Debug)]
pub struct Ticket {
    slot: usize,
    /// Its place in the queue of those whose first byte has not been seen.
    waiting: Option<u64>,
    begun_ms: u64,
    tokens: u32,
}

/// What is known of a pod's load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Requests in flight.
    pub running: u32,
    /// Tokens of prefill that it has not done yet.
    pub backlog: f64,
    /// When the first byte of an answer was last seen; 0: not yet.
    pub last_first_ms: u64,
}

/// The loads of one pool, as one VM sees them.
#[derive(Debug)]
pub struct LoadBoard {
    prefix: String,
    owner: u64,
    place: Cell<Option<usize>>,
    lease_until: Cell<u64>,
    own: RefCell<Vec<Queue>>,
    rate: Cell<Rate>,
    others: RefCell<Others>,
}

#[derive(Debug, Default)]
struct Others {
    read_at: Option<u64>,
    lanes: Vec<Lanes>,
    rate: Rate,
    /// VMs that hold a place.
    live: u64,
}

impl LoadBoard {
    /// The board of a pool. `owner` is a random number that no other VM has.
    pub fn new(pool: &str, owner: u64) -> Self {
        Self {
            prefix: format!("prefix_router/{pool}/load.1/"),
            owner,
            place: Cell::new(None),
            lease_until: Cell::new(0),
            own: RefCell::new(Vec::new()),
            rate: Cell::new(Rate::default()),
            others: RefCell::new(Others::default()),
        }
    }

    /// The random number of this VM.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Counts a request that starts on the pod of `slot`, which has to prefill `tokens` for it.
    pub fn begin(&self, store: &dyn SharedStore, slot: usize, tokens: u32, now_ms: u64) -> Ticket {
        let waiting = self.change(slot, |queue| queue.push(tokens, now_ms));
        self.publish(store, now_ms);
        Ticket {
            slot,
            waiting,
            begun_ms: now_ms,
            tokens,
        }
    }

    /// The first byte of the answer: its prefill is done. A good answer says how fast the pods
    /// are, from `start` tokens per second on.
    pub fn first_byte(
        &self,
        store: &dyn SharedStore,
        ticket: &mut Ticket,
        start: Option<f64>,
        now_ms: u64,
    ) {
        let Some(waiting) = ticket.waiting.take() else {
            return;
        };
        if let Some(start) = start {
            self.refresh(store, now_ms);
            let since = self.lanes(ticket.slot).last_first_ms.max(ticket.begun_ms);
            let mut rate = self.rate.get();
            rate.learn(
                ticket.tokens,
                now_ms.saturating_sub(since),
                self.known_rate(start),
            );
            self.rate.set(rate);
        }
        self.change(ticket.slot, |queue| queue.first_byte(waiting, now_ms));
        self.publish(store, now_ms);
    }

    /// Ends a request, however it went.
    pub fn end(&self, store: &dyn SharedStore, ticket: Ticket, now_ms: u64) {
        self.change(ticket.slot, |queue| queue.end(ticket.waiting, now_ms));
        self.publish(store, now_ms);
    }

    /// Keeps this VM's place; to be called on every tick.
    pub fn renew(&self, store: &dyn SharedStore, now_ms: u64) {
        self.publish(store, now_ms);
    }

    /// VMs that hold a place, this one among them. One that crashed is missing after [`LEASE_MS`].
    pub fn live(&self, store: &dyn SharedStore, now_ms: u64) -> u64 {
        self.refresh(store, now_ms);
        let others = self.others.try_borrow().map_or(0, |others| others.live);
        others.saturating_add(self.place.get().is_some().into())
    }

    /// The load of each of `slots`, over all workers. `start`: tokens of prefill per second
    /// before anything was learned. Also gives that rate as it is known now.
    pub fn read(
        &self,
        store: &dyn SharedStore,
        slots: &[usize],
        start: f64,
        now_ms: u64,
    ) -> (Vec<Load>, f64) {
        self.refresh(store, now_ms);
        let rate = self.known_rate(start);
        let load = |slot: &usize| {
            let lanes = self.lanes(*slot);
            Load {
                running: lanes.running,
                backlog: lanes.backlog(rate, now_ms),
                last_first_ms: lanes.last_first_ms,
            }
        };
        (slots.iter().map(load).collect(), rate)
    }

    fn known_rate(&self, start: f64) -> f64 {
        let others = self.others.try_borrow();
        let others = others.map_or_else(|_| Rate::default(), |others| others.rate);
        self.rate.get().with(others).tokens_per_second(start)
    }

    /// All workers' lanes of a slot.
    fn lanes(&self, slot: usize) -> Lanes {
        let mut lanes = Lanes::default();
        if let Ok(others) = self.others.try_borrow() {
            lanes = others.lanes.get(slot).copied().unwrap_or_default();
        }
        if let Some(queue) = self
            .own
            .try_borrow()
            .ok()
            .as_ref()
            .and_then(|o| o.get(slot))
        {
            lanes.add(&queue.lane());
        }
        lanes
    }

    fn change<T>(&self, slot: usize, change: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        if slot >= MAX_SLOTS {
            return None;
        }
        let mut own = self.own.try_borrow_mut().ok()?;
        if own.len() <= slot {
            own.resize_with(slot.saturating_add(1), Queue::default);
        }
        own.get_mut(slot).map(change)
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
                Some(found) => match Value::parse(&found.bytes) {
                    Some(v) if v.owner != self.owner && v.until > now_ms => continue,
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
        let fresh = |at: u64| now_ms < at.saturating_add(CACHED_MS);
        if others.read_at.is_some_and(fresh) {
            return;
        }
        others.read_at = Some(now_ms);
        others.lanes.clear();
        others.live = 0;
        others.rate = Rate::default();
        for place in 0..MAX_PLACES {
            if Some(place) == self.place.get() {
                continue;
            }
            // Places are taken lowest first, so the first absent one ends the list.
            let Some(found) = store.get(&self.key(place)) else {
                break;
            };
            let Some(value) = Value::parse(&found.bytes) else {
                continue;
            };
            if value.owner == self.owner || value.until <= now_ms {
                continue;
            }
            others.rate = others.rate.with(value.rate);
            others.live = others.live.saturating_add(1);
            for (slot, lane) in value.lanes().enumerate().take(MAX_SLOTS) {
                if others.lanes.len() <= slot {
                    others
                        .lanes
                        .resize(slot.saturating_add(1), Lanes::default());
                }
                if let Some(lanes) = others.lanes.get_mut(slot) {
                    lanes.add(&lane);
                }
            }
        }
    }

    fn key(&self, place: usize) -> String {
        format!("{}{place}", self.prefix)
    }

    fn value(&self, now_ms: u64) -> Vec<u8> {
        let Ok(own) = self.own.try_borrow() else {
            return Vec::new();
        };
        let lanes = own.len().saturating_mul(LANE_BYTES);
        let mut value = Vec::with_capacity(lanes.saturating_add(24));
        value.extend_from_slice(&self.owner.to_le_bytes());
        value.extend_from_slice(&now_ms.saturating_add(LEASE_MS).to_le_bytes());
        value.extend_from_slice(&self.rate.get().to_bytes());
        for queue in own.iter() {
            value.extend_from_slice(&queue.lane().to_bytes());
        }
        value
    }
}

/// One place, read.
struct Value<'a> {
    owner: u64,
    until: u64,
    rate: Rate,
    lanes: &'a [u8],
}

impl<'a> Value<'a> {
    fn parse(value: &'a [u8]) -> Option<Self> {
        let (owner, rest) = value.split_first_chunk::<8>()?;
        let (until, rest) = rest.split_first_chunk::<8>()?;
        let (rate, lanes) = rest.split_first_chunk::<8>()?;
        Some(Value {
            owner: u64::from_le_bytes(*owner),
            until: u64::from_le_bytes(*until),
            rate: Rate::from_bytes(*rate),
            lanes,
        })
    }

    fn lanes(&self) -> impl Iterator<Item = Lane> + use<'a> {
        let lanes = self.lanes.chunks_exact(LANE_BYTES);
        lanes.filter_map(|bytes| bytes.first_chunk().map(Lane::from_bytes))
    }
}

#[cfg(test)]
mod tests;
