//! The rule `balanced`: the least estimated cost, in tokens of prefill.
//!
//! Owns the formula. For a pod p with backlog b, tokens u that it lacks of this request, and
//! requests in flight:
//!
//! ```text
//! cost(p) = b(p) + u(p) · (1 − ψ if p is the prompt's home) · (1 + L) + w · running(p)
//! L       = λ + κ · min b / rate
//! ```
//!
//! L is why a hit is worth more than its own tokens: what is computed twice delays everybody
//! behind it, the more the busier even the lightest pod is. The discount at home lets gateways
//! that share nothing choose alike.
//! Invariant: with equal numbers of requests in flight, more backlog never makes a pod likelier.
//! Cost: a few multiplications a pod.

use super::{Candidate, Standing};
use crate::config::Balanced;

/// What a pod would cost, in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Prefill that waits on it: b.
    pub backlog: f64,
    /// Prefill of this request, with its penalty and discount.
    pub recompute: f64,
    /// Requests in flight, weighed.
    pub running: f64,
}

impl Cost {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.backlog + self.recompute + self.running
    }
}

/// The cost of every candidate. `rate`: tokens of prefill per second. `home`: index among the
/// candidates.
pub fn costs(
    candidates: &[Candidate<'_>],
    home: Option<usize>,
    rate: f64,
    keys: &Balanced,
) -> Vec<Cost> {
    // A probe has no backlog, and says nothing of how busy the pool is.
    let usual = candidates.iter().filter(|c| c.standing == Standing::Fit);
    let lightest = usual.map(|c| c.backlog).reduce(f64::min).unwrap_or(0.0);
    let wait_s = lightest / rate.max(1.0);
    let penalty = keys.recompute_penalty + keys.recompute_penalty_per_backlog_second * wait_s;
    let cost = |(index, candidate): (usize, &Candidate<'_>)| {
        let discount = match home == Some(index) {
            true => keys.home_discount,
            false => 0.0,
        };
        Cost {
            backlog: candidate.backlog,
            recompute: candidate.uncached * (1.0 - discount) * (1.0 + penalty),
            running: keys.running_weight_tokens * f64::from(candidate.running),
        }
    };
    candidates.iter().enumerate().map(cost).collect()
}
