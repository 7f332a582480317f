//! Taking a notify back.
//!
//! Invariant: only what that notify inserted goes, and only where nobody touched it since: a
//! touch in a later epoch moves the chunk, one in the same epoch marks it.
//! Cost: a `get` and a `set` of every page that it inserted into, and of the ring.

use super::page::Pair;
use super::place::{self, LEVELS};
use super::slots::Slot;
use super::{Table, TRIES};
use crate::chunk::ChunkHash;
use crate::store::SharedStore;

/// What a notify inserted, to be taken back if the pod did no work.
#[derive(Debug)]
pub struct Receipt {
    pub(super) slot: Slot,
    /// Position in the prompt and epoch of each chunk that was new.
    pub(super) inserted: Vec<(u32, u32)>,
}

/// A chunk to be removed.
#[derive(Debug, Clone, Copy)]
struct Target {
    page: u64,
    hash: u64,
    epoch: u32,
}

impl Receipt {
    pub(super) fn empty(slot: Slot) -> Self {
        Self {
            slot,
            inserted: Vec::new(),
        }
    }
}

impl Table {
    /// Takes a notify of `chain` back.
    pub fn undo(&self, store: &dyn SharedStore, chain: &[ChunkHash], receipt: Receipt) {
        let Receipt { slot, inserted } = receipt;
        let slots = self.slots(store);
        if inserted.is_empty() || !slots.owns(slot) {
            return;
        }
        let mut give_back = Vec::new();
        for level in 0..LEVELS {
            let target = |(at, epoch): &(u32, u32)| {
                let at = *at as usize;
                let page = place::page(chain, at, level, self.pages)?;
                Some(Target {
                    page,
                    hash: chain.get(at)?.0,
                    epoch: *epoch,
                })
            };
            // In the order of the prompt, chunks of a page are neighbours.
            let targets: Vec<Target> = inserted.iter().filter_map(target).collect();
            let mut overflowed = false;
            for group in targets.chunk_by(|a, b| a.page == b.page) {
                overflowed |= self.remove(store, slot, group, &mut give_back);
            }
            if !overflowed {
                break;
            }
        }
        self.give_back(store, slot, &slots, &give_back);
    }

    /// Removes chunks from one page; says whether others may be on a deeper level.
    fn remove(
        &self,
        store: &dyn SharedStore,
        slot: Slot,
        group: &[Target],
        give_back: &mut Vec<u32>,
    ) -> bool {
        let Some(first) = group.first() else {
            return false;
        };
        for _ in 0..TRIES {
            let mut page = self.page(store, first.page);
            let goes = |target: &&Target, pair: Pair| {
                pair.slot == slot.index && !pair.touched && pair.epoch == target.epoch
            };
            let gone: Vec<&Target> = group
                .iter()
                .filter(|target| {
                    let found = page.pair_of(target.hash, slot.index);
                    found.is_some_and(|(_, pair)| goes(target, pair))
                })
                .collect();
            let overflowed = page.overflowed();
            if gone.is_empty() {
                return overflowed;
            }
            page.retain(|hash, pair| {
                pair.slot != slot.index || !gone.iter().any(|target| target.hash == hash)
            });
            if self.write_page(store, first.page, &mut page) {
                give_back.extend(gone.iter().map(|target| target.epoch));
                return overflowed;
            }
        }
        self.count(|stats| &mut stats.dropped_notifies);
        false
    }
}
