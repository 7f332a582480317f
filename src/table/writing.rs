//! Writing the pages of a notify, over whatever others write meanwhile.
//!
//! Invariant: a chunk is written only on a count that the ring holds for it.
//! Cost: one `set` a page, and a `get` for those that the plan did not need; no scan of a page
//! that is as it was planned.

use super::epoch::{Epoch, Stamp};
use super::geometry::{page_of, SPANS};
use super::notify::{add_up, Beaten, Receipt};
use super::pages::Pages;
use super::slots::{Slot, Slots};
use super::{bump, Table, RETRIES};
use crate::chunk::ChunkHash;
use crate::store::SharedStore;

/// A notify under way.
pub(super) struct Writing<'a> {
    pub(super) table: &'a Table,
    pub(super) store: &'a dyn SharedStore,
    pub(super) chain: &'a [ChunkHash],
    pub(super) slot: u8,
    pub(super) slots: Slots,
    pub(super) pages: Pages,
    /// How each chunk was held when it was counted; those without count as inserted.
    pub(super) had: Vec<Option<Stamp>>,
    pub(super) targets: Vec<Stamp>,
    /// Leading chunks that are written.
    pub(super) written: usize,
    /// Chunks from here on are not to be written.
    pub(super) limit: usize,
    /// Counted, and not needed after all.
    pub(super) give_back: Vec<(Epoch, u32)>,
}

impl Writing<'_> {
    /// Writes all pages, head first; returns how many leading chunks are stored, and from where
    /// on certainly none was written.
    pub(super) fn write(&mut self) -> (usize, usize) {
        let [span, ..] = SPANS;
        let mut start = 0usize;
        while start < self.limit {
            let end = start.saturating_add(span).min(self.limit);
            match self.group(0, start, end) {
                Ok(reached) if reached < end.min(self.limit) => {
                    let lost = self.chain.len().saturating_sub(reached);
                    bump(&self.table.counters.dropped_chunks, lost as u64);
                    return (reached, reached);
                }
                Ok(_) => start = end,
                Err(Beaten) => {
                    bump(&self.table.counters.dropped_notifies, 1);
                    return (start, end);
                }
            }
        }
        if self.limit < self.chain.len() {
            bump(&self.table.counters.dropped_notifies, 1);
        }
        (self.limit, self.limit)
    }

    /// Writes the chunks `start..end`, which share a page at this level; what does not fit goes
    /// one level down. Returns where it stopped.
    fn group(&mut self, level: usize, start: usize, end: usize) -> Result<usize, Beaten> {
        let Some(first) = self.chain.get(start) else {
            return Ok(start);
        };
        let number = page_of(*first, level, self.table.pages());
        let below = level.saturating_add(1);
        let (reached, end) = self.page(number, start, end, level)?;
        // A level above may hold more of the group's head than this page has room for.
        let reached = reached.max(self.written.min(end));
        let Some(&span) = SPANS.get(below) else {
            return Ok(reached);
        };
        if reached >= end {
            return Ok(end);
        }
        bump(&self.table.counters.overflows, 1);
        let whole = reached.saturating_sub(start).checked_div(span).unwrap_or(0);
        let mut at = start.saturating_add(whole.saturating_mul(span));
        while at < end {
            let to = at.saturating_add(span).min(end);
            let reached = self.group(below, at, to)?;
            if reached < to {
                return Ok(reached);
            }
            at = to;
        }
        Ok(end)
    }

    /// Stores `start..end` in one page, as far as it has room. Returns how far, and the end,
    /// which may have come down to the limit.
    fn page(
        &mut self,
        number: u32,
        start: usize,
        end: usize,
        level: usize,
    ) -> Result<(usize, usize), Beaten> {
        let floor = self.slots.floor(self.slot);
        let alive = |stamp: &Option<Stamp>| stamp.filter(|stamp| stamp.covers(floor));
        let mut before = vec![None; end.saturating_sub(start)];
        for _ in 0..RETRIES {
            let chunks = self.chain.get(start..end).unwrap_or(&[]);
            let as_planned = level == 0 && self.pages.is_as_planned(number);
            let page = self.pages.get(self.table, self.store, number);
            if as_planned && !page.overflowed() {
                before = self
                    .had
                    .iter()
                    .skip(start)
                    .take(chunks.len())
                    .map(alive)
                    .collect();
            } else {
                let mut now = vec![None; chunks.len()];
                page.held(chunks, self.slot, floor, &mut now);
                self.reconcile(start, &before, &now);
                before = now;
            }
            let end = end.min(self.limit).max(start);
            let chunks = self.chain.get(start..end).unwrap_or(&[]);
            let stamps = self.targets.get(start..end).unwrap_or(&[]);
            let page = self.pages.get(self.table, self.store, number);
            let stored = page.store(chunks, stamps, self.slot, &self.slots);
            let mut changed = stored.changed;
            if level.saturating_add(1) < SPANS.len() && stored.chunks < chunks.len() {
                changed |= page.set_overflowed();
            }
            if !changed || self.pages.write(self.table, self.store, number) {
                let reached = start.saturating_add(stored.chunks);
                self.written = self.written.max(reached);
                return Ok((reached, end));
            }
        }
        Err(Beaten)
    }

    /// What others did to the slot's chunks in a page since they were planned.
    fn reconcile(&mut self, start: usize, before: &[Option<Stamp>], now: &[Option<Stamp>]) {
        for (offset, (before, now)) in before.iter().zip(now).enumerate() {
            let at = start.saturating_add(offset);
            if at < self.written {
                continue;
            }
            let (Some(had), Some(target)) = (self.had.get_mut(at), self.targets.get_mut(at)) else {
                break;
            };
            match (before, now, &had) {
                // Inserted by another, who counted it as well: one of the two counts goes back,
                // that of the epoch which the chunk will not carry.
                (None, Some(now), None) => {
                    let newer = !now.covers(*target);
                    add_up(
                        &mut self.give_back,
                        if newer { now.epoch() } else { target.epoch() },
                    );
                    *had = Some(*now);
                    *target = Stamp::new(target.epoch(), true);
                }
                // Taken back by another, with the count that was to move along: there is nothing
                // left to store it on.
                (Some(_), None, Some(_)) => {
                    self.limit = self.limit.min(at);
                    break;
                }
                _ => {}
            }
        }
    }

    /// What was counted as inserted and did not get there.
    pub(super) fn give_back_unwritten(&mut self, from: usize) {
        let planned = self.had.iter().zip(&self.targets).skip(from);
        for (_, target) in planned.filter(|(had, _)| had.is_none()) {
            add_up(&mut self.give_back, target.epoch());
        }
    }

    pub(super) fn receipt(&self, slot: Slot, stored: usize) -> Option<Receipt> {
        let planned = self.had.iter().zip(&self.targets).take(stored).enumerate();
        let mut inserted = planned
            .filter(|(_, (had, _))| had.is_none())
            .map(|(at, (_, target))| (at, target.epoch()));
        // From the head on, epochs go back.
        let (first, newest) = inserted.next()?;
        let (last, oldest) = inserted.next_back().unwrap_or((first, newest));
        Some(Receipt {
            slot,
            chunks: first..last.saturating_add(1),
            oldest,
            newest,
        })
    }

    /// Removes the dead from a page; whoever writes it meanwhile wins.
    pub(super) fn sweep(&mut self, number: u32) {
        let number = number.checked_rem(self.table.pages()).unwrap_or(0);
        let page = self.pages.get(self.table, self.store, number);
        if page.purge(&self.slots) {
            self.pages.write(self.table, self.store, number);
        }
    }
}
