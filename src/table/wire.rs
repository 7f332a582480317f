//! Bytes of shared values: little-endian fields and the checksum in front of each value.
//!
//! Invariant: what does not verify is never used (T5).
//! Cost: the checksum is two additions per 8 bytes in independent lanes, because every page of a
//! request passes through it twice.

/// Bytes in front of every value, for its checksum.
pub(crate) const SEAL: usize = 8;
/// Changes with every layout of slots, ring or page.
const FORMAT_VERSION: u64 = 1;

const K: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads the bits of a word (the finalizer of SplitMix64).
pub(crate) fn mix(word: u64) -> u64 {
    let a = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    b ^ (b >> 31)
}

/// Checksum of `bytes` under a geometry's tag and this format's version: sums, and sums of sums
/// for the order (as Fletcher's), over four lanes of 64 bits.
fn checksum(tag: u64, bytes: &[u8]) -> u64 {
    let mut sums = [tag ^ FORMAT_VERSION.wrapping_mul(K); 4];
    let mut order = [0u64; 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut add = |block: &[u8; 32]| {
        let (words, _) = block.as_chunks::<8>();
        for ((sum, order), word) in sums.iter_mut().zip(&mut order).zip(words) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            *order = order.wrapping_add(*sum);
        }
    };
    blocks.iter().for_each(&mut add);
    let mut last = [0u8; 32];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    add(&last);
    sums.iter()
        .chain(&order)
        .fold(bytes.len() as u64, |hash, word| {
            mix(hash.wrapping_add(K) ^ word)
        })
}

/// Writes the checksum of all that follows it.
pub(crate) fn seal(tag: u64, bytes: &mut [u8]) {
    if let Some((front, body)) = bytes.split_first_chunk_mut::<SEAL>() {
        *front = checksum(tag, body).to_le_bytes();
    }
}

/// Whether the checksum in front fits what follows it.
pub(crate) fn verify(tag: u64, bytes: &[u8]) -> bool {
    bytes
        .split_first_chunk::<SEAL>()
        .is_some_and(|(front, body)| u64::from_le_bytes(*front) == checksum(tag, body))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u16::from_le_bytes(*b))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u32::from_le_bytes(*b))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u64::from_le_bytes(*b))
}

/// Overwrites bytes in place; out of range it does nothing.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let end = at.saturating_add(value.len());
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        for len in [8usize, 9, 15, 16, 40, 47, 72, 100] {
            let mut value: Vec<u8> = (0..len as u8).collect();
            seal(7, &mut value);
            assert!(verify(7, &value));
            assert!(!verify(8, &value), "another geometry, {len} bytes");
            for bit in 0..len * 8 {
                value[bit / 8] ^= 1 << (bit % 8);
                assert!(!verify(7, &value), "bit {bit} of {len} bytes");
                value[bit / 8] ^= 1 << (bit % 8);
            }
            value.push(0);
            assert!(!verify(7, &value), "{len} bytes and a zero");
        }
        assert!(!verify(7, &[]));
    }
}
