//! A page: chunk hashes in order, each with the (slot, epoch) pairs of the pods that hold it.
//!
//! Behind the frame: u32 number of hashes, u32 flags, then the hashes (u64, sorted), the end of
//! each one's pairs (u16, in pairs), the pairs (u32: slot 8 bits, touched 1, epoch 23). Read and
//! changed in place. Invariants: a hash stands once and has at least one pair; a slot stands once
//! behind a hash; the value is at most [`PAGE_BYTES`].
//! Cost: hashes are uniform, so a lookup starts where the hash should be and is there after a few
//! steps; an insert copies the page once for all its new chunks.

use super::frame::FRAME;
use super::geometry::PAGE_BYTES;
use super::ring::EPOCH_MASK;
use crate::store::Expect;

const HASHES: usize = FRAME + 8;
const OVERFLOWED: u32 = 1;
const TOUCHED: u32 = 1 << 23;
/// Bytes that a new hash takes besides its pairs, and a pair.
const HASH_COST: usize = 10;
const PAIR_COST: usize = 4;

/// One pod's hold on a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub slot: u8,
    /// Another notify touched it in the same epoch.
    pub touched: bool,
    pub epoch: u32,
}

impl Pair {
    fn decode(word: u32) -> Self {
        Self {
            slot: (word >> 24) as u8,
            touched: word & TOUCHED != 0,
            epoch: word & EPOCH_MASK,
        }
    }

    fn encode(self) -> u32 {
        let touched = if self.touched { TOUCHED } else { 0 };
        (u32::from(self.slot) << 24) | touched | (self.epoch & EPOCH_MASK)
    }
}

/// A chunk to be added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Insert {
    pub hash: u64,
    pub pair: Pair,
}

/// A page as read, perhaps changed since.
#[derive(Debug, Clone)]
pub(super) struct Page {
    value: Vec<u8>,
    hashes: usize,
    version: Option<u32>,
}

impl Page {
    /// A value that was found sound; any other is an empty page.
    pub fn new(sound: Option<Vec<u8>>, version: Option<u32>) -> Self {
        let mut page = Self {
            value: sound.unwrap_or_default(),
            hashes: 0,
            version,
        };
        if page.value.len() < HASHES {
            page.value = vec![0; HASHES];
        }
        page.hashes = page.word(FRAME) as usize;
        page
    }

    pub fn expect(&self) -> Expect {
        self.version.map_or(Expect::Absent, Expect::Version)
    }

    /// The value, to be sealed.
    pub fn value(&mut self) -> &mut [u8] {
        &mut self.value
    }

    pub fn overflowed(&self) -> bool {
        self.word(FRAME + 4) & OVERFLOWED != 0
    }

    /// From now on readers that miss here look further.
    pub fn set_overflowed(&mut self) {
        let flags = self.word(FRAME + 4) | OVERFLOWED;
        self.set_word(FRAME + 4, flags);
    }

    /// Position of a hash.
    pub fn find(&self, hash: u64) -> Option<usize> {
        self.search(hash).ok()
    }

    /// Position of a hash, or where it would stand.
    fn search(&self, hash: u64) -> Result<usize, usize> {
        let hashes = self.value.get(HASHES..).unwrap_or_default();
        let hashes = hashes
            .get(..self.hashes.wrapping_mul(8))
            .unwrap_or_default();
        let at = |i: usize| {
            let bytes = hashes
                .get(i.wrapping_mul(8)..)
                .and_then(<[u8]>::first_chunk::<8>);
            bytes.map(|bytes| u64::from_le_bytes(*bytes))
        };
        let mut i = ((hash >> 32).wrapping_mul(self.hashes as u64) >> 32) as usize;
        while at(i).is_some_and(|found| found < hash) {
            i = i.wrapping_add(1);
        }
        while let Some(found) = i.checked_sub(1).and_then(at) {
            if found < hash {
                break;
            }
            i = i.wrapping_sub(1);
        }
        if at(i) == Some(hash) {
            Ok(i)
        } else {
            Err(i)
        }
    }

    /// The pairs behind a position, as stored: equal bytes are equal pairs.
    pub fn raw_pairs(&self, at: usize) -> &[u8] {
        let (start, end) = self.pair_range(at);
        self.value
            .get(self.pair_offset(start)..self.pair_offset(end))
            .unwrap_or_default()
    }

    /// The pod's pair behind a hash, and where it is.
    pub fn pair_of(&self, hash: u64, slot: u8) -> Option<(usize, Pair)> {
        self.pair_at(self.find(hash)?, slot)
    }

    /// The pod's pair behind a position, and where it is.
    pub fn pair_at(&self, position: usize, slot: u8) -> Option<(usize, Pair)> {
        let mut found = pairs(self.raw_pairs(position)).enumerate();
        let (at, pair) = found.find(|(_, pair)| pair.slot == slot)?;
        Some((self.pair_range(position).0.wrapping_add(at), pair))
    }

    /// Overwrites the pair at a place that [`Page::pair_of`] gave.
    pub fn set_pair(&mut self, at: usize, pair: Pair) {
        self.set_word(self.pair_offset(at), pair.encode());
    }

    /// Adds all `inserts` if there is room for them; else changes nothing.
    #[must_use]
    pub fn insert(&mut self, inserts: &[Insert]) -> bool {
        let mut new: Vec<Insert> = Vec::with_capacity(inserts.len());
        for insert in inserts {
            new.insert(
                new.partition_point(|other| other.hash < insert.hash),
                *insert,
            );
        }
        let most = new.len().saturating_mul(HASH_COST.wrapping_add(PAIR_COST));
        let mut merged = Merged::with_room_for(self.value.len().saturating_add(most));
        let mut new = new.into_iter().peekable();
        let mut start = 0usize;
        for (hash, end) in self.entries() {
            while let Some(insert) = new.next_if(|insert| insert.hash < hash) {
                merged.hash(insert.hash);
                merged.pair(insert.pair.encode());
                merged.end();
            }
            merged.hash(hash);
            self.words(start..end).for_each(|pair| merged.pair(pair));
            start = end;
            while let Some(insert) = new.next_if(|insert| insert.hash == hash) {
                merged.pair(insert.pair.encode());
            }
            merged.end();
        }
        for insert in new {
            merged.hash(insert.hash);
            merged.pair(insert.pair.encode());
            merged.end();
        }
        self.replace(merged)
    }

    fn replace(&mut self, merged: Merged) -> bool {
        let hashes = merged.hashes.len() / 8;
        let value = merged.value(self.word(FRAME + 4));
        let fits = value.len() <= PAGE_BYTES;
        if fits {
            self.value = value;
            self.hashes = hashes;
        }
        fits
    }

    /// Drops the pairs that `keep` refuses.
    pub fn retain(&mut self, keep: impl Fn(u64, Pair) -> bool) {
        let mut merged = Merged::with_room_for(self.value.len());
        let mut start = 0usize;
        for (hash, end) in self.entries() {
            let before = merged.pairs.len();
            let kept = self
                .words(start..end)
                .filter(|word| keep(hash, Pair::decode(*word)));
            kept.for_each(|pair| merged.pair(pair));
            start = end;
            if merged.pairs.len() > before {
                merged.hash(hash);
                merged.end();
            }
        }
        self.replace(merged);
    }

    /// The pairs behind all hashes.
    pub fn all_pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        pairs(self.value.get(self.pair_offset(0)..).unwrap_or_default())
    }

    /// Each hash and the end of its pairs.
    fn entries(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let middle = HASHES.wrapping_add(self.hashes.wrapping_mul(8));
        let hashes = self
            .value
            .get(HASHES..middle)
            .unwrap_or_default()
            .chunks_exact(8);
        let ends = self
            .value
            .get(middle..self.pair_offset(0))
            .unwrap_or_default()
            .chunks_exact(2);
        let hashes = hashes.map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
        hashes.zip(ends.map(|bytes| bytes.try_into().map_or(0, u16::from_le_bytes).into()))
    }

    /// Pairs as stored.
    fn words(&self, pairs: core::ops::Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let bytes = self.pair_offset(pairs.start)..self.pair_offset(pairs.end);
        let words = self
            .value
            .get(bytes)
            .unwrap_or_default()
            .chunks_exact(PAIR_COST);
        words.map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    fn pair_offset(&self, at: usize) -> usize {
        let pairs = HASHES.wrapping_add(self.hashes.wrapping_mul(HASH_COST));
        pairs.wrapping_add(at.wrapping_mul(PAIR_COST))
    }

    fn hash(&self, at: usize) -> u64 {
        let bytes = self.value.get(HASHES.wrapping_add(at.wrapping_mul(8))..);
        let bytes = bytes.and_then(<[u8]>::first_chunk::<8>);
        bytes.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
    }

    /// First pair behind a position, and the one after the last.
    fn pair_range(&self, at: usize) -> (usize, usize) {
        (
            at.checked_sub(1).map_or(0, |before| self.end(before)),
            self.end(at),
        )
    }

    fn end(&self, at: usize) -> usize {
        let ends = HASHES.wrapping_add(self.hashes.wrapping_mul(8));
        let bytes = self.value.get(ends.wrapping_add(at.wrapping_mul(2))..);
        let bytes = bytes.and_then(<[u8]>::first_chunk::<2>);
        bytes.map_or(0, |bytes| usize::from(u16::from_le_bytes(*bytes)))
    }

    fn word(&self, offset: usize) -> u32 {
        let bytes = self.value.get(offset..).and_then(<[u8]>::first_chunk::<4>);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn set_word(&mut self, offset: usize, word: u32) {
        let bytes = self
            .value
            .get_mut(offset..)
            .and_then(<[u8]>::first_chunk_mut::<4>);
        if let Some(bytes) = bytes {
            *bytes = word.to_le_bytes();
        }
    }

    /// Panics unless every invariant of a page holds.
    #[cfg(test)]
    pub fn validate(&self) {
        assert!(self.value.len() <= PAGE_BYTES);
        let hashes: Vec<u64> = (0..self.hashes).map(|at| self.hash(at)).collect();
        assert!(
            hashes.windows(2).all(|pair| pair[0] < pair[1]),
            "hashes are not in order"
        );
        for at in 0..self.hashes {
            let mut slots: Vec<u8> = pairs(self.raw_pairs(at)).map(|pair| pair.slot).collect();
            assert!(!slots.is_empty(), "a hash without pairs");
            let count = slots.len();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), count, "a slot twice behind one hash");
        }
        let pairs = self
            .hashes
            .checked_sub(1)
            .map_or(0, |last| self.pair_range(last).1);
        assert_eq!(self.value.len(), self.pair_offset(pairs), "bytes left over");
    }
}

/// Decodes what [`Page::raw_pairs`] gave.
pub(super) fn pairs(raw: &[u8]) -> impl Iterator<Item = Pair> + '_ {
    raw.chunks_exact(PAIR_COST)
        .map(|bytes| Pair::decode(bytes.try_into().map_or(0, u32::from_le_bytes)))
}

/// The parts of a page that is being written, in the order of its hashes.
struct Merged {
    hashes: Vec<u8>,
    ends: Vec<u8>,
    pairs: Vec<u8>,
}

impl Merged {
    fn with_room_for(bytes: usize) -> Self {
        let part = |share: usize| Vec::with_capacity(bytes.saturating_mul(share) / 14);
        Self {
            hashes: part(8),
            ends: part(2),
            pairs: part(4),
        }
    }

    fn hash(&mut self, hash: u64) {
        self.hashes.extend_from_slice(&hash.to_le_bytes());
    }

    fn pair(&mut self, word: u32) {
        self.pairs.extend_from_slice(&word.to_le_bytes());
    }

    /// The pairs of the last hash are complete.
    fn end(&mut self) {
        // A page has room for fewer than 65,536 pairs.
        let end = (self.pairs.len() / PAIR_COST) as u16;
        self.ends.extend_from_slice(&end.to_le_bytes());
    }

    fn value(&self, flags: u32) -> Vec<u8> {
        let parts = [&self.hashes, &self.ends, &self.pairs];
        let size = parts
            .iter()
            .fold(HASHES, |sum, part| sum.saturating_add(part.len()));
        let mut value = Vec::with_capacity(size);
        value.resize(FRAME, 0);
        value.extend_from_slice(&((self.hashes.len() / 8) as u32).to_le_bytes());
        value.extend_from_slice(&flags.to_le_bytes());
        parts
            .into_iter()
            .for_each(|part| value.extend_from_slice(part));
        value
    }
}
