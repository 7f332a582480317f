//! The pages that one request has read, each with the version to write it back at.
//!
//! Invariant: a page is written only over the version that it was read at; junk counts as an
//! empty page of that version.
//! Cost: one `get` per page; asking again is free until it is written.

use super::page::Page;
use super::Table;
use crate::store::{Expect, SharedStore, Versioned};
use hashbrown::HashMap;

#[derive(Debug, Clone)]
struct Loaded {
    page: Page,
    expect: Expect,
    /// Written since; the version is out of date.
    stale: bool,
    /// Read while planning, so the plan knows all that is in it.
    planned: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pages {
    loaded: HashMap<u32, Loaded>,
    writing: bool,
}

impl Pages {
    /// The page, read now unless it was already.
    pub(super) fn get(&mut self, table: &Table, store: &dyn SharedStore, number: u32) -> &mut Page {
        let planned = !self.writing;
        let read = || {
            let (page, expect) = table.read_page(store, number);
            Loaded {
                page,
                expect,
                stale: false,
                planned,
            }
        };
        let loaded = self.loaded.entry(number).or_insert_with(read);
        if loaded.stale {
            *loaded = read();
        }
        &mut loaded.page
    }

    /// From here on, pages that are read may differ from what was planned.
    pub(super) fn plan_is_made(&mut self) {
        self.writing = true;
    }

    /// Whether the page in hand is the one that the plan was made from.
    pub(super) fn is_as_planned(&self, number: u32) -> bool {
        let loaded = self.loaded.get(&number);
        loaded.is_some_and(|loaded| loaded.planned && !loaded.stale)
    }

    /// Writes a page back; false when somebody else was faster. Either way the next [`Pages::get`] reads.
    pub(super) fn write(&mut self, table: &Table, store: &dyn SharedStore, number: u32) -> bool {
        let Some(loaded) = self.loaded.get_mut(&number) else {
            return false;
        };
        loaded.stale = true;
        table.write_page(store, number, &mut loaded.page, loaded.expect)
    }
}

/// What a write of `found` must expect.
pub(super) fn expect(found: &Option<Versioned>) -> Expect {
    found
        .as_ref()
        .map_or(Expect::Absent, |value| Expect::Version(value.version))
}
