//! What fixes the size of a table: pods, capacity, chunk size; and the keys that follow.
//!
//! Invariant: keys and bytes depend on the geometry alone, never on traffic (T1).
//! Cost: a few multiplications, once.

use super::page::PAGE_MAX;
use super::ring::RING_MAX;
use super::slots;
use super::wire;
use crate::chunk::ChunkHash;

/// Shared bytes allowed per chunk of capacity of one pod.
const BYTES_PER_CHUNK: u64 = 24;
/// Even the smallest table has this many pages, so that overflow has somewhere to go.
const MIN_PAGES: u64 = 4;
/// At most 2 GiB of pages.
const MAX_PAGES: u64 = 1 << 19;
/// Chunks that share a page at each level; a full page sends its chunks one level down. The last
/// is a second choice for a chunk whose own page happens to be a hot one.
pub(super) const SPANS: [usize; 5] = [64, 16, 4, 1, 1];

/// The sizes that all users of one pool must agree on; values of another geometry are junk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of prompt in one chunk. Only tells tables of other chunk sizes apart.
    pub chunk_bytes: u32,
    /// Pods that have a slot at the same time, 1 to 256.
    pub max_pods: u16,
    /// Largest capacity of one pod, in chunks.
    pub max_capacity_chunks: u32,
}

/// What a table takes of shared data, at most and for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Number of keys.
    pub keys: u64,
    /// Bytes of all values.
    pub bytes: u64,
}

impl Geometry {
    pub(super) fn slots(&self) -> usize {
        usize::from(self.max_pods.clamp(1, 256))
    }

    /// Number of pages: the byte budget less slots and rings.
    pub(super) fn pages(&self) -> u32 {
        let pods = self.slots() as u64;
        let budget = BYTES_PER_CHUNK
            .saturating_mul(pods)
            .saturating_mul(u64::from(self.max_capacity_chunks));
        let fixed = (RING_MAX as u64)
            .saturating_mul(pods)
            .saturating_add(slots::size(self.slots()) as u64);
        let pages = budget
            .saturating_sub(fixed)
            .checked_div(PAGE_MAX as u64)
            .unwrap_or(0);
        u32::try_from(pages.clamp(MIN_PAGES, MAX_PAGES)).unwrap_or(u32::MAX)
    }

    pub(super) fn footprint(&self) -> Footprint {
        let pods = self.slots() as u64;
        let pages = u64::from(self.pages());
        Footprint {
            keys: pods.saturating_add(pages).saturating_add(1),
            bytes: pages
                .saturating_mul(PAGE_MAX as u64)
                .saturating_add((RING_MAX as u64).saturating_mul(pods))
                .saturating_add(slots::size(self.slots()) as u64),
        }
    }

    /// Seeds every checksum: a value written under another geometry does not verify.
    pub(super) fn tag(&self) -> u64 {
        let sizes = (u64::from(self.chunk_bytes) << 32) | u64::from(self.max_capacity_chunks);
        wire::mix(sizes ^ wire::mix(self.slots() as u64))
    }
}

/// The page of a group of chunks at a level, by the hash of its first chunk. Each level has a
/// function of its own, or a full page would be its own way out.
pub(super) fn page_of(first: ChunkHash, level: usize, pages: u32) -> u32 {
    let salted = first.0 ^ (level as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let spread = u64::from((wire::mix(salted) >> 32) as u32);
    (spread.wrapping_mul(u64::from(pages)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(pods: u16, capacity: u32) -> Geometry {
        Geometry {
            chunk_bytes: 256,
            max_pods: pods,
            max_capacity_chunks: capacity,
        }
    }

    #[test]
    fn footprint_keeps_24_bytes_per_chunk() {
        for (pods, capacity) in [
            (1, 1024),
            (16, 8192),
            (64, 32768),
            (256, 32768),
            (256, 4096),
        ] {
            let footprint = geometry(pods, capacity).footprint();
            let allowed = 24 * u64::from(pods) * u64::from(capacity);
            assert!(
                footprint.bytes <= allowed,
                "{pods} x {capacity}: {footprint:?}"
            );
            assert!(
                footprint.bytes * 10 >= allowed * 7,
                "{pods} x {capacity}: {footprint:?}"
            );
        }
    }

    #[test]
    fn every_size_tells_geometries_apart() {
        let base = geometry(64, 32768);
        let other = Geometry {
            chunk_bytes: 128,
            ..base
        };
        assert_ne!(base.tag(), other.tag());
        assert_ne!(base.tag(), geometry(65, 32768).tag());
        assert_ne!(base.tag(), geometry(64, 32767).tag());
    }

    #[test]
    fn levels_spread_over_all_pages() {
        let mut hit = [0u32; 8];
        for i in 0..8000u64 {
            let hash = ChunkHash(wire::mix(i));
            for level in 0..SPANS.len() {
                hit[page_of(hash, level, 8) as usize] += 1;
            }
        }
        let mean = 1000 * SPANS.len() as u32;
        assert!(hit.iter().all(|n| n.abs_diff(mean) < mean / 10), "{hit:?}");
    }
}
