//! Chunk hashes -> matched chunks per pod: the LRU prefix tables in shared data.
//!
//! Owns what is known of the pods' caches. `query` gives the leading chunks of a prompt that each
//! pod holds, `notify` stores a prompt for a pod and evicts that pod's least recently used chunks,
//! `undo` takes a notify back, `forget` empties a pod.
//!
//! Three kinds of values, all with a checksum and the geometry in front ([`frame`]):
//!
//! | key | holds | written by |
//! |---|---|---|
//! | `…/slots` | who owns each slot, the epoch below which its chunks are dead ([`slots`]) | a new pod, an eviction, a forget |
//! | `…/ring/<slot>` | how many live chunks each span of epochs has ([`ring`]) | every notify of that pod |
//! | `…/page/<n>` | chunk hashes with (slot, epoch) pairs behind them ([`page`]) | notifies that change it |
//!
//! A chunk counts for a pod while the epoch beside it is not below the pod's watermark, so that an
//! eviction is one number raised. Invariants: a query never sees more than C chunks of a pod (the
//! ring is charged before pages are written); chunk i never counts without those before it (pages
//! are read from the head); no value of another geometry, version or checksum is ever used.
//! Cost: one `get` of the slots and one per page of up to 32 chunks; a notify adds a `set` per
//! changed page, and a `get` and two `set`s of the ring.

mod frame;
mod geometry;
mod notify;
mod page;
mod place;
mod query;
mod ring;
mod slots;
mod undo;

#[cfg(test)]
mod tests;

pub use geometry::{Footprint, Geometry};
pub use notify::Notified;
pub use query::Query;
pub use slots::Slot;
pub use undo::Receipt;

use crate::store::SharedStore;
use core::cell::Cell;
use frame::Tag;
use page::Page;
use ring::Ring;
use slots::Slots;

/// How often a write that lost against another worker is tried again.
const TRIES: usize = 16;

/// The tables of one pool, as one VM works on them.
#[derive(Debug)]
pub struct Table {
    geometry: Geometry,
    prefix: String,
    slots_key: String,
    pages: u64,
    sweep: Cell<u64>,
    stats: Cell<Stats>,
}

/// What happened since this VM started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Writes repeated because another worker was first.
    pub cas_retries: u64,
    /// Notifies given up, wholly or in part, after [`TRIES`].
    pub dropped_notifies: u64,
    /// Chunks for which no page had room.
    pub dropped_chunks: u64,
    /// Values of another geometry or version, or with a wrong checksum.
    pub junk_pages: u64,
}

impl Table {
    /// The tables of `pool`. `seed` spreads the workers' sweeps; any number will do.
    pub fn new(pool: &str, geometry: Geometry, seed: u64) -> Self {
        let pages = geometry.pages();
        Self {
            geometry,
            slots_key: format!("prefix_router/{pool}/slots"),
            prefix: format!("prefix_router/{pool}/"),
            pages,
            sweep: Cell::new(seed.checked_rem(pages).unwrap_or(0)),
            stats: Cell::new(Stats::default()),
        }
    }

    /// Keys and bytes that the tables can take at most.
    pub fn footprint(&self) -> Footprint {
        self.geometry.footprint()
    }

    /// What happened since this VM started.
    pub fn stats(&self) -> Stats {
        self.stats.get()
    }

    /// Finds the pod's slot or gives it one. When all are taken, one whose pod is not in `live`
    /// is emptied and reused; `None` if there is no such slot.
    pub fn slot(&self, store: &dyn SharedStore, name: &str, live: &[&str]) -> Option<Slot> {
        let owner = slots::owner(name);
        let live: Vec<u64> = live.iter().map(|name| slots::owner(name)).collect();
        for _ in 0..TRIES {
            let mut slots = self.slots(store);
            if let Some(slot) = slots.find(owner) {
                return Some(slot);
            }
            let index = slots.vacant(&live)?;
            let old = Slot {
                index,
                owner: slots.entry(index).owner,
            };
            // Whatever the slot held, under whichever owner, dies before it is given away.
            let ring = self.forget_ring(store, old, &slots)?;
            slots.give(index, owner, &ring);
            if self.write_slots(store, &mut slots) {
                return Some(Slot { index, owner });
            }
        }
        None
    }

    /// Forgets every pod that is not in `live` and frees its slot: a pod that was removed has no
    /// credit, should it come back.
    pub fn retain(&self, store: &dyn SharedStore, live: &[&str]) {
        let live: Vec<u64> = live.iter().map(|name| slots::owner(name)).collect();
        for _ in 0..TRIES.saturating_add(self.geometry.max_pods as usize) {
            let mut slots = self.slots(store);
            let Some(gone) = slots.gone(&live) else {
                return;
            };
            let Some(ring) = self.forget_ring(store, gone, &slots) else {
                return;
            };
            slots.give(gone.index, 0, &ring);
            self.write_slots(store, &mut slots);
        }
    }

    /// Empties a pod, at once and for every worker, also against a notify under way.
    pub fn forget(&self, store: &dyn SharedStore, slot: Slot) {
        let slots = self.slots(store);
        if slots.owns(slot) {
            if let Some(ring) = self.forget_ring(store, slot, &slots) {
                self.raise(store, slot, &ring);
            }
        }
    }

    /// Live chunks of a pod, by its ring: never less than a query could see.
    pub fn occupancy(&self, store: &dyn SharedStore, slot: Slot) -> u32 {
        let slots = self.slots(store);
        if !slots.owns(slot) {
            return 0;
        }
        self.ring(store, slot, &slots).total()
    }

    /// Moves the pod's ring to a fresh epoch and generation.
    fn forget_ring(&self, store: &dyn SharedStore, slot: Slot, slots: &Slots) -> Option<Ring> {
        for _ in 0..TRIES {
            let mut ring = self.ring(store, slot, slots);
            ring.forget();
            if self.write_ring(store, slot, &ring) {
                return Some(ring);
            }
        }
        None
    }

    /// Raises the pod's watermark in the slots to where its ring has it. Only ever upwards.
    fn raise(&self, store: &dyn SharedStore, slot: Slot, ring: &Ring) {
        for _ in 0..TRIES {
            let mut slots = self.slots(store);
            if !slots.owns(slot) || !slots.raise(slot, ring) || self.write_slots(store, &mut slots)
            {
                return;
            }
        }
        self.count(|stats| &mut stats.dropped_notifies);
    }

    fn slots(&self, store: &dyn SharedStore) -> Slots {
        let found = store.get(&self.slots_key);
        let (sound, version) = self.sound(found, frame::Kind::Slots);
        Slots::new(sound, version, self.geometry.max_pods)
    }

    fn write_slots(&self, store: &dyn SharedStore, slots: &mut Slots) -> bool {
        self.tag(frame::Kind::Slots).seal(slots.value());
        let expect = slots.expect();
        self.written(store.set(&self.slots_key, slots.value(), expect).is_ok())
    }

    fn ring(&self, store: &dyn SharedStore, slot: Slot, slots: &Slots) -> Ring {
        let found = store.get(&self.ring_key(slot));
        let existed = found.is_some();
        let (sound, version) = self.sound(found, frame::Kind::Ring);
        let ring = sound.and_then(|value| Ring::decode(&value, version));
        ring.unwrap_or_else(|| Ring::lost(slots.entry(slot.index), version, existed))
    }

    /// Writes the ring; it has its new version only after another read.
    fn write_ring(&self, store: &dyn SharedStore, slot: Slot, ring: &Ring) -> bool {
        let mut value = ring.encode();
        self.tag(frame::Kind::Ring).seal(&mut value);
        self.written(
            store
                .set(&self.ring_key(slot), &value, ring.expect())
                .is_ok(),
        )
    }

    fn page(&self, store: &dyn SharedStore, number: u64) -> Page {
        let found = store.get(&self.page_key(number));
        let (sound, version) = self.sound(found, frame::Kind::Page);
        Page::new(sound, version)
    }

    fn write_page(&self, store: &dyn SharedStore, number: u64, page: &mut Page) -> bool {
        self.tag(frame::Kind::Page).seal(page.value());
        let expect = page.expect();
        self.written(
            store
                .set(&self.page_key(number), page.value(), expect)
                .is_ok(),
        )
    }

    fn ring_key(&self, slot: Slot) -> String {
        self.numbered("ring/", slot.index.into())
    }

    fn page_key(&self, number: u64) -> String {
        self.numbered("page/", number)
    }

    /// A key, without the cost of formatting.
    fn numbered(&self, kind: &str, number: u64) -> String {
        let mut key = String::with_capacity(self.prefix.len().saturating_add(24));
        key.push_str(&self.prefix);
        key.push_str(kind);
        let mut digits = [0u8; 20];
        let (mut rest, mut start) = (number, digits.len());
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0'.wrapping_add((rest % 10) as u8);
            (rest, start) = (rest / 10, place);
            if rest == 0 {
                break;
            }
        }
        key.extend(
            digits
                .get(start..)
                .unwrap_or_default()
                .iter()
                .map(|digit| char::from(*digit)),
        );
        key
    }

    /// A value that can be used, and its version.
    fn sound(
        &self,
        found: Option<crate::store::Versioned>,
        kind: frame::Kind,
    ) -> (Option<Vec<u8>>, Option<u32>) {
        let Some(found) = found else {
            return (None, None);
        };
        let version = Some(found.version);
        if self.tag(kind).is_sound(&found.bytes) {
            return (Some(found.bytes), version);
        }
        self.count(|stats| &mut stats.junk_pages);
        (None, version)
    }

    fn tag(&self, kind: frame::Kind) -> Tag {
        Tag::new(&self.geometry, kind)
    }

    fn written(&self, written: bool) -> bool {
        if !written {
            self.count(|stats| &mut stats.cas_retries);
        }
        written
    }

    fn count(&self, which: impl Fn(&mut Stats) -> &mut u64) {
        self.count_many(which, 1);
    }

    fn count_many(&self, which: impl Fn(&mut Stats) -> &mut u64, n: u64) {
        let mut stats = self.stats.get();
        let counter = which(&mut stats);
        *counter = counter.saturating_add(n);
        self.stats.set(stats);
    }
}
