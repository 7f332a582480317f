//! Which pod holds which prefix: the LRU tables that all workers share.
//!
//! ```text
//! prefix_router/<pool>/slots      who owns each slot, and below which epoch it is dead
//! prefix_router/<pool>/ring/<s>   chunks of a slot by epoch: its LRU
//! prefix_router/<pool>/page/<n>   the chunks
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `geometry` | a fixed set of keys, and the page of a chunk |
//! | `epoch` | time within a slot, and stamps |
//! | `slots`, `ring`, `page` | the three kinds of value, each pure |
//! | `pages` | the pages of one request |
//! | `query`, `notify` and its `writing`, `undo`, `ownership` | what is done with them |
//!
//! Chunks of a prompt share pages in groups: 64 chunks go to the page named by the first of them.
//! What finds that page full, as behind a system prompt, goes to the page of its group of 16, of
//! 4, then to a page of its own; the full page says so, and readers look further only on a miss
//! under that mark.
//!
//! Invariant: T1 to T8 of the design; `validate()` in the tests checks them.
//! Cost: two host calls per 64 chunks and a handful more.

mod epoch;
mod geometry;
mod notify;
mod ownership;
mod page;
mod pages;
mod query;
mod ring;
mod slots;
mod undo;
pub(crate) mod wire;
mod writing;

#[cfg(test)]
mod tests;

pub use geometry::{Footprint, Geometry};
pub use notify::{Notified, Receipt};
pub use query::Query;
pub use slots::{PodKey, Slot};

use crate::store::{Expect, SharedStore, Versioned};
use core::cell::Cell;
use core::fmt::Write as _;
use page::Page;
use pages::expect;
use ring::Ring;
use slots::Slots;

/// Attempts at each write before it is given up.
const RETRIES: u32 = 16;

/// What happened since the table was made; a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Writes that found another writer had been faster.
    pub cas_retries: u64,
    /// Notifies that lost a race for good, in part or whole, or whose slot was gone.
    pub dropped_notifies: u64,
    /// Values of another version or geometry, or with a wrong checksum.
    pub junk_pages: u64,
    /// Chunks for which no page had room.
    pub dropped_chunks: u64,
    /// Times that a page was full and its chunks went one level down.
    pub overflows: u64,
}

#[derive(Debug, Default)]
struct Counters {
    cas_retries: Cell<u64>,
    dropped_notifies: Cell<u64>,
    junk_pages: Cell<u64>,
    dropped_chunks: Cell<u64>,
    overflows: Cell<u64>,
}

fn bump(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().saturating_add(by));
}

/// One worker's way into the shared table of a pool. Holds no chunk itself.
pub struct Table {
    geometry: Geometry,
    pages: u32,
    tag: u64,
    /// Reused for every key; its first `prefix` bytes stay.
    key: Cell<String>,
    prefix: usize,
    counters: Counters,
}

impl Table {
    /// The table of `pool`. Reads and writes nothing.
    pub fn new(pool: &str, geometry: Geometry) -> Self {
        let key = format!("prefix_router/{pool}/");
        Table {
            geometry,
            pages: geometry.pages(),
            tag: geometry.tag(),
            prefix: key.len(),
            key: Cell::new(key),
            counters: Counters::default(),
        }
    }

    /// Keys and bytes of shared data that this table can ever take.
    pub fn footprint(&self) -> Footprint {
        self.geometry.footprint()
    }

    /// Counters of this worker.
    pub fn stats(&self) -> Stats {
        Stats {
            cas_retries: self.counters.cas_retries.get(),
            dropped_notifies: self.counters.dropped_notifies.get(),
            junk_pages: self.counters.junk_pages.get(),
            dropped_chunks: self.counters.dropped_chunks.get(),
            overflows: self.counters.overflows.get(),
        }
    }

    /// The sizes that the table was made with.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn pages(&self) -> u32 {
        self.pages
    }

    fn with_key<T>(&self, kind: &str, number: Option<u32>, call: impl FnOnce(&str) -> T) -> T {
        let mut key = self.key.take();
        key.truncate(self.prefix);
        key.push_str(kind);
        if let Some(number) = number {
            // Writing to a String cannot fail.
            let _ = write!(key, "/{number}");
        }
        let result = call(&key);
        self.key.set(key);
        result
    }

    fn get(&self, store: &dyn SharedStore, kind: &str, number: Option<u32>) -> Option<Versioned> {
        self.with_key(kind, number, |key| store.get(key))
    }

    fn set(
        &self,
        store: &dyn SharedStore,
        kind: &str,
        number: Option<u32>,
        bytes: &[u8],
        at: Expect,
    ) -> bool {
        let written = self
            .with_key(kind, number, |key| store.set(key, bytes, at))
            .is_ok();
        if !written {
            bump(&self.counters.cas_retries, 1);
        }
        written
    }

    fn junk<T>(&self, decoded: Option<T>) -> Option<T> {
        if decoded.is_none() {
            bump(&self.counters.junk_pages, 1);
        }
        decoded
    }

    fn read_slots(&self, store: &dyn SharedStore) -> (Slots, Expect) {
        let found = self.get(store, "slots", None);
        let at = expect(&found);
        let count = self.geometry.slots();
        let slots = found.and_then(|value| self.junk(Slots::decode(self.tag, count, &value.bytes)));
        (slots.unwrap_or_else(|| Slots::empty(count)), at)
    }

    fn write_slots(&self, store: &dyn SharedStore, slots: &Slots, at: Expect) -> bool {
        self.set(store, "slots", None, &slots.encode(self.tag), at)
    }

    fn read_ring(&self, store: &dyn SharedStore, slot: u8) -> (Option<Ring>, Expect) {
        let found = self.get(store, "ring", Some(u32::from(slot)));
        let at = expect(&found);
        (
            found.and_then(|value| self.junk(Ring::decode(self.tag, &value.bytes))),
            at,
        )
    }

    fn write_ring(&self, store: &dyn SharedStore, slot: u8, ring: &Ring, at: Expect) -> bool {
        self.set(
            store,
            "ring",
            Some(u32::from(slot)),
            &ring.encode(self.tag),
            at,
        )
    }

    fn read_page(&self, store: &dyn SharedStore, number: u32) -> (Page, Expect) {
        let found = self.get(store, "page", Some(number));
        let at = expect(&found);
        let page = found.and_then(|value| self.junk(Page::decode(self.tag, value.bytes)));
        (page.unwrap_or_else(Page::empty), at)
    }

    fn write_page(
        &self,
        store: &dyn SharedStore,
        number: u32,
        page: &mut Page,
        at: Expect,
    ) -> bool {
        let tag = self.tag;
        self.set(store, "page", Some(number), page.seal(tag), at)
    }
}
