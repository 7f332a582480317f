//! Who owns which slot, and from which epoch on its chunks count.
//!
//! Invariant: a watermark only ever rises, and an owner changes only together with a watermark
//! above everything that the slot held. Cost: 16 bytes a slot; read by every query.

use super::ring::{self, Ring};
use crate::store::Expect;
use twox_hash::XxHash64;

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

/// All slots, as read.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    entries: Vec<Entry>,
    version: Option<u32>,
}

/// Name of an owner.
pub(super) fn owner(name: &str) -> u64 {
    XxHash64::oneshot(0, name.as_bytes()).max(1)
}

impl Slots {
    pub fn decode(body: &[u8], version: Option<u32>, max_pods: u32) -> Self {
        let mut entries: Vec<Entry> = body
            .chunks_exact(16)
            .map(|bytes| {
                let word = |at: usize| {
                    bytes
                        .get(at..)
                        .and_then(<[u8]>::first_chunk::<4>)
                        .map_or(0, |b| u32::from_le_bytes(*b))
                };
                let owner = (u64::from(word(4)) << 32) | u64::from(word(0));
                Entry {
                    owner,
                    watermark: word(8),
                    generation: word(12),
                }
            })
            .collect();
        entries.resize(max_pods.min(256) as usize, Entry::default());
        Self { entries, version }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.entries.len().saturating_mul(16));
        for entry in &self.entries {
            body.extend_from_slice(&entry.owner.to_le_bytes());
            body.extend_from_slice(&entry.watermark.to_le_bytes());
            body.extend_from_slice(&entry.generation.to_le_bytes());
        }
        body
    }

    pub fn expect(&self) -> Expect {
        self.version.map_or(Expect::Absent, Expect::Version)
    }

    pub fn entry(&self, index: u8) -> Entry {
        self.entries
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    pub fn owns(&self, slot: Slot) -> bool {
        self.entry(slot.index).owner == slot.owner
    }

    pub fn find(&self, owner: u64) -> Option<Slot> {
        let index = self.entries.iter().position(|entry| entry.owner == owner)?;
        Some(Slot {
            index: u8::try_from(index).ok()?,
            owner,
        })
    }

    /// A slot that nobody owns, else one whose owner is not in `live`.
    pub fn vacant(&self, live: &[u64]) -> Option<u8> {
        let free = self.entries.iter().position(|entry| entry.owner == 0);
        let gone = || {
            self.entries
                .iter()
                .position(|entry| !live.contains(&entry.owner))
        };
        free.or_else(gone)
            .and_then(|index| u8::try_from(index).ok())
    }

    /// A slot whose owner is not in `live`.
    pub fn gone(&self, live: &[u64]) -> Option<Slot> {
        let gone = |entry: &Entry| entry.owner != 0 && !live.contains(&entry.owner);
        let index = self.entries.iter().position(gone)?;
        Some(Slot {
            index: u8::try_from(index).ok()?,
            owner: self.entries.get(index)?.owner,
        })
    }

    /// Gives a slot to a pod, from where its emptied ring starts.
    pub fn give(&mut self, index: u8, owner: u64, ring: &Ring) {
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            *entry = Entry {
                owner,
                watermark: ring.watermark(),
                generation: ring.generation,
            };
        }
    }

    /// Raises a watermark to the ring's; false if there was nothing to raise.
    pub fn raise(&mut self, slot: Slot, ring: &Ring) -> bool {
        let Some(entry) = self.entries.get_mut(slot.index()) else {
            return false;
        };
        let (watermark, generation) = (ring.watermark(), ring.generation);
        if ring::is_alive(entry.watermark, watermark) && entry.generation == generation {
            return false;
        }
        if ring::is_alive(watermark, entry.watermark) {
            entry.watermark = watermark;
        }
        entry.generation = generation;
        true
    }

    /// Whether a chunk of this slot and epoch counts. The owner does not matter: a slot that was
    /// given away since this was read has its new watermark only in a later version.
    pub fn is_alive(&self, slot: u8, epoch: u32) -> bool {
        ring::is_alive(epoch, self.entry(slot).watermark)
    }
}
