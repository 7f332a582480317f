//! `undo`: takes a notify back, as far as nobody has touched its chunks since (T8).
//!
//! Invariant: entries go before their counts, tail before head, so a crash on the way leaves
//! the pod with a prefix and its ring with too much.
//! Cost: a `get` and a `set` per page of what was inserted, and the same for the ring.

use super::geometry::{page_of, SPANS};
use super::notify::{add_up, Receipt};
use super::pages::Pages;
use super::{Table, RETRIES};
use crate::chunk::ChunkHash;
use crate::store::SharedStore;
use core::ops::Range;

impl Table {
    /// Removes what the notify of this receipt inserted and nobody touched since; returns how
    /// many chunks that were.
    pub fn undo(&self, store: &dyn SharedStore, chain: &[ChunkHash], receipt: Receipt) -> u32 {
        let Receipt { slot, chunks, .. } = &receipt;
        let Some(chain) = chain.get(..chunks.end) else {
            return 0;
        };
        let (slots, _) = self.read_slots(store);
        if slots
            .get(slot.index)
            .is_none_or(|entry| entry.owner != slot.pod.0)
        {
            return 0;
        }
        let floor = slots.floor(slot.index);
        let mut pages = Pages::default();
        let mut before = vec![None; chain.len()];
        self.held(store, &mut pages, chain, slot.index, floor, &mut before);
        let [span, ..] = SPANS;
        for start in (0..chain.len()).step_by(span).rev() {
            let group = start..start.saturating_add(span).min(chain.len());
            if group.end <= chunks.start {
                break;
            }
            self.take_back(store, &mut pages, chain, 0, group, &receipt);
        }
        let mut after = vec![None; chain.len()];
        self.held(store, &mut pages, chain, slot.index, floor, &mut after);
        let mut counts = Vec::new();
        for (before, after) in before.iter().zip(&after).skip(chunks.start) {
            if let Some(stamp) =
                before.filter(|stamp| receipt.inserted_at(*stamp) && after.is_none())
            {
                add_up(&mut counts, stamp.epoch());
            }
        }
        self.give_back(store, *slot, &counts);
        counts
            .iter()
            .fold(0u32, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Takes back from one group's page, lower levels first, for they are nearer the tail.
    fn take_back(
        &self,
        store: &dyn SharedStore,
        pages: &mut Pages,
        chain: &[ChunkHash],
        level: usize,
        group: Range<usize>,
        receipt: &Receipt,
    ) {
        let Some(chunks) = chain.get(group.clone()) else {
            return;
        };
        let Some(first) = chunks.first() else { return };
        let number = page_of(*first, level, self.pages());
        let below = level.saturating_add(1);
        if let Some(span) = SPANS
            .get(below)
            .filter(|_| pages.get(self, store, number).overflowed())
        {
            for start in group.clone().step_by(*span).rev() {
                let group = start..start.saturating_add(*span).min(group.end);
                self.take_back(store, pages, chain, below, group, receipt);
            }
        }
        for _ in 0..RETRIES {
            let page = pages.get(self, store, number);
            let from = receipt.chunks.start.saturating_sub(group.start);
            let changed = page.take_back(chunks, from, receipt);
            if !changed || pages.write(self, store, number) {
                return;
            }
        }
    }
}
