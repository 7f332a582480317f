//! Storing a prompt for a pod.
//!
//! Order of writes, so that a worker that dies between any two leaves the counts too high, never
//! too low: charge the ring, raise the watermark if that evicted, write the pages (a full page's
//! mark before what went elsewhere), give back to the ring what moved or was not written.
//! Cost: a `get` and two `set`s of the ring, a `set` per changed page, one page swept.

use super::page::{Insert, Page, Pair};
use super::place::{self, LEVELS, STRIDE};
use super::query::{Pages, Positions, Query};
use super::ring::{self, Place, Ring};
use super::slots::{Slot, Slots};
use super::undo::Receipt;
use super::{Table, TRIES};
use crate::chunk::ChunkHash;
use crate::store::SharedStore;

/// What a notify did.
#[derive(Debug)]
pub struct Notified {
    /// For [`Table::undo`].
    pub receipt: Receipt,
    /// Leading chunks of the prompt that the pod holds now.
    pub stored: u32,
    /// Chunks of the pod that were evicted.
    pub evicted: u32,
    /// Whether other workers were first so often that some of it was given up.
    pub dropped: bool,
}

/// One chunk on its way into a page.
#[derive(Debug, Clone, Copy)]
struct Task {
    at: usize,
    hash: u64,
    place: Place,
}

/// What became of the tasks so far.
#[derive(Debug, Default)]
struct Outcome {
    /// Position and epoch of each chunk that was new.
    inserted: Vec<(u32, u32)>,
    /// Epochs that have a chunk less than the ring counts.
    give_back: Vec<u32>,
    /// First position that could not be stored.
    lost: Option<usize>,
    /// Given up after too many conflicts.
    dropped: bool,
}

/// One notify under way.
struct Work<'a> {
    table: &'a Table,
    store: &'a dyn SharedStore,
    chain: &'a [ChunkHash],
    slot: Slot,
    slots: Slots,
    pages: Pages,
    positions: Positions,
    outcome: Outcome,
}

impl Table {
    /// Stores the first `capacity` chunks of `chain` for a pod and evicts its least recently used
    /// ones. `query` is one of the same chain, best the one that was just made.
    pub fn notify(
        &self,
        store: &dyn SharedStore,
        chain: &[ChunkHash],
        slot: Slot,
        capacity: u32,
        query: Query,
    ) -> Notified {
        let capacity = capacity.min(self.geometry.max_capacity_chunks);
        let chain = chain.get(..capacity as usize).unwrap_or(chain);
        let Query {
            slots,
            pages,
            positions,
            ..
        } = query;
        let mut notified = Notified {
            receipt: Receipt::empty(slot),
            stored: 0,
            evicted: 0,
            dropped: false,
        };
        if chain.is_empty() || !slots.owns(slot) {
            return notified;
        }
        let outcome = Outcome::default();
        let mut work = Work {
            table: self,
            store,
            chain,
            slot,
            slots,
            pages,
            positions,
            outcome,
        };
        let Some((places, evicted)) = work.charge(capacity) else {
            self.count(|stats| &mut stats.dropped_notifies);
            notified.dropped = true;
            return notified;
        };
        let mut tasks = Vec::with_capacity(STRIDE);
        for (number, places) in places.chunks(STRIDE).enumerate() {
            let first = number.wrapping_mul(STRIDE);
            let hashes = chain.get(first..).unwrap_or_default();
            tasks.clear();
            tasks.extend(
                places
                    .iter()
                    .zip(hashes)
                    .enumerate()
                    .map(|(i, (place, hash))| Task {
                        at: first.wrapping_add(i),
                        hash: hash.0,
                        place: *place,
                    }),
            );
            work.write(0, &tasks);
        }
        let Outcome {
            inserted,
            give_back,
            lost,
            dropped,
        } = work.outcome;
        if dropped {
            self.count(|stats| &mut stats.dropped_notifies);
        }
        self.give_back(store, slot, &work.slots, &give_back);
        self.sweep(store, &work.slots);
        notified.stored = u32::try_from(lost.unwrap_or(places.len())).unwrap_or(u32::MAX);
        notified.receipt.inserted = inserted;
        notified.evicted = evicted;
        notified.dropped = dropped;
        notified
    }

    /// Takes chunks of these epochs out of the pod's counts.
    pub(super) fn give_back(
        &self,
        store: &dyn SharedStore,
        slot: Slot,
        slots: &Slots,
        epochs: &[u32],
    ) {
        if epochs.is_empty() {
            return;
        }
        for _ in 0..TRIES {
            let mut ring = self.ring(store, slot, slots);
            ring.give_back(epochs);
            if self.write_ring(store, slot, &ring) {
                return;
            }
        }
        // The counts stay too high until those epochs die.
        self.count(|stats| &mut stats.dropped_notifies);
    }

    /// Removes the dead chunks of one page, the next in turn, so that none lives until its epoch
    /// comes round again.
    fn sweep(&self, store: &dyn SharedStore, slots: &Slots) {
        let number = self.sweep.get();
        self.sweep.set(
            number
                .saturating_add(1)
                .checked_rem(self.pages)
                .unwrap_or(0),
        );
        let mut page = self.page(store, number);
        if page
            .all_pairs()
            .any(|pair| !slots.is_alive(pair.slot, pair.epoch))
        {
            page.retain(|_, pair| slots.is_alive(pair.slot, pair.epoch));
            let _ = self.write_page(store, number, &mut page);
        }
    }
}

impl Work<'_> {
    /// Charges the ring and raises the watermark. `None`: the pod was forgotten meanwhile, or
    /// other workers were first too often.
    fn charge(&mut self, capacity: u32) -> Option<(Vec<Place>, u32)> {
        let existing = self.existing();
        for _ in 0..TRIES {
            let mut ring = self.table.ring(self.store, self.slot, &self.slots);
            let seen = self.slots.entry(self.slot.index);
            if ring.generation != seen.generation {
                // Forgotten since the query; or a forget that died half-way, or a ring that was
                // junk: complete it. What a notify saw before that is void.
                self.table.write_ring(self.store, self.slot, &ring);
                self.table.raise(self.store, self.slot, &ring);
                return None;
            }
            let (places, evicted) = ring.charge(&existing, capacity);
            if self.table.write_ring(self.store, self.slot, &ring) {
                self.raise(&ring, seen.watermark);
                return Some((places, evicted));
            }
        }
        None
    }

    fn raise(&mut self, ring: &Ring, seen: u32) {
        if ring.watermark() != seen {
            self.table.raise(self.store, self.slot, ring);
            self.slots.raise(self.slot, ring);
        }
    }

    /// For each chunk the live epoch in which the pod has it.
    fn existing(&mut self) -> Vec<Option<u32>> {
        let mut existing = Vec::with_capacity(self.chain.len());
        for first in (0..self.chain.len()).step_by(STRIDE) {
            let number = place::page(self.chain, first, 0, self.table.pages).unwrap_or(0);
            let page = self.pages.get(self.table, self.store, number);
            let overflowed = page.overflowed();
            let stride = self.chain.get(first..).unwrap_or_default();
            for (at, hash) in (first..).zip(stride.iter().take(STRIDE)) {
                let position = match self.positions.get(at) {
                    Some(known) => *known,
                    None => {
                        let found = page.find(hash.0);
                        self.positions.push(found);
                        found
                    }
                };
                let found = position.and_then(|found| page.pair_at(found, self.slot.index));
                let alive = found.filter(|(_, pair)| self.slots.is_alive(pair.slot, pair.epoch));
                existing.push(alive.map(|(_, pair)| pair.epoch));
            }
            if overflowed {
                for (i, place) in existing.iter_mut().enumerate().skip(first) {
                    if place.is_none() {
                        *place = self.further(0, i);
                    }
                }
            }
        }
        existing
    }

    /// The live epoch in which the pod has a chunk on a level deeper than `level`, whose page is
    /// marked.
    fn further(&mut self, level: usize, at: usize) -> Option<u32> {
        let hash = self.chain.get(at)?.0;
        for deeper in level.saturating_add(1)..LEVELS {
            let number = place::page(self.chain, at, deeper, self.table.pages)?;
            let page = self.pages.get(self.table, self.store, number);
            if let Some((_, pair)) = page.pair_of(hash, self.slot.index) {
                if self.slots.is_alive(pair.slot, pair.epoch) {
                    return Some(pair.epoch);
                }
            }
            if !page.overflowed() {
                return None;
            }
        }
        None
    }

    /// Writes tasks that share a page of this level; what has no room there goes on to the next.
    fn write(&mut self, level: usize, tasks: &[Task]) {
        let Some(first) = tasks.first() else { return };
        let Some(number) = place::page(self.chain, first.at, level, self.table.pages) else {
            tasks.iter().for_each(|task| self.lose(task));
            self.table
                .count_many(|stats| &mut stats.dropped_chunks, tasks.len() as u64);
            return;
        };
        for _ in 0..TRIES {
            let (inserted, given) = (self.outcome.inserted.len(), self.outcome.give_back.len());
            let attempt = self.attempt(level, number, tasks);
            let written = match attempt.page {
                Some(mut page) => self.table.write_page(self.store, number, &mut page),
                None => true,
            };
            if written {
                let next = place::stride(level.saturating_add(1));
                let together = |a: &Task, b: &Task| a.at / next.max(1) == b.at / next.max(1);
                for group in attempt.further.chunk_by(together) {
                    self.write(level.saturating_add(1), group);
                }
                return;
            }
            self.outcome.inserted.truncate(inserted);
            self.outcome.give_back.truncate(given);
        }
        self.outcome.dropped = true;
        tasks.iter().for_each(|task| self.lose(task));
    }

    fn lose(&mut self, task: &Task) {
        let lost = self.outcome.lost.map_or(task.at, |at| at.min(task.at));
        self.outcome.lost = Some(lost);
        if let Place::Epoch(epoch) = task.place {
            self.outcome.give_back.push(epoch);
        }
    }

    /// Applies tasks to the page.
    fn attempt(&mut self, level: usize, number: u64, tasks: &[Task]) -> Attempt {
        let slot = self.slot.index;
        let mut changed = false;
        let mut inserts: Vec<Insert> = Vec::new();
        let mut new: Vec<Task> = Vec::new();
        let mut further: Vec<Task> = Vec::new();
        // What was found before holds for as long as nobody took the page.
        let known = level == 0 && self.pages.has(number);
        let mut page = self.pages.take(self.table, self.store, number);
        let overflowed = page.overflowed();
        for task in tasks {
            let epoch = task.place.epoch();
            let position = match self.positions.get(task.at) {
                Some(position) if known => *position,
                _ => page.find(task.hash),
            };
            let found = position.and_then(|position| page.pair_at(position, slot));
            match found.filter(|(_, pair)| self.slots.is_alive(slot, pair.epoch)) {
                Some((at, pair)) if ring::is_alive(pair.epoch, epoch) => {
                    // In this epoch or a later one: another notify had it before us.
                    if let Place::Epoch(epoch) = task.place {
                        self.outcome.give_back.push(epoch);
                    }
                    if !pair.touched {
                        page.set_pair(
                            at,
                            Pair {
                                touched: true,
                                ..pair
                            },
                        );
                        changed = true;
                    }
                }
                Some((at, pair)) => {
                    self.outcome.give_back.push(pair.epoch);
                    page.set_pair(
                        at,
                        Pair {
                            slot,
                            touched: false,
                            epoch,
                        },
                    );
                    changed = true;
                }
                None if overflowed && self.further(level, task.at).is_some() => {
                    further.push(*task);
                }
                // It was there when the ring was charged, so nothing was charged for it.
                None if matches!(task.place, Place::Touch(_)) => {}
                None => {
                    inserts.push(Insert {
                        hash: task.hash,
                        pair: Pair {
                            slot,
                            touched: false,
                            epoch,
                        },
                    });
                    new.push(*task);
                }
            }
        }
        if !inserts.is_empty() {
            changed = true;
            let taken = self.insert(&mut page, &inserts);
            for (i, task) in new.into_iter().enumerate() {
                if i < taken {
                    let at = u32::try_from(task.at).unwrap_or(u32::MAX);
                    self.outcome.inserted.push((at, task.place.epoch()));
                } else {
                    page.set_overflowed();
                    let order = further.partition_point(|other| other.at < task.at);
                    further.insert(order, task);
                }
            }
        }
        Attempt {
            page: changed.then_some(page),
            further,
        }
    }

    /// Inserts as many as there is room for, in their order; dead chunks make room.
    fn insert(&self, page: &mut Page, inserts: &[Insert]) -> usize {
        let alive = |pair: &Pair| self.slots.is_alive(pair.slot, pair.epoch);
        let (all, dead) = page
            .all_pairs()
            .fold((0usize, 0usize), |(all, dead), pair| {
                (
                    all.wrapping_add(1),
                    dead.wrapping_add(usize::from(!alive(&pair))),
                )
            });
        // A dead pair of the same pod must go before a live one comes; others once they are many.
        let slot = self.slot.index;
        let again = |insert: &Insert| page.pair_of(insert.hash, slot).is_some();
        if dead.saturating_mul(4) > all || (dead > 0 && inserts.iter().any(again)) {
            page.retain(|_, pair| alive(&pair));
        }
        if page.insert(inserts) {
            return inserts.len();
        }
        page.retain(|_, pair| alive(&pair));
        let (mut taken, mut most) = (0usize, inserts.len());
        while taken < inserts.len() && most > 0 {
            let end = taken.saturating_add(most).min(inserts.len());
            if page.insert(inserts.get(taken..end).unwrap_or_default()) {
                taken = end;
            } else {
                most /= 2;
            }
        }
        taken
    }
}

/// What tasks came to.
struct Attempt {
    /// The page to be written, if it changed.
    page: Option<Page>,
    /// Tasks for the next level, in the order of the prompt.
    further: Vec<Task>,
}
