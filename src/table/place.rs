//! In which page a chunk is: the first of four that has room.
//!
//! Neighbouring chunks have to share a page, since host calls are the cost; but a page chosen by
//! what comes before fills up with every prompt that starts alike. So a chunk's page is named by
//! the hash of the first chunk of its stride; when that page is full it is marked, for good, and
//! the chunk goes to the page of a shorter stride, at last to one of its own hash. Readers look
//! further only where they miss under a mark.

use crate::chunk::ChunkHash;

/// Number of levels.
pub(super) const LEVELS: usize = 4;
/// Chunks that share a page on the first level.
pub(super) const STRIDE: usize = 32;

/// Chunks that share a page on a level. The last two are both by the chunk's own hash, in two
/// different pages: a page that happens to be full does not turn it away.
pub(super) const fn stride(level: usize) -> usize {
    match level {
        0 => STRIDE,
        1 => 4,
        _ => 1,
    }
}

/// The page of chunk `at` of a prompt, at a level; `None` past the end of either.
pub(super) fn page(chain: &[ChunkHash], at: usize, level: usize, pages: u64) -> Option<u64> {
    if level >= LEVELS {
        return None;
    }
    let first = at & !stride(level).wrapping_sub(1);
    // Spread by level, and apart from the order inside of a page, which is by the whole hash.
    let salt = (level as u64).wrapping_mul(0xA24B_AED4_963E_E407);
    let spread = (chain.get(first)?.0 ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Some((spread >> 32).wrapping_mul(pages) >> 32)
}
