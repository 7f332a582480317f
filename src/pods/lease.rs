//! Who asks Envoy and the pods: one worker of all, by a lease in shared data.
//!
//! Owns `prefix_router/<pool>/poller.1`: an owner and the end of its lease on the monotonic clock.
//! Invariant: while a lease runs, nobody but its owner holds it; when its VM dies it ends by
//! itself. Cost: one `get` and at most one `set` a tick.

use crate::store::{Expect, SharedStore};

/// How long a lease lasts that is not renewed; every tick renews it.
pub const LEASE_MS: u64 = 3_000;

/// One VM's way to the lease of a pool.
#[derive(Debug)]
pub struct Lease {
    key: String,
    owner: u64,
}

impl Lease {
    /// `owner` is a random number that no other VM has.
    pub fn new(pool: &str, owner: u64) -> Self {
        let key = format!("prefix_router/{pool}/poller.1");
        Self { key, owner }
    }

    /// Takes or renews the lease, and tells until when; nothing while another VM has it.
    pub fn hold(&self, store: &dyn SharedStore, now_ms: u64) -> Option<u64> {
        let until = now_ms.saturating_add(LEASE_MS);
        let expect = match store.get(&self.key) {
            None => Expect::Absent,
            Some(found) => match parse(&found.bytes) {
                // A lease that ends later than any could is junk.
                Some((owner, end)) if owner != self.owner && end > now_ms && end <= until => {
                    return None;
                }
                _ => Expect::Version(found.version),
            },
        };
        let mut value = self.owner.to_le_bytes().to_vec();
        value.extend_from_slice(&until.to_le_bytes());
        store.set(&self.key, &value, expect).ok().map(|()| until)
    }
}

fn parse(value: &[u8]) -> Option<(u64, u64)> {
    let (owner, rest) = value.split_first_chunk::<8>()?;
    let until = rest.first_chunk::<8>()?;
    Some((u64::from_le_bytes(*owner), u64::from_le_bytes(*until)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn one_holds_it_and_the_next_takes_over_when_its_vm_died() {
        let store = MemoryStore::default();
        let (a, b) = (Lease::new("p", 1), Lease::new("p", 2));
        assert!(a.hold(&store, 1000).is_some());
        assert!(b.hold(&store, 1000).is_none());
        assert!(a.hold(&store, 3000).is_some(), "renewed");
        assert!(b.hold(&store, 3000 + LEASE_MS - 1).is_none());
        assert!(b.hold(&store, 3000 + LEASE_MS).is_some());
        assert!(
            a.hold(&store, 3000 + LEASE_MS).is_none(),
            "it was away for too long"
        );
        assert_eq!(store.keys(), 1);
        assert!(
            Lease::new("q", 1).hold(&store, 3000).is_some(),
            "another pool"
        );
    }

    #[test]
    fn junk_and_impossible_leases_are_taken_over() {
        let store = MemoryStore::default();
        let lease = Lease::new("p", 1);
        for junk in [b"junk".to_vec(), [0xFF; 16].to_vec(), Vec::new()] {
            store
                .set("prefix_router/p/poller.1", &junk, Expect::Any)
                .unwrap();
            assert!(lease.hold(&store, 5).is_some(), "{junk:?}");
        }
    }
}
