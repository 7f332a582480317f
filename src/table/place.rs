//! In which page a chunk is: the first of four that has room.
//!
//! Neighbouring chunks have to share a page, since host calls are the cost; but a page chosen by
//! what comes before fills up with every prompt that starts alike. So a chunk's page is named by
//! the hash of the first chunk of its stride; when that page is full it is marked, for good, and
//! the chunk goes to the page of a shorter stride, at last to that of its own hash. Readers look
//! further only where they miss under a mark.

use crate::chunk::ChunkHash;

/// Chunks that share a page, level by level. The last two are both by the chunk's own hash, in
/// two different pages: a page that happens to be full does not turn it away.
pub(super) const STRIDES: [usize; 4] = [32, 4, 1, 1];

/// The page of chunk `at` of a prompt, at a level; `None` past the end of either.
pub(super) fn page(chain: &[ChunkHash], at: usize, level: usize, pages: u64) -> Option<u64> {
    let stride = STRIDES.get(level)?;
    let first = at.wrapping_sub(at.checked_rem(*stride)?);
    // Spread by level, and apart from the order inside of a page, which is by the whole hash.
    let salt = (level as u64).wrapping_mul(0xA24B_AED4_963E_E407);
    let hash = (chain.get(first)?.0 ^ salt)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_right(29);
    hash.checked_rem(pages)
}
