//! One page of entries, worked on in its own bytes.
//!
//! A page holds *runs*: consecutive chunks of some prompt, stored once, with marks behind them.
//! A mark (slot, length, stamp) says that the slot's pod holds the first `length` chunks of the
//! run, last touched at `stamp`. So a prompt of 32 chunks costs one mark per pod and not 32,
//! touching it rewrites 6 bytes, and what a pod holds of a run has no holes by construction.
//! Prompts that part from a run in its middle continue in a run of their own, found by the hash
//! of its first chunk, as in a trie.
//!
//! ```text
//! seal 8 | runs 2 | flags 2 | run … run | directory: (tag 2, offset 2) per run
//! run: chunks 1 | marks 1 | hash 8 × chunks | (stamp 4, slot 1, length 1) × marks
//! ```
//!
//! Invariant: at most [`PAGE_MAX`] bytes; runs start with distinct hashes; among the marks of a
//! slot in a run, the shorter are the newer.
//! Cost: a lookup scans the directory (4 bytes a run) and then compares hashes in order; no
//! decoding, and no allocation but in a purge.

use super::epoch::Stamp;
use super::slots::Slots;
use super::wire;
use crate::chunk::ChunkHash;

mod edit;

/// Bytes of the largest page.
pub(super) const PAGE_MAX: usize = 4096;
const HEADER: usize = wire::SEAL + 4;
const RUN_COUNT: usize = wire::SEAL;
const FLAGS: usize = wire::SEAL + 2;
const OVERFLOWED: u16 = 1;
const RUN_HEADER: usize = 2;
const HASH: usize = 8;
const MARK: usize = 6;
const DIR: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    bytes: Vec<u8>,
}

/// What a pod holds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) slot: u8,
    pub(super) len: usize,
    pub(super) stamp: Stamp,
}

impl Mark {
    #[inline]
    fn read(bytes: &[u8; MARK]) -> Self {
        let [a, b, c, d, slot, len] = *bytes;
        Mark {
            slot,
            len: usize::from(len),
            stamp: Stamp::from_raw(u32::from_le_bytes([a, b, c, d])),
        }
    }

    fn is_dead(&self, slots: &Slots) -> bool {
        self.len == 0 || !self.stamp.covers(slots.floor(self.slot))
    }

    fn bytes(self) -> [u8; MARK] {
        let [a, b, c, d] = self.stamp.raw().to_le_bytes();
        [a, b, c, d, self.slot, self.len.min(255) as u8]
    }
}

/// A run and where it lies in the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    at: usize,
    hashes: &'a [[u8; HASH]],
    marks: &'a [[u8; MARK]],
}

impl<'a> Run<'a> {
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> + 'a {
        self.marks.iter().map(Mark::read)
    }

    /// Leading chunks that the run and the chain have in common.
    fn common(&self, chain: &[ChunkHash]) -> usize {
        let pairs = self.hashes.iter().zip(chain);
        pairs
            .take_while(|(bytes, chunk)| u64::from_le_bytes(**bytes) == chunk.0)
            .count()
    }

    #[cfg(test)]
    pub(super) fn hashes(&self) -> impl Iterator<Item = u64> + 'a {
        self.hashes.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn marks_at(&self) -> usize {
        let hashes = self.hashes.len().saturating_mul(HASH);
        self.at.saturating_add(RUN_HEADER).saturating_add(hashes)
    }

    fn mark_at(&self, number: usize) -> usize {
        self.marks_at().saturating_add(number.saturating_mul(MARK))
    }
}

impl Page {
    pub(super) fn empty() -> Self {
        Page {
            bytes: vec![0; HEADER],
        }
    }

    /// Nothing when the value is junk.
    pub(super) fn decode(tag: u64, bytes: Vec<u8>) -> Option<Self> {
        let sound = bytes.len() >= HEADER && bytes.len() <= PAGE_MAX && wire::verify(tag, &bytes);
        sound.then_some(Page { bytes })
    }

    /// The value to write.
    pub(super) fn seal(&mut self, tag: u64) -> &[u8] {
        wire::seal(tag, &mut self.bytes);
        &self.bytes
    }

    /// Whether chunks of this page may have gone one level down; it stays so.
    pub(super) fn overflowed(&self) -> bool {
        wire::u16_at(&self.bytes, FLAGS).is_some_and(|flags| flags & OVERFLOWED != 0)
    }

    /// Says whether the mark is new.
    pub(super) fn set_overflowed(&mut self) -> bool {
        let new = !self.overflowed();
        wire::put(&mut self.bytes, FLAGS, &OVERFLOWED.to_le_bytes());
        new
    }

    fn run_count(&self) -> usize {
        usize::from(wire::u16_at(&self.bytes, RUN_COUNT).unwrap_or(0))
    }

    fn directory_at(&self) -> usize {
        self.bytes
            .len()
            .saturating_sub(self.run_count().saturating_mul(DIR))
    }

    fn directory(&self) -> &[[u8; DIR]] {
        self.bytes
            .get(self.directory_at()..)
            .unwrap_or(&[])
            .as_chunks()
            .0
    }

    fn run(&self, at: usize) -> Option<Run<'_>> {
        let body = self.bytes.get(at..)?;
        let (&[chunks, marks], rest) = body.split_first_chunk()?;
        let (hashes, rest) = rest.split_at_checked(usize::from(chunks).wrapping_mul(HASH))?;
        let marks = rest.get(..usize::from(marks).wrapping_mul(MARK))?;
        Some(Run {
            at,
            hashes: hashes.as_chunks().0,
            marks: marks.as_chunks().0,
        })
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.directory()
            .iter()
            .filter_map(|&[_, _, a, b]| self.run(usize::from(u16::from_le_bytes([a, b]))))
    }

    /// The run that starts with that chunk.
    fn find(&self, first: ChunkHash) -> Option<Run<'_>> {
        let [.., s, t] = first.0.to_le_bytes();
        for &[x, y, a, b] in self.directory() {
            if [x, y] == [s, t] {
                let run = self.run(usize::from(u16::from_le_bytes([a, b])));
                let same = |run: &Run| run.hashes.first() == Some(&first.0.to_le_bytes());
                if let Some(run) = run.filter(same) {
                    return Some(run);
                }
            }
        }
        None
    }

    /// The runs along a group's chunks: where each begins, the run, and its chunks in common.
    pub(super) fn walk<'a>(
        &'a self,
        group: &'a [ChunkHash],
    ) -> impl Iterator<Item = (usize, Run<'a>, usize)> {
        let mut at = 0usize;
        core::iter::from_fn(move || {
            let rest = group.get(at..)?;
            let run = self.find(*rest.first()?)?;
            let common = run.common(rest);
            let start = at;
            at = at.saturating_add(common);
            Some((start, run, common))
        })
    }

    /// Fills in how the slot holds each of a group's leading chunks; returns their number.
    pub(super) fn held(
        &self,
        group: &[ChunkHash],
        slot: u8,
        floor: Stamp,
        out: &mut [Option<Stamp>],
    ) -> usize {
        let mut reach = 0;
        for (start, run, common) in self.walk(group) {
            if reach < start {
                break;
            }
            for mark in run
                .marks()
                .filter(|m| m.slot == slot && m.stamp.covers(floor))
            {
                let end = start.saturating_add(mark.len.min(common));
                reach = reach.max(end);
                for known in out.get_mut(start..end).unwrap_or(&mut []) {
                    if known.is_none_or(|stamp| mark.stamp.covers(stamp)) {
                        *known = Some(mark.stamp);
                    }
                }
            }
        }
        reach
    }

    /// Every invariant of a page by itself.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        assert!(self.bytes.len() <= PAGE_MAX);
        let mut end = HEADER;
        let mut starts = std::collections::BTreeSet::new();
        assert_eq!(self.runs().count(), self.run_count());
        for run in self.runs() {
            assert_eq!(run.at, end, "runs lie behind one another");
            end = run.mark_at(run.marks.len());
            assert!(starts.insert(run.hashes[0]), "two runs with one start");
            for mark in run.marks() {
                assert!(mark.len <= run.hashes.len());
            }
        }
        assert_eq!(end, self.directory_at());
    }
}
