//! Changing a page in place: storing, purging, taking back.
//!
//! Invariant: those of a page, after each call; a page that is full stays as it is.
//! Cost: touching rewrites 6 bytes; a new run or mark moves what lies behind it.

use super::{Mark, Page, Run, DIR, HASH, HEADER, MARK, PAGE_MAX, RUN_COUNT, RUN_HEADER};
use crate::chunk::ChunkHash;
use crate::table::epoch::Stamp;
use crate::table::notify::Receipt;
use crate::table::slots::Slots;
use crate::table::wire;

/// New runs stop here, so that room is left for more pods to share the runs that are there.
const RUNS_MAX: usize = 3584;

/// No room, even after a purge.
#[derive(Debug, PartialEq, Eq)]
struct Full;

/// The outcome of [`Page::store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::table) struct Stored {
    /// Leading chunks that are in the page now.
    pub(in crate::table) chunks: usize,
    /// Whether the page must be written.
    pub(in crate::table) changed: bool,
}

impl Page {
    /// Stores a group's chunks for a slot, with a stamp each, never newer towards the tail.
    pub(in crate::table) fn store(
        &mut self,
        group: &[ChunkHash],
        stamps: &[Stamp],
        slot: u8,
        slots: &Slots,
    ) -> Stored {
        let mut stored = Stored {
            chunks: 0,
            changed: false,
        };
        let mut may_purge = true;
        while let Some((&first, stamps)) = group.get(stored.chunks).zip(stamps.get(stored.chunks..))
        {
            let rest = group.get(stored.chunks..).unwrap_or(&[]);
            let done = match self.find(first).map(|run| (run.at, run.common(rest))) {
                Some((at, common)) => {
                    self.touch(at, stamps.get(..common).unwrap_or(stamps), slot, slots)
                }
                None => self.append(rest, stamps, slot),
            };
            match done {
                Ok((chunks, changed)) => {
                    stored.chunks = stored.chunks.saturating_add(chunks);
                    stored.changed |= changed;
                }
                Err(Full) if may_purge && self.purge(slots) => stored.changed = true,
                Err(Full) => break,
            }
            may_purge &= done.is_ok();
        }
        stored
    }

    /// Ends of the runs of equal stamps, tail first: a mark is due for each.
    fn steps(stamps: &[Stamp]) -> impl Iterator<Item = (usize, Stamp)> + '_ {
        let mut newer: Option<Stamp> = None;
        stamps
            .iter()
            .enumerate()
            .rev()
            .filter_map(move |(at, &stamp)| {
                let step = newer != Some(stamp);
                newer = Some(stamp);
                step.then_some((at.saturating_add(1), stamp))
            })
    }

    fn touch(
        &mut self,
        at: usize,
        stamps: &[Stamp],
        slot: u8,
        slots: &Slots,
    ) -> Result<(usize, bool), Full> {
        let mut changed = false;
        for (len, stamp) in Page::steps(stamps) {
            changed |= self.set_mark(at, Mark { slot, len, stamp }, slots)?;
        }
        Ok((stamps.len(), changed))
    }

    /// Adds a mark to the run at `at`, in place of those that it makes pointless.
    fn set_mark(&mut self, at: usize, new: Mark, slots: &Slots) -> Result<bool, Full> {
        let Some(run) = self.run(at) else {
            return Err(Full);
        };
        let floor = slots.floor(new.slot);
        let own = |m: &Mark| m.slot == new.slot;
        let covered = |m: Mark| {
            own(&m) && m.stamp.covers(floor) && m.stamp.covers(new.stamp) && m.len >= new.len
        };
        if run.marks().any(covered) {
            return Ok(false);
        }
        let pointless = |m: &Mark| {
            own(m) && (!m.stamp.covers(floor) || (new.stamp.covers(m.stamp) && new.len >= m.len))
        };
        let place = run.marks().position(|m| pointless(&m)).or_else(|| {
            // A dead mark of any pod makes room as well.
            run.marks().position(|m| m.is_dead(slots))
        });
        let count = run.marks.len();
        let end = run.mark_at(count);
        match place {
            Some(place) => {
                let place_at = run.mark_at(place);
                wire::put(&mut self.bytes, place_at, &new.bytes());
                self.remove_marks_after(at, place, pointless);
            }
            None => {
                if count >= 255 || self.bytes.len().saturating_add(MARK) > PAGE_MAX {
                    return Err(Full);
                }
                self.bytes.splice(end..end, new.bytes());
                self.resized(at, count.saturating_add(1), MARK as i32);
            }
        }
        Ok(true)
    }

    fn remove_marks_after(&mut self, at: usize, place: usize, pointless: impl Fn(&Mark) -> bool) {
        while let Some(run) = self.run(at) {
            let later = run
                .marks()
                .enumerate()
                .filter(|(number, mark)| *number > place && pointless(mark));
            let Some((number, _)) = later.last() else {
                break;
            };
            let (count, mark_at) = (run.marks.len(), run.mark_at(number));
            self.remove_mark(at, count, mark_at);
        }
    }

    fn remove_mark(&mut self, at: usize, count: usize, mark_at: usize) {
        self.bytes
            .drain(mark_at..mark_at.saturating_add(MARK).min(self.bytes.len()));
        self.resized(at, count.saturating_sub(1), (MARK as i32).wrapping_neg());
    }

    /// After a run at `at` changed its marks: its count, and where later runs begin.
    fn resized(&mut self, at: usize, marks: usize, by: i32) {
        wire::put(
            &mut self.bytes,
            at.saturating_add(1),
            &[marks.min(255) as u8],
        );
        let from = self.directory_at();
        let entries = self.bytes.get_mut(from..).unwrap_or(&mut []);
        for [_, _, a, b] in entries.as_chunks_mut::<DIR>().0 {
            let offset = u16::from_le_bytes([*a, *b]);
            if usize::from(offset) > at {
                [*a, *b] = offset.wrapping_add(by as u16).to_le_bytes();
            }
        }
    }

    /// Adds a run of all of `chunks`.
    fn append(
        &mut self,
        chunks: &[ChunkHash],
        stamps: &[Stamp],
        slot: u8,
    ) -> Result<(usize, bool), Full> {
        let chunks = chunks.get(..stamps.len().min(255)).unwrap_or(chunks);
        let Some(first) = chunks.first() else {
            return Err(Full);
        };
        let marks = Page::steps(stamps).count();
        let grown = RUN_HEADER
            .saturating_add(chunks.len().saturating_mul(HASH))
            .saturating_add(marks.saturating_mul(MARK));
        if self.bytes.len().saturating_add(grown).saturating_add(DIR) > RUNS_MAX {
            return Err(Full);
        }
        let at = self.directory_at();
        let count = self.run_count();
        self.bytes.reserve_exact(grown.saturating_add(DIR));
        // The directory moves back by the size of the run.
        self.bytes.resize(self.bytes.len().saturating_add(grown), 0);
        let old_end = self.bytes.len().saturating_sub(grown);
        self.bytes
            .copy_within(at..old_end, at.saturating_add(grown));
        let hashes_at = at.saturating_add(RUN_HEADER);
        let mut mark_at = hashes_at.saturating_add(chunks.len().saturating_mul(HASH));
        wire::put(
            &mut self.bytes,
            at,
            &[chunks.len() as u8, marks.min(255) as u8],
        );
        let places = self.bytes.get_mut(hashes_at..mark_at).unwrap_or(&mut []);
        for (place, chunk) in places.as_chunks_mut::<HASH>().0.iter_mut().zip(chunks) {
            *place = chunk.0.to_le_bytes();
        }
        for (len, stamp) in Page::steps(stamps) {
            wire::put(&mut self.bytes, mark_at, &Mark { slot, len, stamp }.bytes());
            mark_at = mark_at.saturating_add(MARK);
        }
        let [.., s, t] = first.0.to_le_bytes();
        let [a, b] = (at as u16).to_le_bytes();
        self.bytes.extend_from_slice(&[s, t, a, b]);
        wire::put(
            &mut self.bytes,
            RUN_COUNT,
            &(count.saturating_add(1) as u16).to_le_bytes(),
        );
        Ok((chunks.len(), true))
    }

    /// Removes dead marks, and chunks that nobody holds; says whether there were any.
    pub(in crate::table) fn purge(&mut self, slots: &Slots) -> bool {
        let dead = |m: &Mark| m.is_dead(slots);
        let stale = |run: Run| {
            let longest = run.marks().map(|m| m.len).max().unwrap_or(0);
            longest < run.hashes.len() || run.marks().any(|m| dead(&m))
        };
        if !self.runs().any(stale) {
            return false;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        bytes.extend_from_slice(self.bytes.get(..HEADER).unwrap_or(&[]));
        let mut directory: Vec<[u8; DIR]> = Vec::with_capacity(self.run_count());
        for run in self.runs() {
            let alive = || run.marks().filter(|m| !dead(m));
            let Some(longest) = alive().map(|m| m.len).max() else {
                continue;
            };
            let hashes = run.hashes.get(..longest).unwrap_or(run.hashes);
            let Some([.., s, t]) = hashes.first() else {
                continue;
            };
            let [a, b] = (bytes.len() as u16).to_le_bytes();
            directory.push([*s, *t, a, b]);
            bytes.extend_from_slice(&[hashes.len() as u8, alive().count() as u8]);
            bytes.extend_from_slice(hashes.as_flattened());
            for mark in alive() {
                bytes.extend_from_slice(&mark.bytes());
            }
        }
        bytes.extend_from_slice(directory.as_flattened());
        self.bytes = bytes;
        wire::put(
            &mut self.bytes,
            RUN_COUNT,
            &(directory.len() as u16).to_le_bytes(),
        );
        true
    }

    /// Takes back what `receipt` inserted into chunks `from..` of a group and nobody touched since;
    /// says whether there was any. What was touched is held by a mark of its own.
    pub(in crate::table) fn take_back(
        &mut self,
        group: &[ChunkHash],
        from: usize,
        receipt: &Receipt,
    ) -> bool {
        let mut shortened = Vec::new();
        for (start, run, common) in self.walk(group) {
            let keep = from.saturating_sub(start);
            for (number, mark) in run.marks().enumerate() {
                // A longer one belongs to another prompt, which touched all of ours.
                let ours = mark.slot == receipt.slot.index
                    && receipt.inserted_at(mark.stamp)
                    && mark.len <= common;
                if ours && mark.len > keep {
                    shortened.push((run.mark_at(number), Mark { len: keep, ..mark }));
                }
            }
        }
        for (at, mark) in &shortened {
            // A mark of length 0 holds nothing; it makes room for the next.
            wire::put(&mut self.bytes, *at, &mark.bytes());
        }
        !shortened.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::epoch::Epoch;
    use crate::table::slots::PodKey;

    /// `n` chunks that start no other run.
    fn chunks(run: u64, n: u64) -> Vec<ChunkHash> {
        (0..n).map(|i| ChunkHash(wire::mix(run << 8 | i))).collect()
    }

    fn at(epoch: u32, n: usize) -> Vec<Stamp> {
        vec![Stamp::new(Epoch::new(epoch), false); n]
    }

    /// Two slots; in slot 0, what is older than `watermark` is dead.
    fn slots(watermark: u32) -> Slots {
        let mut slots = Slots::empty(2);
        slots.set_owner(0, PodKey::of("a"));
        slots.raise(0, Epoch::new(watermark));
        slots
    }

    /// A page that takes no more runs, all of slot 0 at epoch 5.
    fn full() -> (Page, u64) {
        let mut page = Page::empty();
        for run in 0.. {
            if page
                .store(&chunks(run, 10), &at(5, 10), 0, &slots(5))
                .chunks
                == 0
            {
                page.validate();
                return (page, run);
            }
        }
        unreachable!()
    }

    #[test]
    fn a_full_page_still_takes_marks() {
        let (mut page, runs) = full();
        assert!(runs > 30);
        let mut stored = 0;
        for run in 0..runs {
            stored += page
                .store(&chunks(run, 10), &at(5, 10), 1, &slots(5))
                .chunks;
            page.validate();
        }
        assert!(stored >= 300 && page.bytes.len() <= PAGE_MAX, "{stored}");
    }

    #[test]
    fn the_dead_make_room() {
        let (mut page, runs) = full();
        let new = page.store(&chunks(runs, 10), &at(9, 10), 0, &slots(9));
        assert_eq!(
            new,
            Stored {
                chunks: 10,
                changed: true
            }
        );
        page.validate();
        assert_eq!(page.runs().count(), 1, "a purge takes them all");
        assert!(!page.purge(&slots(9)));
    }

    #[test]
    fn a_purge_cuts_what_nobody_holds() {
        let mut page = Page::empty();
        page.store(&chunks(0, 10), &at(5, 10), 0, &slots(5));
        page.store(&chunks(0, 4), &at(6, 4), 0, &slots(5));
        assert!(page.purge(&slots(6)));
        page.validate();
        assert_eq!(
            page.runs()
                .map(|run| run.hashes().count())
                .collect::<Vec<_>>(),
            [4]
        );
        page.store(&chunks(0, 10), &at(6, 10), 0, &slots(6));
        let mut held = vec![None; 10];
        assert_eq!(
            page.held(&chunks(0, 10), 0, slots(6).floor(0), &mut held),
            10
        );
    }

    #[test]
    fn a_touch_replaces_what_it_makes_pointless() {
        let mut page = Page::empty();
        for len in (1..=10).rev() {
            page.store(
                &chunks(0, 10)[..len],
                &at(20 - len as u32, len),
                0,
                &slots(0),
            );
        }
        let marks = |page: &Page| page.runs().flat_map(|run| run.marks()).count();
        assert_eq!(marks(&page), 10, "the shorter, the newer");
        let again = page.store(&chunks(0, 10)[..5], &at(15, 5), 0, &slots(0));
        assert!(!again.changed, "known already");
        assert!(
            page.store(&chunks(0, 10), &at(19, 10), 0, &slots(0))
                .changed
        );
        page.validate();
        assert_eq!(marks(&page), 1);
    }

    #[test]
    fn runs_part_where_prompts_do() {
        let (one, mut other) = (chunks(0, 10), chunks(1, 10));
        other[..4].copy_from_slice(&one[..4]);
        let mut page = Page::empty();
        page.store(&one, &at(5, 10), 0, &slots(0));
        page.store(&other, &at(5, 10), 1, &slots(0));
        page.validate();
        let held = |slot: u8, chain: &[ChunkHash]| {
            page.held(chain, slot, slots(0).floor(slot), &mut [None; 10])
        };
        assert_eq!((held(0, &one), held(0, &other)), (10, 4));
        assert_eq!((held(1, &one), held(1, &other)), (4, 10));
        let stored: usize = page.runs().map(|run| run.hashes().count()).sum();
        assert_eq!(stored, 16, "shared chunks are stored once");
    }
}
