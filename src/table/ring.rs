//! The `ring/<slot>` value: how many chunks of a pod were last touched in which epochs.
//!
//! Owns the LRU. The newest bucket is the current epoch; it advances when it holds a grain
//! (C/16) of chunks. Evicting drops the oldest buckets and raises the floor; a full ring merges
//! two neighbours, which loses no chunk.
//!
//! Invariant: from any epoch on, the buckets count at least the chunks that live there. Inserts
//! are counted before their pages are written, a move hands its count on to a newer bucket, and
//! only what is proven absent is given back. So a crash or a race counts too much, never too
//! little, and heals as epochs die.
//! Cost: one pass over the prompt's chunks and at most 40 buckets.

use super::epoch::{Epoch, Stamp, MAX_SPAN, SWEEP_SPAN};
use super::slots::PodKey;
use super::wire;

/// Buckets kept between notifies. Of 32 and more, some two neighbours hold at most a grain.
const MAX_BUCKETS: usize = 40;
const BUCKET: usize = 8;
const HEADER: usize = wire::SEAL + 8 + 4 + 4;
/// Bytes of the largest value.
pub(super) const RING_MAX: usize = HEADER + MAX_BUCKETS * BUCKET;
/// Grains in the capacity of a pod.
const GRAINS: u32 = 16;

/// Chunks last touched from `start` up to the start of the next bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) start: Epoch,
    pub(super) count: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ring {
    owner: u64,
    floor: Epoch,
    /// Page that is swept next on behalf of this slot.
    sweep: u32,
    /// Oldest first; never empty, and the last one's start is the current epoch.
    buckets: Vec<Bucket>,
}

/// What a prompt will look like once stored.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// The stamp that each chunk is to carry, head first.
    pub(super) targets: Vec<Stamp>,
    /// Chunks that the pod lost for it.
    pub(super) evicted: u32,
    /// Epochs by which the slot's clock advanced.
    pub(super) advanced: u32,
    /// Whether the ring must be written.
    pub(super) changed: bool,
}

/// The evicting would reach chunks of the prompt itself.
struct Overfull;

impl Ring {
    pub(super) fn new(pod: PodKey, start: Epoch) -> Self {
        let first = Bucket { start, count: 0 };
        Ring {
            owner: pod.0,
            floor: start,
            sweep: 0,
            buckets: vec![first],
        }
    }

    /// Nothing when the value is junk.
    pub(super) fn decode(tag: u64, bytes: &[u8]) -> Option<Self> {
        if bytes.len() > RING_MAX || !wire::verify(tag, bytes) {
            return None;
        }
        let (records, _) = bytes.get(HEADER..)?.as_chunks::<BUCKET>();
        let buckets: Vec<Bucket> = records
            .iter()
            .map(|record| Bucket {
                start: Epoch::new(wire::u32_at(record, 0).unwrap_or(0)),
                count: wire::u32_at(record, 4).unwrap_or(0),
            })
            .collect();
        buckets.last()?;
        Some(Ring {
            owner: wire::u64_at(bytes, 8)?,
            floor: Epoch::new(wire::u32_at(bytes, 16)?),
            sweep: wire::u32_at(bytes, 20)?,
            buckets,
        })
    }

    pub(super) fn encode(&self, tag: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RING_MAX);
        bytes.extend_from_slice(&[0; wire::SEAL]);
        bytes.extend_from_slice(&self.owner.to_le_bytes());
        bytes.extend_from_slice(&self.floor.raw().to_le_bytes());
        bytes.extend_from_slice(&self.sweep.to_le_bytes());
        for bucket in &self.buckets {
            bytes.extend_from_slice(&bucket.start.raw().to_le_bytes());
            bytes.extend_from_slice(&bucket.count.to_le_bytes());
        }
        wire::seal(tag, &mut bytes);
        bytes
    }

    pub(super) fn belongs_to(&self, pod: PodKey) -> bool {
        self.owner == pod.0
    }

    pub(super) fn floor(&self) -> Epoch {
        self.floor
    }

    /// The epoch of what is stored now.
    pub(super) fn current(&self) -> Epoch {
        self.buckets
            .last()
            .map_or(self.floor, |bucket| bucket.start)
    }

    /// Chunks counted in all buckets.
    pub(super) fn total(&self) -> u32 {
        self.buckets
            .iter()
            .fold(0u32, |sum, bucket| sum.saturating_add(bucket.count))
    }

    #[cfg(test)]
    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Starts over for `pod`: all that was stored is dead, in any reservation too.
    pub(super) fn reset(&mut self, pod: PodKey, start: Epoch) {
        self.owner = pod.0;
        self.floor = start;
        self.buckets.clear();
        self.buckets.push(Bucket { start, count: 0 });
    }

    /// Catches up with a watermark that a crash left ahead of the floor.
    pub(super) fn raise(&mut self, watermark: Epoch) {
        if !self.floor.is_before(watermark) {
            return;
        }
        let straddling = |next: &Bucket| !watermark.is_before(next.start);
        while self.buckets.get(1).is_some_and(straddling) {
            self.buckets.remove(0);
        }
        if self.current().is_before(watermark) {
            self.buckets.clear();
            self.buckets.push(Bucket {
                start: watermark,
                count: 0,
            });
        }
        self.floor = watermark;
    }

    /// Gives back the count of a chunk of that epoch; a dead one was given back with its bucket.
    pub(super) fn give_back(&mut self, epoch: Epoch, count: u32) {
        if epoch.is_before(self.floor) {
            return;
        }
        if let Some(bucket) = self
            .bucket_of(epoch)
            .and_then(|at| self.buckets.get_mut(at))
        {
            bucket.count = bucket.count.saturating_sub(count);
        }
    }

    /// The pages to sweep after a reservation, as a start and a number: one whenever the clock
    /// advances, and as many more as it takes to visit every page within [`SWEEP_SPAN`] epochs.
    pub(super) fn advance_sweep(&mut self, advanced: u32, pages: u32) -> (u32, u32) {
        let start = self.sweep.checked_rem(pages).unwrap_or(0);
        let extra = u64::from(advanced).saturating_mul(u64::from(pages)) / SWEEP_SPAN;
        let number = u32::try_from(extra)
            .unwrap_or(u32::MAX)
            .saturating_add(advanced.min(1))
            .min(pages);
        self.sweep = start.saturating_add(number).checked_rem(pages).unwrap_or(0);
        (start, number)
    }

    /// Counts the touch of a prompt's chunks, of which `had` says how they are stored now.
    ///
    /// Epochs go from the tail to the head, so the head is never older than the tail.
    pub(super) fn reserve(&mut self, had: &[Option<Stamp>], capacity: u32) -> Reserved {
        let before = self.clone();
        if let Ok(reserved) = self.try_reserve(had, capacity, false) {
            return reserved;
        }
        // The prompt fills the pod and its tail would share an epoch with older chunks that must
        // go: give it epochs of its own. Then evicting all others is always enough.
        *self = before;
        self.try_reserve(had, capacity, true).unwrap_or_default()
    }

    fn try_reserve(
        &mut self,
        had: &[Option<Stamp>],
        capacity: u32,
        fresh: bool,
    ) -> Result<Reserved, Overfull> {
        let grain = (capacity / GRAINS).max(1);
        let before = self.current();
        let mut reserved = Reserved::default();
        if fresh {
            self.advance();
        }
        let first = self.current();
        let mut current = first;
        let mut filled = self.buckets.last().map_or(0, |bucket| bucket.count);
        let mut source: Option<(Epoch, usize)> = None;
        let floor = Stamp::floor(self.floor);
        reserved.targets.reserve_exact(had.len());
        for stamp in had.iter().rev() {
            let old = stamp.filter(|stamp| stamp.covers(floor)).map(Stamp::epoch);
            if old == Some(current) {
                reserved.targets.push(Stamp::new(current, true));
                continue;
            }
            if filled >= grain {
                self.advance();
                current = self.current();
                filled = 0;
            }
            reserved.changed = true;
            filled = filled.saturating_add(1);
            if let Some(bucket) = self.buckets.last_mut() {
                bucket.count = filled;
            }
            if let Some(epoch) = old {
                let at = match source {
                    Some((known, at)) if known == epoch => Some(at),
                    _ => self.bucket_of(epoch),
                };
                source = at.map(|at| (epoch, at));
                // A move takes its count along; if a race took it already, it counts twice.
                if let Some(bucket) = at.and_then(|at| self.buckets.get_mut(at)) {
                    bucket.count = bucket.count.saturating_sub(1);
                }
            }
            reserved.targets.push(Stamp::new(current, old.is_some()));
        }
        reserved.targets.reverse();
        reserved.evicted = self.evict(capacity, first)?;
        self.merge();
        reserved.advanced = self.current().since(before);
        reserved.changed |= reserved.evicted > 0;
        Ok(reserved)
    }

    fn advance(&mut self) {
        let start = self.current().after(1);
        self.buckets.push(Bucket { start, count: 0 });
    }

    fn bucket_of(&self, epoch: Epoch) -> Option<usize> {
        self.buckets
            .iter()
            .rposition(|bucket| !epoch.is_before(bucket.start))
    }

    /// Drops the oldest buckets until at most `capacity` chunks are counted.
    fn evict(&mut self, capacity: u32, prompt: Epoch) -> Result<u32, Overfull> {
        let mut total = self.total();
        let mut gone = 0usize;
        let mut floor = None;
        let newest = self.current();
        for pair in self.buckets.windows(2) {
            let [oldest, next] = pair else { break };
            let ancient = newest.since(oldest.start) > MAX_SPAN;
            if total <= capacity && !ancient {
                break;
            }
            if !oldest.start.is_before(prompt) {
                return Err(Overfull);
            }
            total = total.saturating_sub(oldest.count);
            gone = gone.saturating_add(1);
            floor = Some(next.start);
        }
        if total > capacity {
            return Err(Overfull);
        }
        let evicted = self.buckets.drain(..gone.min(self.buckets.len()));
        let evicted = evicted.fold(0u32, |sum, bucket| sum.saturating_add(bucket.count));
        self.floor = floor.unwrap_or(self.floor);
        Ok(evicted)
    }

    /// Joins the neighbours with the fewest chunks until the ring fits its value.
    fn merge(&mut self) {
        while self.buckets.len() > MAX_BUCKETS {
            let older = self.buckets.len().saturating_sub(1);
            let least = self
                .buckets
                .windows(2)
                .enumerate()
                .take(older.saturating_sub(1))
                .min_by_key(|(_, pair)| {
                    pair.iter().fold(0u32, |sum, b| sum.saturating_add(b.count))
                });
            let Some((at, &[_, next])) = least else { break };
            self.buckets.remove(at.saturating_add(1));
            if let Some(bucket) = self.buckets.get_mut(at) {
                bucket.count = bucket.count.saturating_add(next.count);
            }
        }
    }

    /// Every invariant that needs no pages.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        assert!(!self.buckets.is_empty() && self.buckets.len() <= MAX_BUCKETS);
        for pair in self.buckets.windows(2) {
            assert!(pair[0].start.is_before(pair[1].start), "{self:?}");
        }
        assert!(
            self.current().since(self.buckets[0].start) <= MAX_SPAN,
            "{self:?}"
        );
        assert!(!self.current().is_before(self.floor), "{self:?}");
    }
}

#[cfg(test)]
mod tests;
