//! [`SharedStore`] over Envoy's shared data.

use super::abi;
use crate::store::{Conflict, Expect, SharedStore, Versioned};

/// `cas` that no stored value has: writes only if the key is absent.
const NEVER: u32 = u32::MAX;
/// `cas` that always matches.
const ALWAYS: u32 = 0;

/// Envoy's shared data, one process-wide map per `vm_id`.
#[derive(Debug)]
pub struct SharedData;

impl SharedStore for SharedData {
    fn get(&self, key: &str) -> Option<Versioned> {
        let (bytes, version) = abi::shared_data(key)?;
        Some(Versioned { bytes, version })
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        let cas = match expect {
            Expect::Absent => NEVER,
            Expect::Version(version) => version,
            Expect::Any => ALWAYS,
        };
        abi::set_shared_data(key, bytes, cas).map_err(|_| Conflict)
    }
}
