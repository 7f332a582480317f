//! Prompt stream -> chunk hashes.

/// Cumulative hash of a prompt stream up to the end of one chunk, seeded by the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkHash(pub u64);
