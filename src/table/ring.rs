//! The LRU of one pod: how many live chunks each span of epochs has.
//!
//! Time is counted in epochs. The current epoch takes up to C/16 chunks, then the next begins;
//! a chunk that is touched moves to the current epoch. Evicting is dropping the oldest span and
//! raising the watermark. Epochs are 23 bits wide and compared by distance around the circle.
//! Invariants: the counts are never less than what pages hold for the pod; a span holds at most
//! C/16 chunks, so that this is the grain of an eviction; a pod under capacity loses nothing.
//! Cost: 8 bytes a span, at most [`MAX_SPANS`] of them.

use super::frame::FRAME;
use super::slots::Entry;
use crate::store::Expect;

/// Epochs wrap here.
pub(super) const EPOCH_MASK: u32 = (1 << 23) - 1;
/// Half of the circle: what is further ahead is behind.
const HALF: u32 = 1 << 22;
/// Chunks not touched for so many epochs are evicted in any case, long before epochs wrap.
const MAX_AGE: u32 = 1 << 21;
/// More spans than this are merged. With twice 35 of them there are always two neighbours of at
/// most C/16 chunks together, even while a notify counts its chunks twice.
const MAX_SPANS: usize = 72;
/// An eviction's grain is C over this.
const GRAINS: u32 = 16;

/// Whether `epoch` is `watermark` or after it.
pub(super) const fn is_alive(epoch: u32, watermark: u32) -> bool {
    epoch.wrapping_sub(watermark) & EPOCH_MASK < HALF
}

fn after(epoch: u32, by: u32) -> u32 {
    epoch.wrapping_add(by) & EPOCH_MASK
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    count: u32,
}

/// Live chunks of a pod by age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ring {
    /// How often the pod was emptied; a notify that began before is void.
    pub generation: u32,
    /// Oldest first; never empty. The last one is the current epoch alone.
    spans: Vec<Span>,
    version: Option<u32>,
}

/// Where a notify puts a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It is in the right epoch already; mark it as touched again.
    Touch(u32),
    /// Into this epoch.
    Epoch(u32),
}

impl Place {
    /// The epoch that the chunk is in, or goes to.
    pub fn epoch(self) -> u32 {
        match self {
            Self::Touch(epoch) | Self::Epoch(epoch) => epoch,
        }
    }
}

impl Ring {
    /// The ring of a slot that has none that can be used. If it `existed`, nobody knows which
    /// epochs the pod's chunks have: it starts after all that could be.
    pub fn lost(entry: Entry, version: Option<u32>, existed: bool) -> Self {
        let (skip, generation) = if existed { (MAX_AGE, 1) } else { (0, 0) };
        let start = after(
            entry.watermark,
            skip.wrapping_mul(2).min(HALF.wrapping_sub(1)),
        );
        let generation = entry.generation.wrapping_add(generation);
        Self {
            generation,
            spans: vec![Span { start, count: 0 }],
            version,
        }
    }

    /// A sound value: generation, then start and count of each span.
    pub fn decode(value: &[u8], version: Option<u32>) -> Option<Self> {
        let (generation, rest) = value.get(FRAME..)?.split_first_chunk::<8>()?;
        let span = |bytes: &[u8]| {
            let both = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
            Some(Span {
                start: both as u32 & EPOCH_MASK,
                count: (both >> 32) as u32,
            })
        };
        let spans: Vec<Span> = rest.chunks_exact(8).filter_map(span).collect();
        let generation = u64::from_le_bytes(*generation) as u32;
        (!spans.is_empty()).then_some(Self {
            generation,
            spans,
            version,
        })
    }

    /// The value, to be sealed.
    pub fn encode(&self) -> Vec<u8> {
        let size = self.spans.len().saturating_mul(8).saturating_add(FRAME + 8);
        let mut value = Vec::with_capacity(size);
        value.resize(FRAME, 0);
        value.extend_from_slice(&u64::from(self.generation).to_le_bytes());
        for span in &self.spans {
            let both = u64::from(span.start) | (u64::from(span.count) << 32);
            value.extend_from_slice(&both.to_le_bytes());
        }
        value
    }

    pub fn expect(&self) -> Expect {
        self.version.map_or(Expect::Absent, Expect::Version)
    }

    /// Epoch below which the pod's chunks are dead.
    pub fn watermark(&self) -> u32 {
        self.spans.first().map_or(0, |span| span.start)
    }

    /// Live chunks, or a little more.
    pub fn total(&self) -> u32 {
        self.spans
            .iter()
            .fold(0, |sum, span| sum.saturating_add(span.count))
    }

    fn current(&self) -> u32 {
        self.spans.last().map_or(0, |span| span.start)
    }

    /// All chunks die; the next epoch is a fresh one.
    pub fn forget(&mut self) {
        let start = after(self.current(), 1);
        self.spans = vec![Span { start, count: 0 }];
        self.generation = self.generation.wrapping_add(1);
    }

    /// Charges a notify: gives each chunk its epoch, from the tail to the head, so that the head
    /// is never older than the tail; then evicts down to `capacity`. `existing`: the live epoch
    /// of each chunk in the pod's pages, head first. Returns the places, head first, without the
    /// tail that was evicted at once, and the number of older chunks evicted.
    pub fn charge(&mut self, existing: &[Option<u32>], capacity: u32) -> (Vec<Place>, u32) {
        let grain = capacity.checked_div(GRAINS).unwrap_or(1).max(1);
        let mut moved: Vec<u32> = Vec::new();
        // A worker may have died before it raised the watermark that readers see.
        let oldest = self.watermark();
        let mut places: Vec<Place> = existing
            .iter()
            .rev()
            .map(|found| {
                match found.filter(|epoch| is_alive(*epoch, oldest)) {
                    Some(epoch) if epoch == self.current() => return Place::Touch(epoch),
                    Some(epoch) => moved.push(epoch),
                    None => {}
                }
                if self.spans.last().is_none_or(|span| span.count >= grain) {
                    let start = after(self.current(), 1);
                    self.spans.push(Span { start, count: 0 });
                }
                let current = self.current();
                if let Some(span) = self.spans.last_mut() {
                    span.count = span.count.saturating_add(1);
                }
                Place::Epoch(current)
            })
            .collect();
        places.reverse();
        let evicted = self.evict(capacity, &moved);
        self.merge();
        let watermark = self.watermark();
        let stored = places
            .iter()
            .take_while(|place| is_alive(place.epoch(), watermark))
            .count();
        places.truncate(stored);
        (places, evicted)
    }

    /// Drops the oldest spans until `capacity` holds. A chunk that is being moved counts twice
    /// until its notify gives the old place back, unless that place is dropped here.
    fn evict(&mut self, capacity: u32, moved: &[u32]) -> u32 {
        let mut total = self.total();
        let mut twice = moved.len() as u32;
        let current = self.current();
        let mut evicted = 0u32;
        let mut dead = 0usize;
        for (span, next) in self.spans.iter().zip(self.spans.iter().skip(1)) {
            let too_old = current.wrapping_sub(span.start) & EPOCH_MASK > MAX_AGE;
            if total.saturating_sub(twice) <= capacity && !too_old {
                break;
            }
            let of_span =
                |epoch: &&u32| is_alive(**epoch, span.start) && !is_alive(**epoch, next.start);
            let moving = moved.iter().filter(of_span).count() as u32;
            total = total.saturating_sub(span.count);
            twice = twice.saturating_sub(moving);
            evicted = evicted.saturating_add(span.count.saturating_sub(moving));
            dead = dead.saturating_add(1);
        }
        self.spans.drain(..dead.min(self.spans.len()));
        evicted
    }

    /// Joins the neighbours that have the fewest chunks, never the current epoch.
    fn merge(&mut self) {
        while self.spans.len() > MAX_SPANS {
            let old = self.spans.len().saturating_sub(1);
            let pairs = self
                .spans
                .iter()
                .take(old)
                .zip(self.spans.iter().take(old).skip(1));
            let sums = pairs
                .map(|(a, b)| a.count.saturating_add(b.count))
                .enumerate();
            let Some((at, sum)) = sums.min_by_key(|(_, sum)| *sum) else {
                return;
            };
            if let Some(span) = self.spans.get_mut(at) {
                span.count = sum;
            }
            self.spans.remove(at.saturating_add(1));
        }
    }

    /// Takes chunks of these epochs out of the counts. Dead epochs have no count any more.
    pub fn give_back(&mut self, epochs: &[u32]) {
        // Neighbouring chunks mostly have one epoch.
        for run in epochs.chunk_by(|a, b| a == b) {
            let Some(epoch) = run.first() else { continue };
            let span = self
                .spans
                .iter_mut()
                .rev()
                .find(|span| is_alive(*epoch, span.start));
            if let Some(span) = span {
                span.count = span.count.saturating_sub(run.len() as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        Ring::lost(Entry::default(), None, false)
    }

    #[test]
    fn the_head_is_never_older_than_the_tail() {
        let mut ring = ring();
        let (places, evicted) = ring.charge(&[None; 40], 160);
        assert_eq!(evicted, 0);
        let epochs: Vec<u32> = places.iter().map(|place| place.epoch()).collect();
        assert!(
            epochs.windows(2).all(|pair| pair[0] >= pair[1]),
            "{epochs:?}"
        );
        assert_eq!((epochs[0], epochs[39]), (3, 0));
    }

    #[test]
    fn evicts_by_the_grain_and_only_above_capacity() {
        let mut ring = ring();
        for n in 0..16 {
            assert_eq!(ring.charge(&[None; 10], 160).1, 0, "{n}");
        }
        assert_eq!(ring.total(), 160);
        assert_eq!(ring.charge(&[None], 160).1, 10);
        assert_eq!((ring.total(), ring.watermark()), (151, 1));
    }

    #[test]
    fn moving_evicts_nothing() {
        let mut ring = ring();
        ring.charge(&[None; 80], 160);
        ring.charge(&[None; 80], 160);
        let existing: Vec<Option<u32>> = (0..80).rev().map(|n| Some(n / 10)).collect();
        let (_, evicted) = ring.charge(&existing, 160);
        assert_eq!(evicted, 0);
        ring.give_back(&existing.iter().flatten().copied().collect::<Vec<_>>());
        assert_eq!(ring.total(), 160);
    }

    #[test]
    fn an_old_chunk_survives_while_under_capacity() {
        let mut ring = ring();
        ring.charge(&[None], 160);
        let mut places = vec![None; 40];
        for _ in 0..2000 {
            let (next, evicted) = ring.charge(&places, 160);
            assert_eq!(evicted, 0);
            let (mut given, mut now) = (Vec::new(), Vec::new());
            for (old, place) in places.iter().zip(next) {
                match place {
                    Place::Touch(epoch) => now.push(Some(epoch)),
                    Place::Epoch(epoch) => {
                        given.extend(old.iter().copied());
                        now.push(Some(epoch));
                    }
                }
            }
            ring.give_back(&given);
            places = now;
            assert!(ring.spans.len() <= MAX_SPANS);
            assert_eq!((ring.total(), ring.watermark()), (41, 0));
        }
    }

    #[test]
    fn epochs_wrap() {
        let start = EPOCH_MASK - 1;
        let mut ring = Ring {
            generation: 0,
            spans: vec![Span { start, count: 0 }],
            version: None,
        };
        ring.charge(&[None; 50], 160);
        assert_eq!((ring.current(), ring.watermark()), (2, start));
        assert!(is_alive(2, start) && !is_alive(start, 2));
        assert_eq!(Ring::decode(&ring.encode(), None), Some(ring));
    }
}
