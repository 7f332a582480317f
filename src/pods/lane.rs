//! One pod's load as one VM counts it, and the sum over the VMs.
//!
//! Owns the model of a pod's queue: prefills run one after the other in the order of arrival, so
//! only the oldest one shrinks with time, from when it became the oldest. A pod that hangs keeps
//! the backlog of all the others.
//! Invariant: a queue's counts are those of the tickets that were pushed and not ended.
//! Cost: a binary search and a shift of what waits, for each change.

use std::collections::VecDeque;

/// Bytes of a [`Lane`] in shared data.
pub const LANE_BYTES: usize = 32;

/// Requests of one VM on one pod.
#[derive(Debug, Default)]
pub struct Queue {
    running: u32,
    pending: u64,
    last_first_ms: u64,
    /// When the oldest one became that.
    head_since_ms: u64,
    /// Those whose first byte has not been seen, by their numbers: oldest first.
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: u64,
    tokens: u32,
    begun_ms: u64,
}

impl Queue {
    /// A request arrives; returns its number.
    pub fn push(&mut self, tokens: u32, now_ms: u64) -> u64 {
        self.running = self.running.saturating_add(1);
        self.pending = self.pending.saturating_add(tokens.into());
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.waiting.push_back(Waiting {
            number,
            tokens,
            begun_ms: now_ms,
        });
        number
    }

    /// Its first byte was seen.
    pub fn first_byte(&mut self, number: u64, now_ms: u64) {
        self.leave(number, now_ms);
        self.last_first_ms = self.last_first_ms.max(now_ms);
    }

    /// It is over; `waiting`: its number, if its first byte was not seen.
    pub fn end(&mut self, waiting: Option<u64>, now_ms: u64) {
        self.running = self.running.saturating_sub(1);
        if let Some(number) = waiting {
            self.leave(number, now_ms);
        }
    }

    fn leave(&mut self, number: u64, now_ms: u64) {
        let Ok(index) = self.waiting.binary_search_by_key(&number, |w| w.number) else {
            return;
        };
        if let Some(left) = self.waiting.remove(index) {
            self.pending = self.pending.saturating_sub(left.tokens.into());
        }
        if index == 0 {
            self.head_since_ms = now_ms;
        }
    }

    /// What the other VMs need to know.
    pub fn lane(&self) -> Lane {
        let head = self.waiting.front();
        Lane {
            running: self.running,
            pending: u32::try_from(self.pending).unwrap_or(u32::MAX),
            head_tokens: head.map_or(0, |head| head.tokens),
            head_since_ms: head.map_or(u64::MAX, |head| head.begun_ms.max(self.head_since_ms)),
            last_first_ms: self.last_first_ms,
        }
    }
}

/// A [`Queue`] in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    running: u32,
    pending: u32,
    head_tokens: u32,
    /// `u64::MAX`: nobody waits.
    head_since_ms: u64,
    last_first_ms: u64,
}

impl Lane {
    /// As it stands in shared data.
    pub fn to_bytes(self) -> [u8; LANE_BYTES] {
        let mut bytes = [0; LANE_BYTES];
        let words = [
            u64::from(self.running) | (u64::from(self.pending) << 32),
            self.head_tokens.into(),
            self.head_since_ms,
            self.last_first_ms,
        ];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Read back.
    pub fn from_bytes(bytes: &[u8; LANE_BYTES]) -> Self {
        let mut words = [0u64; LANE_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [counts, head_tokens, head_since_ms, last_first_ms] = words;
        Lane {
            running: counts as u32,
            pending: (counts >> 32) as u32,
            head_tokens: head_tokens as u32,
            head_since_ms,
            last_first_ms,
        }
    }
}

/// One pod's load over several VMs.
#[derive(Debug, Clone, Copy)]
pub struct Lanes {
    /// Requests in flight.
    pub running: u32,
    /// When a first byte was last seen.
    pub last_first_ms: u64,
    pending: u64,
    head_tokens: u32,
    head_since_ms: u64,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            running: 0,
            last_first_ms: 0,
            pending: 0,
            head_tokens: 0,
            head_since_ms: u64::MAX,
        }
    }
}

impl Lanes {
    /// Adds one VM's.
    pub fn add(&mut self, lane: &Lane) {
        self.running = self.running.saturating_add(lane.running);
        self.pending = self.pending.saturating_add(lane.pending.into());
        self.last_first_ms = self.last_first_ms.max(lane.last_first_ms);
        if lane.head_since_ms < self.head_since_ms {
            self.head_since_ms = lane.head_since_ms;
            self.head_tokens = lane.head_tokens;
        }
    }

    /// Tokens that wait now: all of them but what is done of the oldest, at `rate` tokens per
    /// second since it became the oldest.
    pub fn backlog(&self, rate: f64, now_ms: u64) -> f64 {
        let since = self.head_since_ms.max(self.last_first_ms);
        let done = rate * now_ms.saturating_sub(since) as f64 / 1000.0;
        (self.pending as f64 - done.min(self.head_tokens.into())).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lane_survives_shared_data() {
        let lane = Lane {
            running: 1,
            pending: 2,
            head_tokens: 3,
            head_since_ms: 4 << 40,
            last_first_ms: 5,
        };
        assert_eq!(Lane::from_bytes(&lane.to_bytes()), lane);
    }

    proptest! {
        #[test]
        fn nothing_is_left_when_all_have_ended(order in prop::collection::vec(any::<(u8, bool)>(), 0..40)) {
            let mut queue = Queue::default();
            let mut open: Vec<(u64, u32)> = Vec::new();
            for (now, (pick, first)) in order.iter().enumerate() {
                if pick % 3 == 0 && !open.is_empty() {
                    let (number, _) = open.remove(usize::from(*pick) % open.len());
                    if *first {
                        queue.first_byte(number, now as u64);
                        queue.end(None, now as u64);
                    } else {
                        queue.end(Some(number), now as u64);
                    }
                } else {
                    let tokens = u32::from(*pick) + 1;
                    open.push((queue.push(tokens, now as u64), tokens));
                }
                let lane = queue.lane();
                prop_assert_eq!(lane.running as usize, open.len());
                prop_assert_eq!(lane.pending, open.iter().map(|(_, tokens)| tokens).sum::<u32>());
                prop_assert_eq!(lane.head_tokens, open.first().map_or(0, |(_, tokens)| *tokens));
            }
        }
    }
}
