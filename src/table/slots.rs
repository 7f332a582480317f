//! The `slots` value: who owns each slot, and the epoch below which its entries are dead.
//!
//! Invariant: a watermark only rises, also when its slot changes hands, so a reader with an old
//! copy may see the dead alive for a moment but never takes the living for dead.
//! Cost: every query reads this one value, 12 bytes a slot.

use super::epoch::{Epoch, Stamp};
use super::wire;

const ENTRY: usize = 12;

/// Bytes of the value for a number of slots.
pub(super) const fn size(slots: usize) -> usize {
    wire::SEAL.saturating_add(ENTRY.saturating_mul(slots))
}

/// A pod as the tables know it: a hash of its name, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PodKey(pub(crate) u64);

impl PodKey {
    /// The key of the pod of that name.
    pub fn of(name: &str) -> Self {
        PodKey(twox_hash::XxHash64::oneshot(0, name.as_bytes()).max(1))
    }
}

/// A pod's place in the table. Safe to keep: when the slot went to another pod, it matches
/// nothing and stores nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub(super) index: u8,
    pub(super) pod: PodKey,
}

impl Slot {
    /// Number of the slot, below `max_pods`.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Key of the owner; 0 when nobody ever owned it.
    pub(super) owner: u64,
    pub(super) watermark: Epoch,
}

/// The decoded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slots {
    entries: Vec<Entry>,
}

impl Slots {
    pub(super) fn empty(slots: usize) -> Self {
        let free = Entry {
            owner: 0,
            watermark: Epoch::new(0),
        };
        Slots {
            entries: vec![free; slots],
        }
    }

    /// Nothing when the value is junk.
    pub(super) fn decode(tag: u64, slots: usize, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size(slots) || !wire::verify(tag, bytes) {
            return None;
        }
        let (records, _) = bytes.get(wire::SEAL..)?.as_chunks::<ENTRY>();
        let entries = records
            .iter()
            .map(|record| Entry {
                owner: wire::u64_at(record, 0).unwrap_or(0),
                watermark: Epoch::new(wire::u32_at(record, 8).unwrap_or(0)),
            })
            .collect();
        Some(Slots { entries })
    }

    pub(super) fn encode(&self, tag: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size(self.entries.len()));
        bytes.extend_from_slice(&[0; wire::SEAL]);
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.owner.to_le_bytes());
            bytes.extend_from_slice(&entry.watermark.raw().to_le_bytes());
        }
        wire::seal(tag, &mut bytes);
        bytes
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn get(&self, index: u8) -> Option<Entry> {
        self.entries.get(usize::from(index)).copied()
    }

    /// The slot as it is today, wherever the pod lives now.
    pub(super) fn resolve(&self, slot: Slot) -> Option<u8> {
        match self.get(slot.index) {
            Some(entry) if entry.owner == slot.pod.0 => Some(slot.index),
            _ => self.find(slot.pod),
        }
    }

    pub(super) fn find(&self, pod: PodKey) -> Option<u8> {
        let at = self.entries.iter().position(|entry| entry.owner == pod.0)?;
        u8::try_from(at).ok()
    }

    /// A slot that nobody owns, else one whose owner is not among the living.
    pub(super) fn available(&self, live: &[PodKey]) -> Option<u8> {
        let free = self.entries.iter().position(|entry| entry.owner == 0);
        let at = free.or_else(|| {
            let gone = |entry: &Entry| !live.iter().any(|pod| pod.0 == entry.owner);
            self.entries.iter().position(gone)
        })?;
        u8::try_from(at).ok()
    }

    pub(super) fn set_owner(&mut self, index: u8, pod: PodKey) {
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            entry.owner = pod.0;
        }
    }

    /// Raises the watermark of a slot; says whether it was lower.
    pub(super) fn raise(&mut self, index: u8, watermark: Epoch) -> bool {
        match self.entries.get_mut(usize::from(index)) {
            Some(entry) if entry.watermark.is_before(watermark) => {
                entry.watermark = watermark;
                true
            }
            _ => false,
        }
    }

    /// Entries of `slot` below this stamp are dead.
    #[inline]
    pub(super) fn floor(&self, slot: u8) -> Stamp {
        let entry = self.entries.get(usize::from(slot));
        Stamp::floor(entry.map_or(Epoch::new(0), |entry| entry.watermark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_encoding_and_refuses_other_sizes() {
        let mut slots = Slots::empty(3);
        slots.set_owner(1, PodKey::of("vllm-1"));
        assert!(slots.raise(1, Epoch::new(9)));
        let bytes = slots.encode(5);
        assert_eq!(Slots::decode(5, 3, &bytes), Some(slots));
        assert_eq!(Slots::decode(6, 3, &bytes), None);
        assert_eq!(Slots::decode(5, 2, &bytes), None);
        assert_eq!(Slots::decode(5, 3, &[]), None);
    }

    #[test]
    fn watermarks_only_rise() {
        let mut slots = Slots::empty(1);
        assert!(slots.raise(0, Epoch::new(9)));
        assert!(!slots.raise(0, Epoch::new(8)));
        assert_eq!(slots.floor(0), Stamp::floor(Epoch::new(9)));
    }

    #[test]
    fn a_free_slot_goes_before_one_of_the_gone() {
        let (a, b) = (PodKey::of("a"), PodKey::of("b"));
        let mut slots = Slots::empty(2);
        slots.set_owner(0, a);
        assert_eq!(slots.available(&[b]), Some(1));
        slots.set_owner(1, b);
        assert_eq!(slots.available(&[b]), Some(0));
        assert_eq!(slots.available(&[a, b]), None);
        let moved = Slot { index: 0, pod: b };
        assert_eq!(slots.resolve(moved), Some(1));
    }
}
