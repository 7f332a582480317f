//! Prompt stream -> chunk hashes.
//!
//! Owns the cutting of a byte stream into chunks and the one XXH64 state that runs over it.
//! Invariant: `chunks[i]` is XXH64 of the stream's first `(i + 1) * chunk_bytes` bytes, seeded by
//! the identity, however the stream was split into pushes; the last, partial chunk has no hash.
//! Cost: one pass over the bytes, one `finish` (no copy) at each boundary, 8 bytes a chunk.

use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Bytes of a stream that choose the home pod of a prompt.
pub const HOME_BYTES: usize = 8192;

/// Cumulative hash of a prompt stream up to the end of one chunk, seeded by the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkHash(pub u64);

/// Takes a stream of bytes, in pieces of any size.
pub trait Sink {
    /// Appends `bytes` to the stream.
    fn push(&mut self, bytes: &[u8]);
}

impl Sink for XxHash64 {
    fn push(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }
}

impl Sink for Vec<u8> {
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Cuts a stream into chunks and hashes them.
#[derive(Debug)]
pub struct Chunker {
    state: XxHash64,
    chunk_bytes: usize,
    /// Bytes until the next chunk is whole.
    to_chunk: usize,
    /// Bytes until the home hash is read; `usize::MAX` once it was.
    to_home: usize,
    home: u64,
    chunks: Vec<ChunkHash>,
    bytes: usize,
}

/// What a [`Chunker`] makes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// What the hashes were seeded with: the identity.
    pub seed: u64,
    /// The hash at the end of each whole chunk.
    pub hashes: Vec<ChunkHash>,
    /// The hash of the first [`HOME_BYTES`], or of the whole stream when it is shorter.
    pub home: u64,
    /// Length of the stream in bytes.
    pub bytes: usize,
}

impl Chunker {
    /// A chunker of an empty stream. `expected_bytes` is a hint for the allocation.
    pub fn new(seed: u64, chunk_bytes: usize, expected_bytes: usize) -> Self {
        let chunk_bytes = chunk_bytes.max(1);
        let expected = expected_bytes.checked_div(chunk_bytes).unwrap_or(0);
        Chunker {
            state: XxHash64::with_seed(seed),
            chunk_bytes,
            to_chunk: chunk_bytes,
            to_home: HOME_BYTES,
            home: 0,
            chunks: Vec::with_capacity(expected),
            bytes: 0,
        }
    }

    /// A chunker of an empty stream, with the same seed.
    pub fn restarted(&self) -> Self {
        Chunker::new(self.state.seed(), self.chunk_bytes, 0)
    }

    /// Ends the stream.
    pub fn finish(self) -> Chunks {
        let home = if self.to_home == usize::MAX {
            self.home
        } else {
            self.state.finish()
        };
        Chunks {
            seed: self.state.seed(),
            hashes: self.chunks,
            home,
            bytes: self.bytes,
        }
    }
}

impl Sink for Chunker {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.wrapping_add(bytes.len());
        let mut rest = bytes;
        while let Some((piece, after)) = rest.split_at_checked(self.to_chunk.min(self.to_home)) {
            self.state.write(piece);
            self.to_chunk = self.to_chunk.wrapping_sub(piece.len());
            if self.to_chunk == 0 {
                self.chunks.push(ChunkHash(self.state.finish()));
                self.to_chunk = self.chunk_bytes;
            }
            if self.to_home != usize::MAX {
                self.to_home = self.to_home.wrapping_sub(piece.len());
                if self.to_home == 0 {
                    self.home = self.state.finish();
                    self.to_home = usize::MAX;
                }
            }
            rest = after;
        }
        if !rest.is_empty() {
            self.state.write(rest);
            self.to_chunk = self.to_chunk.wrapping_sub(rest.len());
            if self.to_home != usize::MAX {
                self.to_home = self.to_home.wrapping_sub(rest.len());
            }
        }
    }
}

/// Gathers small pieces before they reach `inner`, where each push has a price of its own.
#[derive(Debug)]
pub struct Gather<S> {
    inner: S,
    buffer: [u8; GATHER_BYTES],
    used: usize,
}

const GATHER_BYTES: usize = 1024;
/// A piece of this size or more is passed on as it is.
const LARGE_PIECE: usize = 64;

impl<S: Sink> Gather<S> {
    /// Gathers for `inner`.
    pub fn new(inner: S) -> Self {
        Gather {
            inner,
            buffer: [0; GATHER_BYTES],
            used: 0,
        }
    }

    /// Passes on what is left and gives `inner` back.
    pub fn finish(mut self) -> S {
        self.flush();
        self.inner
    }

    /// The sink behind.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Passes on what is left, goes on with `inner`, and gives the one before back.
    pub fn replace(&mut self, inner: S) -> S {
        self.flush();
        core::mem::replace(&mut self.inner, inner)
    }

    /// Appends one byte.
    #[inline(always)]
    pub fn byte(&mut self, byte: u8) {
        self.head_of(&[byte], 1);
    }

    /// Appends the first `kept` bytes of `block`, by copying all of it: copies of a length that is
    /// known are one or two instructions, others are calls.
    #[inline(always)]
    pub fn head_of<const N: usize>(&mut self, block: &[u8; N], kept: usize) {
        if self.used > const { GATHER_BYTES.saturating_sub(N) } {
            self.flush();
        }
        let room = self.buffer.get_mut(self.used..);
        if let Some(room) = room.and_then(|room| room.first_chunk_mut::<N>()) {
            *room = *block;
            self.used = self.used.wrapping_add(kept);
        }
    }

    #[cold]
    fn flush(&mut self) {
        if let Some(gathered) = self.buffer.get(..self.used) {
            if !gathered.is_empty() {
                self.inner.push(gathered);
            }
        }
        self.used = 0;
    }
}

impl<S: Sink> Sink for Gather<S> {
    fn push(&mut self, bytes: &[u8]) {
        if bytes.len() >= LARGE_PIECE {
            self.flush();
            return self.inner.push(bytes);
        }
        let mut rest = bytes;
        while let Some((block, after)) = rest.split_first_chunk::<16>() {
            self.head_of(block, 16);
            rest = after;
        }
        for &byte in rest {
            self.byte(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunks(stream: &[u8], chunk_bytes: usize, splits: &[usize]) -> Chunks {
        let mut sink = Gather::new(Chunker::new(7, chunk_bytes, 0));
        let mut rest = stream;
        for &split in splits {
            let (piece, after) = rest.split_at(split.min(rest.len()));
            sink.push(piece);
            rest = after;
        }
        sink.push(rest);
        sink.finish().finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn hashes_are_those_of_the_stream_however_it_is_split(
            stream in prop::collection::vec(any::<u8>(), 0..20_000),
            splits in prop::collection::vec(0usize..700, 0..60),
            chunk_bytes in 16usize..1000,
        ) {
            let got = chunks(&stream, chunk_bytes, &splits);
            let want: Vec<ChunkHash> = (1..=stream.len() / chunk_bytes)
                .map(|n| ChunkHash(XxHash64::oneshot(7, &stream[..n * chunk_bytes])))
                .collect();
            prop_assert_eq!(got.hashes, want);
            prop_assert_eq!(got.bytes, stream.len());
            let head = &stream[..stream.len().min(HOME_BYTES)];
            prop_assert_eq!(got.home, XxHash64::oneshot(7, head));
        }
    }

    #[test]
    fn a_chunk_size_of_zero_does_not_loop_or_divide() {
        assert_eq!(chunks(b"abc", 0, &[]).hashes.len(), 3);
    }
}
