//! Leading chunks of a prompt that each pod holds.
//!
//! Cost: the slots and one page per 32 chunks, read from the head until no pod is left.

use super::frame::Kind;
use super::page::{pairs, Page};
use super::place::{self, STRIDES};
use super::slots::{Slot, Slots};
use super::Table;
use crate::chunk::ChunkHash;
use crate::store::SharedStore;
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

    fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

/// The answer, and the pages it was read from, for a notify that follows.
#[derive(Debug)]
pub struct Query {
    pub(super) slots: Slots,
    pub(super) pages: Pages,
    matched: Vec<u32>,
}

impl Query {
    /// Leading chunks held, for each slot that was asked for, in that order.
    pub fn matched(&self) -> &[u32] {
        &self.matched
    }
}

/// Pages by number, as they were read.
#[derive(Debug, Default)]
pub(super) struct Pages(HashMap<u64, Page>);

impl Pages {
    /// The page, read if it was not yet.
    pub fn get(&mut self, table: &Table, store: &dyn SharedStore, number: u64) -> &mut Page {
        self.0
            .entry(number)
            .or_insert_with(|| table.page(store, number))
    }

    /// To be read again.
    pub fn drop(&mut self, number: u64) {
        self.0.remove(&number);
    }
}

impl Table {
    /// Leading chunks of `chain` that each of `slots` holds; 0 for a slot that changed hands.
    pub fn query(&self, store: &dyn SharedStore, chain: &[ChunkHash], slots: &[Slot]) -> Query {
        let entries = self.slots(store);
        let mut pages = Pages::default();
        let mut left = Set::default();
        slots
            .iter()
            .filter(|slot| entries.owns(**slot))
            .for_each(|slot| left.insert(slot.index));
        let mut matched = [0u32; 256];
        let mut last: (Vec<u8>, Set) = (Vec::new(), Set::default());
        for (at, hash) in chain.iter().enumerate() {
            if left.is_empty() {
                break;
            }
            let mut present = Set::default();
            for level in 0..STRIDES.len() {
                let Some(number) = place::page(chain, at, level, self.pages) else {
                    break;
                };
                let page = pages.get(self, store, number);
                if let Some(found) = page.find(hash.0) {
                    let raw = page.raw_pairs(found);
                    // Neighbours are mostly held by the same pods since the same time.
                    if last.0 != raw {
                        let mut holders = Set::default();
                        pairs(raw)
                            .filter(|pair| entries.is_alive(pair.slot, pair.epoch))
                            .for_each(|pair| holders.insert(pair.slot));
                        last.0.clear();
                        last.0.extend_from_slice(raw);
                        last.1 = holders;
                    }
                    present = present.combine(last.1, |a, b| a | b);
                }
                let missing = left.combine(present, |left, present| left & !present);
                if missing.is_empty() || !page.overflowed() {
                    break;
                }
            }
            let gone = left.combine(present, |left, present| left & !present);
            if !gone.is_empty() {
                let depth = u32::try_from(at).unwrap_or(u32::MAX);
                for slot in slots.iter().filter(|slot| gone.contains(slot.index)) {
                    if let Some(matched) = matched.get_mut(slot.index()) {
                        *matched = depth;
                    }
                }
                left = left.combine(gone, |left, gone| left & !gone);
            }
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
        }
    }

    pub(super) fn page(&self, store: &dyn SharedStore, number: u64) -> Page {
        let found = store.get(&self.page_key(number));
        let (body, version) = self.open(found, Kind::Page);
        Page::new(body, version)
    }

    pub(super) fn page_key(&self, number: u64) -> String {
        let mut key = String::with_capacity(self.prefix.len().saturating_add(16));
        key.push_str(&self.prefix);
        key.push_str("page/");
        let mut digits = [0u8; 20];
        let mut rest = number;
        let mut start = digits.len();
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0'.wrapping_add((rest % 10) as u8);
            rest /= 10;
            start = place;
            if rest == 0 {
                break;
            }
        }
        digits
            .get(start..)
            .unwrap_or_default()
            .iter()
            .for_each(|digit| key.push(char::from(*digit)));
        key
    }
}
