//! `notify`: a pod now holds the chunks of a prompt; its least recently used make room.
//!
//! The order of writes is what makes a crash between any two of them harmless:
//!
//! 1. plan: how the pod holds each chunk now (from pages that the query read);
//! 2. reserve: count the chunks in the pod's ring, evict there;
//! 3. raise the pod's watermark to the ring's floor, so that the evicted are dead;
//! 4. write the pages, head first;
//! 5. give back to the ring what was counted and not written;
//! 6. sweep a page.
//!
//! Cost: three host calls more than a `get` and a `set` per page, of which the `get`s were mostly
//! paid by the query. Pages in which nothing changes are not written.

use super::epoch::{Epoch, Stamp};
use super::geometry::{page_of, SPANS};
use super::pages::Pages;
use super::query::Query;
use super::ring::{Reserved, Ring};
use super::slots::{Slot, Slots};
use super::writing::Writing;
use super::{bump, Table, RETRIES};
use crate::chunk::ChunkHash;
use crate::store::{Expect, SharedStore};
use core::ops::Range;

/// What a notify did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notified {
    /// For taking it back; nothing when nothing was inserted.
    pub receipt: Option<Receipt>,
    /// Leading chunks of the prompt that the pod held already, by what other workers have written
    /// since the query too.
    pub found: u32,
    /// Leading chunks of the prompt that the pod holds now.
    pub stored: u32,
    /// Chunks that the pod lost for it.
    pub evicted: u32,
    /// Chunks that should have been stored and were not.
    pub dropped: u32,
}

/// What a notify inserted: chunks of its prompt, at untouched stamps of some epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub(super) slot: Slot,
    pub(super) chunks: Range<usize>,
    pub(super) oldest: Epoch,
    pub(super) newest: Epoch,
}

impl Receipt {
    /// Whether an entry of that stamp is as it was inserted.
    pub(super) fn inserted_at(&self, stamp: Stamp) -> bool {
        let epoch = stamp.epoch();
        !stamp.is_touched() && !epoch.is_before(self.oldest) && !self.newest.is_before(epoch)
    }
}

/// Lost against other writers for good.
pub(super) struct Beaten;

impl Table {
    /// Stores the leading chunks of `chain`, at most `capacity`, for `slot`'s pod as just used.
    pub fn notify(
        &self,
        store: &dyn SharedStore,
        chain: &[ChunkHash],
        slot: Slot,
        capacity: u32,
        query: Query,
    ) -> Notified {
        let capacity = capacity.min(self.geometry().max_capacity_chunks);
        let chain = chain.get(..capacity as usize).unwrap_or(chain);
        if chain.is_empty() {
            return Notified::default();
        }
        let Query {
            mut slots,
            mut slots_at,
            mut pages,
            ..
        } = query;
        if slots.resolve(slot).is_none() {
            (slots, slots_at) = self.read_slots(store);
        }
        let dropped = || {
            bump(&self.counters.dropped_notifies, 1);
            Notified {
                dropped: chain.len() as u32,
                ..Notified::default()
            }
        };
        let Some(index) = slots.resolve(slot) else {
            return dropped();
        };
        let mut had = vec![None; chain.len()];
        self.held(
            store,
            &mut pages,
            chain,
            index,
            slots.floor(index),
            &mut had,
        );
        let slot = Slot { index, ..slot };
        let Ok((ring, reserved, sweep)) = self.reserve(store, slot, capacity, &slots, &mut had)
        else {
            return dropped();
        };
        if self
            .raise_watermark(store, slot, ring.floor(), &mut slots, slots_at)
            .is_err()
        {
            return dropped();
        }
        pages.plan_is_made();
        let mut writing = Writing {
            table: self,
            store,
            chain,
            slot: index,
            slots,
            pages,
            had,
            targets: reserved.targets,
            written: 0,
            limit: chain.len(),
            give_back: Vec::new(),
        };
        let (stored, unwritten) = writing.write();
        writing.give_back_unwritten(unwritten);
        let (first, number) = sweep;
        for page in 0..number {
            writing.sweep(first.saturating_add(page));
        }
        let receipt = writing.receipt(slot, stored);
        let found = writing.had.iter().take_while(|had| had.is_some()).count();
        self.give_back(store, slot, &writing.give_back);
        Notified {
            receipt,
            found: found as u32,
            stored: stored as u32,
            evicted: reserved.evicted,
            dropped: chain.len().saturating_sub(stored) as u32,
        }
    }

    /// How the slot holds the leading chunks of `chain`; returns their number.
    pub(super) fn held(
        &self,
        store: &dyn SharedStore,
        pages: &mut Pages,
        chain: &[ChunkHash],
        slot: u8,
        floor: Stamp,
        out: &mut [Option<Stamp>],
    ) -> usize {
        self.held_at(store, pages, usize::MAX, chain, slot, floor, out)
    }

    /// As [`Table::held`], for chunks that share a page at `level`; above level 0 is the chain.
    #[expect(clippy::too_many_arguments, reason = "one recursion over the levels")]
    fn held_at(
        &self,
        store: &dyn SharedStore,
        pages: &mut Pages,
        level: usize,
        chunks: &[ChunkHash],
        slot: u8,
        floor: Stamp,
        out: &mut [Option<Stamp>],
    ) -> usize {
        let mut reach = 0;
        if level != usize::MAX {
            let Some(first) = chunks.first() else {
                return 0;
            };
            let page = pages.get(self, store, page_of(*first, level, self.pages()));
            page.held(chunks, slot, floor, out);
            // Levels above may hold more of the group's head than this page.
            reach = out.iter().take_while(|held| held.is_some()).count();
            if reach >= chunks.len() || !page.overflowed() {
                return reach;
            }
        }
        let below = level.wrapping_add(1);
        let Some(&span) = SPANS.get(below) else {
            return reach;
        };
        let groups = chunks.chunks(span).zip(out.chunks_mut(span)).enumerate();
        for (number, (group, out)) in groups.skip(reach.checked_div(span).unwrap_or(0)) {
            let start = number.saturating_mul(span);
            let found = self.held_at(store, pages, below, group, slot, floor, out);
            reach = reach.max(start.saturating_add(found));
            if reach < start.saturating_add(group.len()) {
                break;
            }
        }
        reach
    }

    /// Counts the chunks in the slot's ring. Afterwards `had` says which were counted as moved.
    fn reserve(
        &self,
        store: &dyn SharedStore,
        slot: Slot,
        capacity: u32,
        slots: &Slots,
        had: &mut [Option<Stamp>],
    ) -> Result<(Ring, Reserved, (u32, u32)), Beaten> {
        let watermark = slots
            .get(slot.index)
            .map_or(Epoch::new(0), |entry| entry.watermark);
        for _ in 0..RETRIES {
            let (found, expected) = self.read_ring(store, slot.index);
            let known = found.clone();
            let mut ring =
                found.unwrap_or_else(|| Ring::new(slot.pod, self.restart(watermark, expected)));
            if !ring.belongs_to(slot.pod) {
                // Either the slot went to another pod or a crash left the ring behind.
                let (today, _) = self.read_slots(store);
                let owner = today
                    .get(slot.index)
                    .filter(|entry| entry.owner == slot.pod.0);
                let watermark = owner.ok_or(Beaten)?.watermark;
                let start = ring.current().after(1).latest(watermark);
                ring.reset(slot.pod, start);
            }
            ring.raise(watermark);
            let floor = Stamp::floor(ring.floor());
            let reserved = ring.reserve(had, capacity);
            let mut sweep = (0, 0);
            if reserved.changed || known.as_ref() != Some(&ring) {
                sweep = ring.advance_sweep(reserved.advanced, self.pages());
                if !self.write_ring(store, slot.index, &ring, expected) {
                    continue;
                }
            }
            for stamp in had.iter_mut() {
                *stamp = stamp.filter(|stamp| stamp.covers(floor));
            }
            return Ok((ring, reserved, sweep));
        }
        Err(Beaten)
    }

    /// Makes the slot's watermark at least `floor`, here and for all.
    fn raise_watermark(
        &self,
        store: &dyn SharedStore,
        slot: Slot,
        floor: Epoch,
        slots: &mut Slots,
        mut slots_at: Expect,
    ) -> Result<(), Beaten> {
        for _ in 0..RETRIES {
            if !slots.raise(slot.index, floor) || self.write_slots(store, slots, slots_at) {
                return Ok(());
            }
            (*slots, slots_at) = self.read_slots(store);
            let owner = slots.get(slot.index).map(|entry| entry.owner);
            if owner != Some(slot.pod.0) {
                break;
            }
        }
        Err(Beaten)
    }

    /// Takes counts off the slot's ring. When that fails it counts too much until they die.
    pub(super) fn give_back(&self, store: &dyn SharedStore, slot: Slot, counts: &[(Epoch, u32)]) {
        if counts.is_empty() {
            return;
        }
        for _ in 0..RETRIES {
            let (Some(mut ring), expected) = self.read_ring(store, slot.index) else {
                return;
            };
            if !ring.belongs_to(slot.pod) {
                return;
            }
            for (epoch, count) in counts {
                ring.give_back(*epoch, *count);
            }
            if self.write_ring(store, slot.index, &ring, expected) {
                return;
            }
        }
    }
}

/// Counts one more chunk of an epoch.
pub(super) fn add_up(counts: &mut Vec<(Epoch, u32)>, epoch: Epoch) {
    match counts.last_mut() {
        Some((last, count)) if *last == epoch => *count = count.saturating_add(1),
        _ => counts.push((epoch, 1)),
    }
}
