//! Storing a prompt for a pod, and taking that back.
//!
//! Order of writes, so that a worker that dies between any two leaves the counts too high, never
//! too low: charge the ring, raise the watermark if that evicted, write the pages (a full page's
//! mark before what went elsewhere), give back to the ring what moved or was not written.
//! Cost: a `get` and two `set`s of the ring, a `set` per changed page, one page swept.

use super::frame::Kind;
use super::page::{Insert, Page, Pair};
use super::place::{self, STRIDES};
use super::query::{Pages, Query};
use super::ring::{self, Place, Ring};
use super::slots::{Slot, Slots};
use super::{Table, TRIES};
use crate::chunk::ChunkHash;
use crate::store::SharedStore;

/// What a notify inserted, to be taken back if the pod did no work.
#[derive(Debug)]
pub struct Receipt {
    slot: Slot,
    /// Position in the prompt and epoch of each chunk that was new.
    inserted: Vec<(u32, u32)>,
}

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

/// What became of the tasks.
#[derive(Debug, Default)]
struct Outcome {
    inserted: Vec<(u32, u32)>,
    give_back: Vec<u32>,
    lost: Vec<usize>,
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
        let Query { slots, pages, .. } = query;
        let receipt = Receipt {
            slot,
            inserted: Vec::new(),
        };
        let mut notified = Notified {
            receipt,
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
            outcome,
        };
        let Some((places, evicted)) = work.charge(capacity) else {
            self.count(|stats| &mut stats.dropped_notifies);
            notified.dropped = true;
            return notified;
        };
        let stored = places.len();
        for (number, places) in places.chunks(first_stride()).enumerate() {
            let first = number.saturating_mul(first_stride());
            let tasks: Vec<Task> = places
                .iter()
                .zip(chain.iter().skip(first))
                .enumerate()
                .map(|(i, (place, hash))| Task {
                    at: first.saturating_add(i),
                    hash: hash.0,
                    place: *place,
                })
                .collect();
            work.write(0, tasks);
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
        let stored = lost.iter().min().copied().unwrap_or(stored);
        notified.receipt.inserted = inserted;
        notified.stored = u32::try_from(stored).unwrap_or(u32::MAX);
        notified.evicted = evicted;
        notified.dropped = dropped;
        notified
    }

    /// Takes a notify of `chain` back: removes what it inserted and nobody touched since.
    pub fn undo(&self, store: &dyn SharedStore, chain: &[ChunkHash], receipt: Receipt) {
        let Receipt { slot, inserted } = receipt;
        let slots = self.slots(store);
        if inserted.is_empty() || !slots.owns(slot) {
            return;
        }
        let mut give_back = Vec::new();
        for level in 0..STRIDES.len() {
            let mut by_page: Vec<(u64, u64, u32)> = inserted
                .iter()
                .filter_map(|(at, epoch)| {
                    let at = *at as usize;
                    Some((
                        place::page(chain, at, level, self.pages)?,
                        chain.get(at)?.0,
                        *epoch,
                    ))
                })
                .collect();
            by_page.sort_unstable();
            let mut overflowed = false;
            for group in by_page.chunk_by(|a, b| a.0 == b.0) {
                overflowed |= self.remove(store, slot, group, &mut give_back);
            }
            if !overflowed {
                break;
            }
        }
        self.give_back(store, slot, &slots, &give_back);
    }

    /// Removes untouched chunks from one page; says whether others may be on a deeper level.
    fn remove(
        &self,
        store: &dyn SharedStore,
        slot: Slot,
        group: &[(u64, u64, u32)],
        give_back: &mut Vec<u32>,
    ) -> bool {
        let Some((number, ..)) = group.first() else {
            return false;
        };
        for _ in 0..TRIES {
            let mut page = self.page(store, *number);
            let goes = |hash: u64, pair: Pair| {
                let listed = group.binary_search_by_key(&hash, |(_, hash, _)| *hash);
                let epoch = listed
                    .ok()
                    .and_then(|at| group.get(at))
                    .map(|(_, _, epoch)| *epoch);
                pair.slot == slot.index && !pair.touched && Some(pair.epoch) == epoch
            };
            let gone: Vec<u32> = group
                .iter()
                .filter_map(|(_, hash, _)| {
                    let (_, pair) = page.pair_of(*hash, slot.index)?;
                    goes(*hash, pair).then_some(pair.epoch)
                })
                .collect();
            let overflowed = page.overflowed();
            if gone.is_empty() {
                return overflowed;
            }
            page.rewrite(|hash, pair| !goes(hash, pair), &[]);
            if self.write_page(store, *number, &page) {
                give_back.extend(gone);
                return overflowed;
            }
        }
        self.count(|stats| &mut stats.dropped_notifies);
        false
    }

    fn give_back(&self, store: &dyn SharedStore, slot: Slot, slots: &Slots, epochs: &[u32]) {
        if epochs.is_empty() {
            return;
        }
        for _ in 0..TRIES {
            let mut ring = self.ring(store, slot, slots);
            ring.give_back(epochs);
            if self.write_ring(store, slot, &mut ring) {
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
            page.rewrite(|_, pair| slots.is_alive(pair.slot, pair.epoch), &[]);
            let _ = self.write_page(store, number, &page);
        }
    }

    fn write_page(&self, store: &dyn SharedStore, number: u64, page: &Page) -> bool {
        let value = self.tag(Kind::Page).seal(page.body());
        self.written(
            store
                .set(&self.page_key(number), &value, page.expect())
                .is_ok(),
        )
    }
}

fn first_stride() -> usize {
    STRIDES.first().copied().unwrap_or(1)
}

impl Work<'_> {
    /// Charges the ring and raises the watermark. `None`: the pod was forgotten meanwhile, or
    /// other workers were first too often.
    fn charge(&mut self, capacity: u32) -> Option<(Vec<Place>, u32)> {
        let existing: Vec<Option<u32>> =
            (0..self.chain.len()).map(|at| self.existing(at)).collect();
        for _ in 0..TRIES {
            let mut ring = self.table.ring(self.store, self.slot, &self.slots);
            let seen = self.slots.entry(self.slot.index);
            if ring.generation != seen.generation {
                // Forgotten since the query; or a forget that died half-way, or a ring that was
                // junk: complete it. What a notify saw before that is void.
                self.table.write_ring(self.store, self.slot, &mut ring);
                self.table.raise(self.store, self.slot, &ring);
                return None;
            }
            let (places, evicted) = ring.charge(&existing, capacity);
            if self.table.write_ring(self.store, self.slot, &mut ring) {
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

    /// The live epoch in which the pod has a chunk.
    fn existing(&mut self, at: usize) -> Option<u32> {
        let hash = self.chain.get(at)?.0;
        for level in 0..STRIDES.len() {
            let number = place::page(self.chain, at, level, self.table.pages)?;
            let page = self.pages.get(self.table, self.store, number);
            if let Some((_, pair)) = page.pair_of(hash, self.slot.index) {
                return self
                    .slots
                    .is_alive(pair.slot, pair.epoch)
                    .then_some(pair.epoch);
            }
            if !page.overflowed() {
                return None;
            }
        }
        None
    }

    /// Writes tasks that share a page of this level; what has no room there goes on to the next.
    fn write(&mut self, level: usize, tasks: Vec<Task>) {
        let Some(first) = tasks.first() else { return };
        let Some(number) = place::page(self.chain, first.at, level, self.table.pages) else {
            for task in tasks {
                self.lose(task);
                self.table.count(|stats| &mut stats.dropped_chunks);
            }
            return;
        };
        for _ in 0..TRIES {
            let attempt = self.attempt(level, number, &tasks);
            if !attempt.changed || self.table.write_page(self.store, number, &attempt.page) {
                // The version is stale now; whoever needs the page reads it again.
                self.pages.drop(number);
                self.outcome.inserted.extend(attempt.inserted);
                self.outcome.give_back.extend(attempt.give_back);
                let next = STRIDES.get(level.saturating_add(1)).copied().unwrap_or(1);
                for group in attempt
                    .further
                    .chunk_by(|a, b| a.at.checked_div(next) == b.at.checked_div(next))
                {
                    self.write(level.saturating_add(1), group.to_vec());
                }
                return;
            }
            self.pages.drop(number);
        }
        self.outcome.dropped = true;
        tasks.into_iter().for_each(|task| self.lose(task));
    }

    fn lose(&mut self, task: Task) {
        self.outcome.lost.push(task.at);
        if let Place::Epoch(epoch) = task.place {
            self.outcome.give_back.push(epoch);
        }
    }

    /// Applies tasks to a copy of the page.
    fn attempt(&mut self, level: usize, number: u64, tasks: &[Task]) -> Attempt {
        let slot = self.slot.index;
        let mut page = self.pages.get(self.table, self.store, number).clone();
        let mut attempt = Attempt {
            changed: false,
            inserted: Vec::new(),
            give_back: Vec::new(),
            further: Vec::new(),
            page: Page::new(Vec::new(), None),
        };
        let mut inserts: Vec<(Task, Insert)> = Vec::new();
        for task in tasks {
            let epoch = task.place.epoch();
            let found = page.pair_of(task.hash, slot);
            match found.filter(|(_, pair)| self.slots.is_alive(slot, pair.epoch)) {
                Some((at, pair)) if ring::is_alive(pair.epoch, epoch) => {
                    // In this epoch or a later one: another notify had it before us.
                    if let Place::Epoch(epoch) = task.place {
                        attempt.give_back.push(epoch);
                    }
                    if !pair.touched {
                        page.set_pair(
                            at,
                            Pair {
                                touched: true,
                                ..pair
                            },
                        );
                        attempt.changed = true;
                    }
                }
                Some((at, pair)) => {
                    attempt.give_back.push(pair.epoch);
                    page.set_pair(
                        at,
                        Pair {
                            slot,
                            touched: false,
                            epoch,
                        },
                    );
                    attempt.changed = true;
                }
                None if page.overflowed() && self.is_further(level, task) => {
                    attempt.further.push(*task);
                }
                // It was there when the ring was charged, so nothing was charged for it.
                None if matches!(task.place, Place::Touch(_)) => {}
                None => {
                    let pair = Pair {
                        slot,
                        touched: false,
                        epoch,
                    };
                    inserts.push((
                        *task,
                        Insert {
                            hash: task.hash,
                            pair,
                        },
                    ));
                }
            }
        }
        if !inserts.is_empty() {
            let new: Vec<Insert> = inserts.iter().map(|(_, insert)| *insert).collect();
            let slots = &self.slots;
            let taken = page.rewrite(|_, pair| slots.is_alive(pair.slot, pair.epoch), &new);
            attempt.changed = true;
            for (i, (task, insert)) in inserts.into_iter().enumerate() {
                if i < taken {
                    let at = u32::try_from(task.at).unwrap_or(u32::MAX);
                    attempt.inserted.push((at, insert.pair.epoch));
                } else {
                    page.set_overflowed();
                    let order = attempt.further.partition_point(|other| other.at < task.at);
                    attempt.further.insert(order, task);
                }
            }
        }
        attempt.page = page;
        attempt
    }

    /// Whether the pod has the chunk on a deeper level.
    fn is_further(&mut self, level: usize, task: &Task) -> bool {
        for deeper in level.saturating_add(1)..STRIDES.len() {
            let Some(number) = place::page(self.chain, task.at, deeper, self.table.pages) else {
                return false;
            };
            let page = self.pages.get(self.table, self.store, number);
            if let Some((_, pair)) = page.pair_of(task.hash, self.slot.index) {
                if self.slots.is_alive(pair.slot, pair.epoch) {
                    return true;
                }
            }
            if !page.overflowed() {
                return false;
            }
        }
        false
    }
}

/// A page as it would be after the tasks, and what that would mean.
struct Attempt {
    page: Page,
    changed: bool,
    inserted: Vec<(u32, u32)>,
    give_back: Vec<u32>,
    further: Vec<Task>,
}
