//! Leading chunks of a prompt that each pod holds.
//!
//! Cost: the slots and one page per 32 chunks, read from the head until no pod is left.

use super::page::{pairs, Page};
use super::place::{self, LEVELS, STRIDE};
use super::slots::{Slot, Slots};
use super::Table;
use crate::chunk::ChunkHash;
use crate::store::SharedStore;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

/// A set of slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Set([u64; 4]);

impl Set {
    fn insert(&mut self, slot: u8) {
        if let Some(word) = self.0.get_mut(usize::from(slot >> 6)) {
            *word |= 1 << (slot & 63);
        }
    }

    fn contains(&self, slot: u8) -> bool {
        self.0
            .get(usize::from(slot >> 6))
            .is_some_and(|word| word & (1 << (slot & 63)) != 0)
    }

    fn combine(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let [a, b, c, d] = self.0;
        let [e, g, h, i] = other.0;
        Self([f(a, e), f(b, g), f(c, h), f(d, i)])
    }

    fn without(self, other: Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

/// The answer, and the pages it was read from, for a notify that follows.
#[derive(Debug)]
pub struct Query {
    pub(super) slots: Slots,
    pub(super) pages: Pages,
    pub(super) positions: Positions,
    matched: Vec<u32>,
}

/// Where each chunk stands in its page of the first level, as far as it was looked up.
pub(super) type Positions = Vec<Option<usize>>;

impl Query {
    /// Leading chunks held, for each slot that was asked for, in that order.
    pub fn matched(&self) -> &[u32] {
        &self.matched
    }
}

/// Pages by number, as they were read.
#[derive(Debug, Default)]
pub(super) struct Pages(HashMap<u64, Page, BuildHasherDefault<Spread>>);

impl Pages {
    /// The page, read if it was not yet.
    pub fn get(&mut self, table: &Table, store: &dyn SharedStore, number: u64) -> &mut Page {
        self.0
            .entry(number)
            .or_insert_with(|| table.page(store, number))
    }

    /// Whether the page is still as it was read.
    pub fn has(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    /// The page, for good: whoever needs it after that reads it again.
    pub fn take(&mut self, table: &Table, store: &dyn SharedStore, number: u64) -> Page {
        self.0
            .remove(&number)
            .unwrap_or_else(|| table.page(store, number))
    }
}

/// Numbers of pages are spread already; one multiplication makes their high bits differ.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Who holds chunks with these pairs; neighbours are mostly held by the same pods.
struct Holders<'a> {
    slots: &'a Slots,
    raw: Vec<u8>,
    live: Set,
}

impl Holders<'_> {
    fn of(&mut self, raw: &[u8]) -> Set {
        if self.raw != raw {
            self.live = Set::default();
            for pair in pairs(raw).filter(|pair| self.slots.is_alive(pair.slot, pair.epoch)) {
                self.live.insert(pair.slot);
            }
            self.raw.clear();
            self.raw.extend_from_slice(raw);
        }
        self.live
    }
}

impl Table {
    /// Leading chunks of `chain` that each of `slots` holds; 0 for a slot that changed hands.
    pub fn query(&self, store: &dyn SharedStore, chain: &[ChunkHash], slots: &[Slot]) -> Query {
        let entries = self.slots(store);
        let mut pages = Pages::default();
        let mut holders = Holders {
            slots: &entries,
            raw: Vec::new(),
            live: Set::default(),
        };
        let mut left = Set::default();
        slots
            .iter()
            .filter(|slot| entries.owns(**slot))
            .for_each(|slot| left.insert(slot.index));
        let mut matched = [0u32; 256];
        let mut positions = Positions::with_capacity(chain.len());
        let mut at = 0usize;
        while at < chain.len() && !left.is_empty() {
            let Some(number) = place::page(chain, at, 0, self.pages) else {
                break;
            };
            let page = pages.get(self, store, number);
            let overflowed = page.overflowed();
            // The longest part of the stride for which this page alone tells who drops out.
            let mut gone = Set::default();
            let stride = chain.get(at..).unwrap_or_default();
            let to_end = STRIDE.wrapping_sub(at & STRIDE.wrapping_sub(1));
            for hash in stride.iter().take(to_end) {
                let found = page
                    .find(hash.0)
                    .map(|found| holders.of(page.raw_pairs(found)));
                gone = left.without(found.unwrap_or_default());
                if !gone.is_empty() {
                    break;
                }
                at = at.wrapping_add(1);
            }
            if gone.is_empty() {
                continue;
            }
            if overflowed {
                gone = self.missing_further(store, chain, at, gone, &mut pages, &mut holders);
            }
            for slot in slots.iter().filter(|slot| gone.contains(slot.index)) {
                if let Some(matched) = matched.get_mut(slot.index()) {
                    *matched = u32::try_from(at).unwrap_or(u32::MAX);
                }
            }
            left = left.without(gone);
            // Those that are left have it, here or further down.
            at = at.wrapping_add(1);
        }
        let all = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let of = |slot: &Slot| match left.contains(slot.index) {
            true => all,
            false => matched.get(slot.index()).copied().unwrap_or(0),
        };
        let matched = slots
            .iter()
            .map(|slot| if entries.owns(*slot) { of(slot) } else { 0 });
        Query {
            matched: matched.collect(),
            slots: entries,
            pages,
            positions,
        }
    }

    /// Of the slots that miss a chunk on the first level, those that miss it on all.
    fn missing_further(
        &self,
        store: &dyn SharedStore,
        chain: &[ChunkHash],
        at: usize,
        mut missing: Set,
        pages: &mut Pages,
        holders: &mut Holders<'_>,
    ) -> Set {
        for level in 1..LEVELS {
            let (Some(number), Some(hash)) =
                (place::page(chain, at, level, self.pages), chain.get(at))
            else {
                break;
            };
            let page = pages.get(self, store, number);
            if let Some(found) = page.find(hash.0) {
                missing = missing.without(holders.of(page.raw_pairs(found)));
            }
            if missing.is_empty() || !page.overflowed() {
                break;
            }
        }
        missing
    }
}
