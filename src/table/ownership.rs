//! Which pod has which slot: assigning, forgetting, occupancy.
//!
//! Invariant: nothing that was stored or reserved before a forget or a reassignment is alive
//! after it: the ring's clock jumps past every epoch handed out, and a writer that reserved in
//! between makes the jump start over.
//! Cost: O(1), a few host calls; none of it is on the path of a request.

use super::epoch::{Epoch, MAX_SPAN};
use super::ring::Ring;
use super::slots::{PodKey, Slot};
use super::{Table, RETRIES};
use crate::store::{Expect, SharedStore};

impl Table {
    /// The slot of `pod`, assigned now if it has none: a free one, else one whose owner is not
    /// among `live` (which forgets that owner). Nothing when all owners live.
    pub fn slot(&self, store: &dyn SharedStore, pod: PodKey, live: &[PodKey]) -> Option<Slot> {
        for _ in 0..RETRIES {
            let (mut slots, slots_at) = self.read_slots(store);
            if let Some(index) = slots.find(pod) {
                return Some(Slot { index, pod });
            }
            let index = slots.available(live)?;
            let watermark = slots.get(index)?.watermark;
            // The ring first: a notify for the old owner that is under way must find it taken.
            let (ring, expected) = self.read_ring(store, index);
            let start = match ring {
                Some(mut ring) => {
                    let start = ring.current().after(1).latest(watermark);
                    ring.reset(pod, start);
                    if !self.write_ring(store, index, &ring, expected) {
                        continue;
                    }
                    start
                }
                None => self.restart(watermark, expected),
            };
            slots.set_owner(index, pod);
            slots.raise(index, start);
            if self.write_slots(store, &slots, slots_at) {
                return Some(Slot { index, pod });
            }
        }
        None
    }

    /// Where the clock of a slot without a readable ring goes on: a ring that was never written
    /// has handed out no epoch; a junk one may have, so jump past them all.
    pub(super) fn restart(&self, watermark: Epoch, expected: Expect) -> Epoch {
        match expected {
            Expect::Absent => watermark,
            _ => watermark.after(MAX_SPAN).after(1),
        }
    }

    /// From now on the pod holds nothing, whatever is being stored for it (T7). False when other
    /// writers won every round.
    pub fn forget(&self, store: &dyn SharedStore, slot: Slot) -> bool {
        for _ in 0..RETRIES {
            let (mut slots, slots_at) = self.read_slots(store);
            let Some(index) = slots.resolve(slot) else {
                return true;
            };
            let (ring, expected) = self.read_ring(store, index);
            let watermark = slots
                .get(index)
                .map_or(Epoch::new(0), |entry| entry.watermark);
            let Some(mut ring) = ring else {
                if expected == Expect::Absent {
                    return true;
                }
                slots.raise(index, self.restart(watermark, expected));
                if self.write_slots(store, &slots, slots_at) {
                    return true;
                }
                continue;
            };
            if ring.belongs_to(slot.pod) && ring.total() == 0 && !watermark.is_before(ring.floor())
            {
                return true;
            }
            // The watermark first: the credit is gone even if this is as far as we get.
            let start = ring.current().after(1).latest(watermark);
            if slots.raise(index, start) && !self.write_slots(store, &slots, slots_at) {
                continue;
            }
            ring.reset(slot.pod, start);
            if self.write_ring(store, index, &ring, expected) {
                return true;
            }
        }
        false
    }

    /// The slot of each pod that has one.
    pub fn find(&self, store: &dyn SharedStore, pods: &[PodKey]) -> Vec<Option<Slot>> {
        let (slots, _) = self.read_slots(store);
        let found = |pod: &PodKey| {
            let index = slots.find(*pod)?;
            Some(Slot { index, pod: *pod })
        };
        pods.iter().map(found).collect()
    }

    /// Whether any pod holds anything.
    pub fn is_in_use(&self, store: &dyn SharedStore) -> bool {
        let (slots, _) = self.read_slots(store);
        let mut entries = slots.entries().iter().zip(0u8..=u8::MAX);
        entries.any(|(entry, index)| {
            let total = |ring: Ring| ring.total();
            entry.owner != 0 && self.read_ring(store, index).0.map_or(0, total) > 0
        })
    }

    /// Forgets every pod that is not among the living: one that was removed has no credit,
    /// should it come back. Its slot stays its own until another pod needs one.
    pub fn retain(&self, store: &dyn SharedStore, live: &[PodKey]) {
        let (slots, _) = self.read_slots(store);
        for (index, entry) in slots.entries().iter().enumerate() {
            let pod = PodKey(entry.owner);
            if let (Ok(index), false) = (u8::try_from(index), live.contains(&pod)) {
                if entry.owner != 0 {
                    self.forget(store, Slot { index, pod });
                }
            }
        }
    }

    /// Chunks that the pod holds; may be a little too many after a crash or a race.
    pub fn occupancy(&self, store: &dyn SharedStore, slot: Slot) -> u32 {
        let (slots, _) = self.read_slots(store);
        let Some(index) = slots.resolve(slot) else {
            return 0;
        };
        match self.read_ring(store, index) {
            (Some(ring), _) if ring.belongs_to(slot.pod) => ring.total(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::chunk::ChunkHash;
    use crate::store::MemoryStore;
    use crate::table::{Geometry, PodKey, Table};

    #[test]
    fn a_pod_that_was_removed_comes_back_empty() {
        let geometry = Geometry {
            chunk_bytes: 256,
            max_pods: 8,
            max_capacity_chunks: 4096,
        };
        let (store, table) = (MemoryStore::default(), Table::new("p", geometry));
        let pods = ["a", "b", "c"].map(PodKey::of);
        let slots = pods.map(|pod| table.slot(&store, pod, &pods).unwrap());
        let chain: Vec<ChunkHash> = (1..40).map(|n| ChunkHash(n << 50 | n)).collect();
        for slot in slots {
            let query = table.query(&store, &chain, &slots);
            table.notify(&store, &chain, slot, 4096, query);
        }
        table.retain(&store, &[pods[1]]);
        assert_eq!(table.query(&store, &chain, &slots).matched(), [0, 39, 0]);
        assert_eq!(
            table.slot(&store, pods[0], &pods),
            Some(slots[0]),
            "found again, empty"
        );
    }
}
