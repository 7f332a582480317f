//! How fast the pods prefill, learned from the first bytes of their answers.
//!
//! Owns the estimate: tokens over time, both as sums that forget, so that prefills which end
//! together (vLLM batches them) do not look like an infinite speed. A time that is much longer
//! than expected counts as a bounded one, so that one hang does not undo what was learned; a pod
//! that is really slower is believed after a few answers.
//! Invariant: within a factor [`CLAMP`] of the configured start.
//! Cost: a few multiplications per answer.

/// What an answer weighs against all before it.
const WEIGHT: f32 = 0.02;
/// Fewer tokens say more about the network than about the pod.
const LEAST_TOKENS: u32 = 256;
/// A time is taken for at most so many times what was expected.
const LONGEST: f64 = 4.0;
/// How far from its start the rate may go.
const CLAMP: f64 = 32.0;
/// What the configured start weighs, in tokens.
const START_TOKENS: f64 = 2048.0;

/// Tokens and the seconds that they took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    tokens: f32,
    seconds: f32,
}

impl Rate {
    /// `tokens` took `ms`, where `known` tokens per second were expected.
    pub fn learn(&mut self, tokens: u32, ms: u64, known: f64) {
        if tokens < LEAST_TOKENS {
            return;
        }
        let expected = f64::from(tokens) / known.max(1.0);
        let seconds = (ms as f64 / 1000.0).min(expected * LONGEST);
        self.tokens = self.tokens * (1.0 - WEIGHT) + tokens as f32;
        self.seconds = self.seconds * (1.0 - WEIGHT) + seconds as f32;
    }

    /// Both together.
    pub fn with(self, other: Rate) -> Self {
        Rate {
            tokens: self.tokens + other.tokens,
            seconds: self.seconds + other.seconds,
        }
    }

    /// The rate, from `start` tokens per second on.
    pub fn tokens_per_second(self, start: f64) -> f64 {
        let tokens = f64::from(self.tokens) + START_TOKENS;
        let seconds = f64::from(self.seconds) + START_TOKENS / start;
        // `clamp` could panic.
        (tokens / seconds).max(start / CLAMP).min(start * CLAMP)
    }

    /// As it stands in shared data.
    pub fn to_bytes(self) -> [u8; 8] {
        let (tokens, seconds) = (self.tokens.to_bits(), self.seconds.to_bits());
        (u64::from(tokens) | (u64::from(seconds) << 32)).to_le_bytes()
    }

    /// Read back; what is no number is nothing.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let bits = u64::from_le_bytes(bytes);
        let (tokens, seconds) = (
            f32::from_bits(bits as u32),
            f32::from_bits((bits >> 32) as u32),
        );
        let sound = |n: f32| n.is_finite() && n >= 0.0;
        if sound(tokens) && sound(seconds) {
            Rate { tokens, seconds }
        } else {
            Rate::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: f64, samples: impl IntoIterator<Item = (u32, u64)>) -> f64 {
        let mut rate = Rate::default();
        for (tokens, ms) in samples {
            rate.learn(tokens, ms, rate.tokens_per_second(start));
        }
        rate.tokens_per_second(start)
    }

    fn near(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 0.1, "{got} instead of {want}");
    }

    #[test]
    fn converges_from_above_and_from_below() {
        near(after(8000.0, [(1000, 1000); 200]), 1000.0);
        near(after(1000.0, [(8000, 1000); 200]), 8000.0);
        near(after(8000.0, []), 8000.0);
    }

    #[test]
    fn one_hang_moves_little_and_small_prompts_nothing() {
        let steady = [(1000, 1000); 50];
        let hang = after(1000.0, steady.into_iter().chain([(1000, 600_000)]));
        assert!((800.0..1000.0).contains(&hang), "{hang}");
        near(after(1000.0, [(100, 9000); 50]), 1000.0);
    }

    #[test]
    fn prefills_that_end_together_count_as_one_time() {
        let pairs = (0..200).map(|n| (1000, if n % 2 == 0 { 2000 } else { 0 }));
        near(after(1000.0, pairs), 1000.0);
    }

    #[test]
    fn stays_near_its_start_whatever_comes() {
        let instant = after(1000.0, [(1_000_000, 0); 500]);
        assert!(instant <= 1000.0 * CLAMP * 1.01, "{instant}");
        let never = after(1000.0, [(300, u64::MAX); 500]);
        assert!(never >= 1000.0 / CLAMP * 0.99, "{never}");
    }

    #[test]
    fn survives_shared_data_and_junk() {
        let mut rate = Rate::default();
        rate.learn(1000, 300, 2000.0);
        assert_eq!(Rate::from_bytes(rate.to_bytes()), rate);
        for junk in [[0xFF; 8], [0; 8], [0x80; 8]] {
            assert_eq!(Rate::from_bytes(junk), Rate::default());
        }
    }
}
