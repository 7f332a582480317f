//! The one interface to state that all workers share.
//!
//! Owns nothing: it names what the tables need of Envoy's shared data, so that the core runs
//! the same over Envoy, over memory in tests, and over memory in a replay.
//! Invariant: a value is read and written whole, and a write with a version happens only if
//! nobody wrote since that version was read.
//! Cost inside Envoy: `get` about 0.6 µs and `set` 0.15 µs up to 8 KiB; an absent key 0.13 µs.

/// A value and the version at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value; may be empty (shared data has no delete).
    pub bytes: Vec<u8>,
    /// Opaque version, given back in [`Expect::Version`].
    pub version: u32,
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The key has never been written.
    Absent,
    /// The key was last written at this version.
    Version(u32),
    /// Anything: the last writer wins.
    Any,
}

/// Someone else wrote first; read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

/// Shared keys and values with compare-and-swap. Keys are never deleted.
pub trait SharedStore {
    /// The value of `key`, or nothing when it was never written.
    fn get(&self, key: &str) -> Option<Versioned>;
    /// Writes `bytes` if `expect` holds.
    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict>;
}

pub use memory::MemoryStore;

mod memory {
    use super::{Conflict, Expect, SharedStore, Versioned};
    use core::cell::{Cell, RefCell};
    use hashbrown::HashMap;

    /// A [`SharedStore`] in memory, for tests and replays: one thread, the same rules.
    #[derive(Debug, Default)]
    pub struct MemoryStore {
        values: RefCell<HashMap<String, Versioned>>,
        last_version: Cell<u32>,
    }

    impl MemoryStore {
        /// Number of keys ever written.
        pub fn keys(&self) -> usize {
            self.values.borrow().len()
        }

        /// Bytes of all values.
        pub fn bytes(&self) -> usize {
            self.values.borrow().values().map(|v| v.bytes.len()).sum()
        }
    }

    impl SharedStore for MemoryStore {
        fn get(&self, key: &str) -> Option<Versioned> {
            self.values.borrow().get(key).cloned()
        }

        fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
            let mut values = self.values.borrow_mut();
            let found = values.get(key).map(|v| v.version);
            let allowed = match expect {
                Expect::Absent => found.is_none(),
                Expect::Version(v) => found == Some(v),
                Expect::Any => true,
            };
            if !allowed {
                return Err(Conflict);
            }
            let version = self.last_version.get().wrapping_add(1).max(1);
            self.last_version.set(version);
            values.insert(
                key.to_owned(),
                Versioned {
                    bytes: bytes.to_vec(),
                    version,
                },
            );
            Ok(())
        }
    }
}
