//! Who owns which slot, and from which epoch on its chunks count.
//!
//! Invariant: a watermark only ever rises, and an owner changes only together with a watermark
//! above everything that the slot held. Cost: 16 bytes a slot, read in place; every query reads
//! the value once.

use super::frame::FRAME;
use super::ring::{self, Ring};
use crate::store::Expect;
use twox_hash::XxHash64;

/// Bytes of an entry: owner, watermark, generation.
const ENTRY: usize = 16;

/// A pod's place in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub(super) index: u8,
    pub(super) owner: u64,
}

impl Slot {
    /// Number of the slot, below `max_pods`.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// One slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Hash of the pod's name; 0: nobody.
    pub owner: u64,
    /// Chunks of older epochs are dead.
    pub watermark: u32,
    /// How often the slot was emptied.
    pub generation: u32,
}

impl Entry {
    fn decode(bytes: &[u8; ENTRY]) -> Self {
        let all = u128::from_le_bytes(*bytes);
        Self {
            owner: all as u64,
            watermark: (all >> 64) as u32,
            generation: (all >> 96) as u32,
        }
    }

    fn encode(self) -> [u8; ENTRY] {
        let (watermark, generation) = (u128::from(self.watermark), u128::from(self.generation));
        (u128::from(self.owner) | (watermark << 64) | (generation << 96)).to_le_bytes()
    }
}

/// All slots, as read.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    value: Vec<u8>,
    version: Option<u32>,
}

/// Name of an owner.
pub(super) fn owner(name: &str) -> u64 {
    XxHash64::oneshot(0, name.as_bytes()).max(1)
}

impl Slots {
    /// A value that was found sound; any other is empty slots.
    pub fn new(sound: Option<Vec<u8>>, version: Option<u32>, max_pods: u32) -> Self {
        let size = (max_pods.min(256) as usize)
            .saturating_mul(ENTRY)
            .saturating_add(FRAME);
        let mut value = sound.unwrap_or_default();
        value.resize(size, 0);
        Self { value, version }
    }

    /// The value, to be sealed.
    pub fn value(&mut self) -> &mut [u8] {
        &mut self.value
    }

    pub fn expect(&self) -> Expect {
        self.version.map_or(Expect::Absent, Expect::Version)
    }

    pub fn entry(&self, index: u8) -> Entry {
        let at = usize::from(index).wrapping_mul(ENTRY).wrapping_add(FRAME);
        let bytes = self.value.get(at..).and_then(<[u8]>::first_chunk::<ENTRY>);
        bytes.map_or(Entry::default(), Entry::decode)
    }

    fn set(&mut self, index: u8, entry: Entry) {
        let at = usize::from(index).wrapping_mul(ENTRY).wrapping_add(FRAME);
        if let Some(bytes) = self
            .value
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut::<ENTRY>)
        {
            *bytes = entry.encode();
        }
    }

    fn entries(&self) -> impl Iterator<Item = (u8, Entry)> + '_ {
        let body = self.value.get(FRAME..).unwrap_or_default();
        let entry = |bytes: &[u8]| bytes.first_chunk::<ENTRY>().map(Entry::decode);
        // There are at most 256 entries.
        body.chunks_exact(ENTRY)
            .filter_map(entry)
            .enumerate()
            .map(|(i, entry)| (i as u8, entry))
    }

    pub fn owns(&self, slot: Slot) -> bool {
        self.entry(slot.index).owner == slot.owner
    }

    pub fn find(&self, owner: u64) -> Option<Slot> {
        let (index, _) = self.entries().find(|(_, entry)| entry.owner == owner)?;
        Some(Slot { index, owner })
    }

    /// A slot that nobody owns, else one whose owner is not in `live`.
    pub fn vacant(&self, live: &[u64]) -> Option<u8> {
        let free = self
            .entries()
            .find(|(_, entry)| entry.owner == 0)
            .map(|(index, _)| index);
        free.or_else(|| self.gone(live).map(|slot| slot.index))
    }

    /// A slot whose owner is not in `live`.
    pub fn gone(&self, live: &[u64]) -> Option<Slot> {
        let gone = |entry: &Entry| entry.owner != 0 && !live.contains(&entry.owner);
        let (index, entry) = self.entries().find(|(_, entry)| gone(entry))?;
        Some(Slot {
            index,
            owner: entry.owner,
        })
    }

    /// Gives a slot to a pod, from where its emptied ring starts.
    pub fn give(&mut self, index: u8, owner: u64, ring: &Ring) {
        let (watermark, generation) = (ring.watermark(), ring.generation);
        self.set(
            index,
            Entry {
                owner,
                watermark,
                generation,
            },
        );
    }

    /// Raises a watermark to the ring's; false if there was nothing to raise.
    pub fn raise(&mut self, slot: Slot, ring: &Ring) -> bool {
        let mut entry = self.entry(slot.index);
        let (watermark, generation) = (ring.watermark(), ring.generation);
        if ring::is_alive(entry.watermark, watermark) && entry.generation == generation {
            return false;
        }
        if ring::is_alive(watermark, entry.watermark) {
            entry.watermark = watermark;
        }
        entry.generation = generation;
        self.set(slot.index, entry);
        true
    }

    /// Whether a chunk of this slot and epoch counts. The owner does not matter: a slot that was
    /// given away since this was read has its new watermark only in a later version.
    pub fn is_alive(&self, slot: u8, epoch: u32) -> bool {
        let at = usize::from(slot)
            .wrapping_mul(ENTRY)
            .wrapping_add(FRAME + 8);
        let watermark = self.value.get(at..).and_then(<[u8]>::first_chunk::<4>);
        ring::is_alive(
            epoch,
            watermark.map_or(0, |bytes| u32::from_le_bytes(*bytes)),
        )
    }
}
