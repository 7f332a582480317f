//! `query`: how many leading chunks of a prompt each pod holds.
//!
//! Invariant: chunk i never counts without all before it (T3), and nothing is written.
//! Cost: one `get` for the slots and one per 64 chunks, until no candidate is left.

use super::epoch::Stamp;
use super::geometry::{page_of, SPANS};
use super::page::Page;
use super::pages::Pages;
use super::slots::{Slot, Slots};
use super::Table;
use crate::chunk::ChunkHash;
use crate::store::{Expect, SharedStore};

/// An answer, with what was read for it, so that a notify of the same prompt need not read again.
#[derive(Debug, Clone)]
pub struct Query {
    matched: Vec<u32>,
    pub(super) slots: Slots,
    pub(super) slots_at: Expect,
    pub(super) pages: Pages,
}

impl Query {
    /// Leading chunks present, for each slot in the order asked for.
    pub fn matched(&self) -> &[u32] {
        &self.matched
    }
}

/// How far one slot holds the prompt, as known so far.
#[derive(Debug, Clone, Copy)]
struct Lane {
    floor: Stamp,
    reach: usize,
}

struct Search<'a> {
    table: &'a Table,
    store: &'a dyn SharedStore,
    chain: &'a [ChunkHash],
    pages: Pages,
    /// By slot.
    lanes: Vec<Lane>,
    /// The slots asked for.
    wanted: Vec<u8>,
}

impl Table {
    /// Leading chunks of `chain` that each of `slots` holds. A slot that went to another pod
    /// holds none.
    pub fn query(&self, store: &dyn SharedStore, chain: &[ChunkHash], slots: &[Slot]) -> Query {
        let (view, slots_at) = self.read_slots(store);
        let resolved: Vec<Option<u8>> = slots.iter().map(|slot| view.resolve(*slot)).collect();
        let floors = view
            .entries()
            .iter()
            .map(|entry| Stamp::floor(entry.watermark));
        let mut search = Search {
            table: self,
            store,
            chain,
            pages: Pages::default(),
            lanes: floors.map(|floor| Lane { floor, reach: 0 }).collect(),
            wanted: resolved.iter().flatten().copied().collect(),
        };
        let [span, ..] = SPANS;
        let mut start = 0usize;
        while start < chain.len() && search.any_reach(start, usize::MAX) {
            let end = start.saturating_add(span).min(chain.len());
            search.group(0, start, end);
            start = end;
        }
        let reach = |slot: &Option<u8>| slot.map_or(0, |slot| search.reach(slot));
        let matched = resolved
            .iter()
            .map(|slot| u32::try_from(reach(slot)).unwrap_or(u32::MAX))
            .collect();
        Query {
            matched,
            slots: view,
            slots_at,
            pages: search.pages,
        }
    }
}

impl Search<'_> {
    fn reach(&self, slot: u8) -> usize {
        self.lanes
            .get(usize::from(slot))
            .map_or(0, |lane| lane.reach)
    }

    /// Whether a slot asked for holds at least `from` chunks and fewer than `below`.
    fn any_reach(&self, from: usize, below: usize) -> bool {
        self.wanted
            .iter()
            .any(|slot| (from..below).contains(&self.reach(*slot)))
    }

    /// Extends the lanes over the chunks `start..end`, which share a page at this level.
    fn group(&mut self, level: usize, start: usize, end: usize) {
        let Some((chunks, first)) = self
            .chain
            .get(start..end)
            .and_then(|c| Some((c, *c.first()?)))
        else {
            return;
        };
        let number = page_of(first, level, self.table.pages());
        let page = self.pages.get(self.table, self.store, number);
        extend(&mut self.lanes, page, chunks, start);
        if !page.overflowed() {
            return;
        }
        let below = level.saturating_add(1);
        let Some(&span) = SPANS.get(below) else {
            return;
        };
        let mut at = start;
        while at < end {
            let to = at.saturating_add(span).min(end);
            if self.any_reach(at, to) {
                self.group(below, at, to);
            }
            at = to;
        }
    }
}

fn extend(lanes: &mut [Lane], page: &Page, chunks: &[ChunkHash], start: usize) {
    for (offset, run, common) in page.walk(chunks) {
        let from = start.saturating_add(offset);
        for mark in run.marks() {
            let Some(lane) = lanes.get_mut(usize::from(mark.slot)) else {
                continue;
            };
            if lane.reach >= from && mark.stamp.covers(lane.floor) {
                lane.reach = lane.reach.max(from.saturating_add(mark.len.min(common)));
            }
        }
    }
}
