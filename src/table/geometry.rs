//! How large the tables can grow: fixed by three numbers of the configuration.

/// Largest page, frame included: up to here a read costs the same in Envoy.
pub(super) const PAGE_BYTES: usize = 8192;
/// Shared data per chunk of capacity: 14 bytes for a chunk that one pod holds, and the room that
/// lets pages fill unevenly.
const BYTES_PER_CHUNK: u64 = 23;
/// Bytes of slots and rings per pod, with their frames, at most.
const BYTES_PER_POD: u64 = 1024;

/// The numbers that fix the tables' keys. Instances that share a pool must agree on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Bytes per chunk of the prompt stream.
    pub chunk_bytes: u32,
    /// Slots, 1 to 256.
    pub max_pods: u32,
    /// Most chunks kept per pod.
    pub max_capacity_chunks: u32,
}

/// What the tables can take at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Keys of shared data.
    pub keys: u64,
    /// Bytes of all values.
    pub max_bytes: u64,
}

impl Geometry {
    /// Number of pages.
    pub(super) fn pages(&self) -> u64 {
        let chunks = u64::from(self.max_pods).saturating_mul(self.max_capacity_chunks.into());
        let bytes = chunks.saturating_mul(BYTES_PER_CHUNK);
        bytes.div_ceil(PAGE_BYTES as u64).max(1)
    }

    pub(super) fn footprint(&self) -> Footprint {
        let pods = u64::from(self.max_pods);
        let of_pages = self.pages().saturating_mul(PAGE_BYTES as u64);
        Footprint {
            keys: self.pages().saturating_add(pods).saturating_add(1),
            max_bytes: of_pages.saturating_add(pods.saturating_mul(BYTES_PER_POD)),
        }
    }
}
