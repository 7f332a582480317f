//! A page: chunk hashes in order, each with the (slot, epoch) pairs of the pods that hold it.
//!
//! Body: u32 number of hashes, u32 flags, then the hashes (u64, sorted), the end of each one's
//! pairs (u16, in pairs), the pairs (u32: slot 8 bits, touched 1, epoch 23). Looked up in place,
//! without decoding. Invariants: a hash stands once and has at least one pair; a slot stands once
//! behind a hash; the sealed page is at most [`PAGE_BYTES`].
//! Cost: a lookup is a binary search; an insert rewrites the page once for all its new chunks.

use super::frame::FRAME;
use super::geometry::PAGE_BYTES;
use super::ring::EPOCH_MASK;
use crate::store::Expect;

const HEAD: usize = 8;
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
    body: Vec<u8>,
    hashes: usize,
    version: Option<u32>,
}

impl Page {
    pub fn new(body: Vec<u8>, version: Option<u32>) -> Self {
        let mut page = Self {
            body,
            hashes: 0,
            version,
        };
        if page.body.len() < HEAD {
            page.body = vec![0; HEAD];
        }
        page.hashes = page.word(0) as usize;
        page
    }

    pub fn expect(&self) -> Expect {
        self.version.map_or(Expect::Absent, Expect::Version)
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn overflowed(&self) -> bool {
        self.word(4) & OVERFLOWED != 0
    }

    /// From now on readers that miss here look further.
    pub fn set_overflowed(&mut self) {
        let flags = self.word(4) | OVERFLOWED;
        self.set_word(4, flags);
    }

    /// Position of a hash.
    pub fn find(&self, hash: u64) -> Option<usize> {
        let (mut low, mut high) = (0usize, self.hashes);
        while low < high {
            let middle = low.wrapping_add(high) >> 1;
            match self.hash(middle).cmp(&hash) {
                core::cmp::Ordering::Less => low = middle.wrapping_add(1),
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// The pairs behind a position, as stored: equal bytes are equal pairs.
    pub fn raw_pairs(&self, at: usize) -> &[u8] {
        let (start, end) = self.pair_range(at);
        let base = self.pairs_offset();
        let byte = |pair: usize| base.wrapping_add(pair.wrapping_mul(PAIR_COST));
        self.body.get(byte(start)..byte(end)).unwrap_or(&[])
    }

    /// The pod's pair behind a hash, and where it is.
    pub fn pair_of(&self, hash: u64, slot: u8) -> Option<(usize, Pair)> {
        let found = self.find(hash)?;
        let (start, _) = self.pair_range(found);
        let pairs = pairs(self.raw_pairs(found));
        let (at, pair) = pairs.enumerate().find(|(_, pair)| pair.slot == slot)?;
        Some((start.wrapping_add(at), pair))
    }

    /// Overwrites the pair at a place that [`Page::pair_of`] gave.
    pub fn set_pair(&mut self, at: usize, pair: Pair) {
        let offset = self.pairs_offset().wrapping_add(at.wrapping_mul(PAIR_COST));
        self.set_word(offset, pair.encode());
    }

    /// Rewrites the page: pairs that `keep` refuses go, `inserts` come, in their order as far as
    /// there is room. Returns how many came in.
    pub fn rewrite(&mut self, keep: impl Fn(u64, Pair) -> bool, inserts: &[Insert]) -> usize {
        let kept = |at: usize| {
            let hash = self.hash(at);
            let kept = pairs(self.raw_pairs(at))
                .filter(|pair| keep(hash, *pair))
                .count();
            (hash, kept)
        };
        let mut size = FRAME.saturating_add(HEAD);
        for (_, kept) in (0..self.hashes).map(kept).filter(|(_, kept)| *kept > 0) {
            size = size
                .saturating_add(HASH_COST)
                .saturating_add(kept.saturating_mul(PAIR_COST));
        }
        let mut new: Vec<Insert> = Vec::with_capacity(inserts.len());
        for insert in inserts {
            let known = self.find(insert.hash).is_some_and(|at| kept(at).1 > 0);
            let hash = if known { 0 } else { HASH_COST };
            size = size.saturating_add(hash).saturating_add(PAIR_COST);
            if size > PAGE_BYTES {
                break;
            }
            new.insert(
                new.partition_point(|other| other.hash < insert.hash),
                *insert,
            );
        }
        let taken = new.len();
        let mut merged = Merged::with_capacity(self.hashes.saturating_add(taken));
        let mut new = new.into_iter().peekable();
        for at in 0..self.hashes {
            let hash = self.hash(at);
            while let Some(insert) = new.next_if(|insert| insert.hash < hash) {
                merged.push(insert.hash, insert.pair);
            }
            let kept = pairs(self.raw_pairs(at)).filter(|pair| keep(hash, *pair));
            kept.for_each(|pair| merged.push(hash, pair));
            while let Some(insert) = new.next_if(|insert| insert.hash == hash) {
                merged.push(hash, insert.pair);
            }
        }
        new.for_each(|insert| merged.push(insert.hash, insert.pair));
        self.hashes = merged.ends.len() / 2;
        self.body = merged.body(self.word(4));
        taken
    }

    /// The pairs behind all hashes.
    pub fn all_pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        pairs(self.body.get(self.pairs_offset()..).unwrap_or_default())
    }

    fn pairs_offset(&self) -> usize {
        HEAD.wrapping_add(self.hashes.wrapping_mul(HASH_COST))
    }

    fn hash(&self, at: usize) -> u64 {
        let offset = HEAD.wrapping_add(at.wrapping_mul(8));
        let bytes = self.body.get(offset..).and_then(<[u8]>::first_chunk::<8>);
        bytes.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
    }

    /// First pair behind a position, and the one after the last.
    fn pair_range(&self, at: usize) -> (usize, usize) {
        let ends = HEAD.wrapping_add(self.hashes.wrapping_mul(8));
        let end = |at: usize| {
            let bytes = self.body.get(ends.wrapping_add(at.wrapping_mul(2))..);
            let bytes = bytes.and_then(<[u8]>::first_chunk::<2>);
            bytes.map_or(0, |bytes| usize::from(u16::from_le_bytes(*bytes)))
        };
        (at.checked_sub(1).map_or(0, end), end(at))
    }

    fn word(&self, offset: usize) -> u32 {
        let bytes = self.body.get(offset..).and_then(<[u8]>::first_chunk::<4>);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn set_word(&mut self, offset: usize, word: u32) {
        let bytes = self
            .body
            .get_mut(offset..)
            .and_then(<[u8]>::first_chunk_mut::<4>);
        if let Some(bytes) = bytes {
            *bytes = word.to_le_bytes();
        }
    }

    /// Panics unless every invariant of a page holds.
    #[cfg(test)]
    pub fn validate(&self) {
        assert!(self.body.len() + FRAME <= PAGE_BYTES);
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
    }
}

/// The parts of a page that is being written, in the order of its hashes.
struct Merged {
    hashes: Vec<u8>,
    ends: Vec<u8>,
    pairs: Vec<u8>,
    last: Option<u64>,
}

impl Merged {
    fn with_capacity(hashes: usize) -> Self {
        Self {
            hashes: Vec::with_capacity(hashes.saturating_mul(8)),
            ends: Vec::with_capacity(hashes.saturating_mul(2)),
            pairs: Vec::with_capacity(hashes.saturating_mul(PAIR_COST)),
            last: None,
        }
    }

    fn push(&mut self, hash: u64, pair: Pair) {
        if self.last == Some(hash) {
            self.ends.truncate(self.ends.len().saturating_sub(2));
        } else {
            self.hashes.extend_from_slice(&hash.to_le_bytes());
            self.last = Some(hash);
        }
        self.pairs.extend_from_slice(&pair.encode().to_le_bytes());
        // A page has room for fewer than 65,536 pairs.
        let end = (self.pairs.len() / PAIR_COST) as u16;
        self.ends.extend_from_slice(&end.to_le_bytes());
    }

    fn body(self, flags: u32) -> Vec<u8> {
        let hashes = (self.ends.len() / 2) as u32;
        let parts = [&self.hashes, &self.ends, &self.pairs];
        let size = parts
            .iter()
            .fold(HEAD, |sum, part| sum.saturating_add(part.len()));
        let mut body = Vec::with_capacity(size);
        body.extend_from_slice(&hashes.to_le_bytes());
        body.extend_from_slice(&flags.to_le_bytes());
        parts
            .into_iter()
            .for_each(|part| body.extend_from_slice(part));
        body
    }
}

/// Decodes what [`Page::raw_pairs`] gave.
pub(super) fn pairs(raw: &[u8]) -> impl Iterator<Item = Pair> + '_ {
    raw.chunks_exact(PAIR_COST)
        .map(|bytes| Pair::decode(bytes.try_into().map_or(0, u32::from_le_bytes)))
}
