//! Candidates -> a decision.
//!
//! Owns the choice of the pod. Pure: what is known of each candidate goes in, a ranking and a
//! reason come out. Invariants: the choice does not depend on the order of the candidates; a
//! decision always names one of them; a pod that is not fit never goes before one that is.
//! Cost: one pass, a hash per candidate, a sort.

pub mod balanced;
mod rendezvous;

use crate::config::Policy;
use core::cmp::Ordering;
use std::collections::BinaryHeap;

#[cfg(test)]
mod tests;

/// Whether a pod may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// As usual.
    Fit,
    /// It was ejected, and this request may be the one that tries it again.
    Probe,
    /// Not while there is another.
    Unfit,
}

/// What the policy knows of one pod.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// Index of the pod in the pool.
    pub pod: usize,
    /// Its name: what every gateway hashes alike.
    pub name: &'a str,
    /// Whether it may be chosen.
    pub standing: Standing,
    /// Its share of the cold prompts, 0 to 1: less than 1 while it is new.
    pub cold_share: f64,
    /// Leading chunks of the prompt that it holds, over all prompts of the body.
    pub matched: u32,
    /// Tokens of the prompts that it does not hold.
    pub uncached: f64,
    /// Tokens of other requests that it has to prefill first.
    pub backlog: f64,
    /// Requests in flight.
    pub running: u32,
}

/// Why a pod was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It holds the longest prefix.
    Prefix,
    /// A longer match was passed over.
    Load,
    /// No pod holds anything of the prompt.
    Cold,
    /// It made the response that the request is about.
    Sticky,
    /// There was no prompt to look up; chosen by load.
    NoPrompt,
    /// There is no pod to choose; Envoy's fallback route serves.
    NoPods,
}

impl Reason {
    /// All reasons, for metrics.
    pub const ALL: [Reason; 6] = [
        Self::Prefix,
        Self::Load,
        Self::Cold,
        Self::Sticky,
        Self::NoPrompt,
        Self::NoPods,
    ];

    /// The token in the decision header, and the metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Load => "load",
            Self::Cold => "cold",
            Self::Sticky => "sticky",
            Self::NoPrompt => "no_prompt",
            Self::NoPods => "no_pods",
        }
    }
}

/// The chosen pod, the others from best to worst, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Indices of pods, best first; never empty.
    pub pods: Vec<usize>,
    /// Why the first one was chosen.
    pub reason: Reason,
    /// No pod was fit, and all were taken as if they were.
    pub panic: bool,
}

impl Ranking {
    /// Puts a pod first that alone has what the request is about, if it is one of those ranked.
    pub fn stick_to(&mut self, pod: usize) {
        if self.pods.contains(&pod) {
            self.pods.retain(|ranked| *ranked != pod);
            self.pods.insert(0, pod);
            self.reason = Reason::Sticky;
        }
    }
}

/// Ranks the candidates. `rate`: tokens of prefill per second. `home`: hash of what gateways that
/// share nothing shall agree on. `None` without candidates.
pub fn rank(
    policy: &Policy,
    mut candidates: Vec<Candidate<'_>>,
    rate: f64,
    home: u64,
) -> Option<Ranking> {
    let panic = candidates.iter().all(|c| c.standing == Standing::Unfit);
    if panic {
        for candidate in &mut candidates {
            candidate.standing = Standing::Fit;
        }
    }
    let keys = match policy {
        Policy::Balanced(keys) => {
            let at = home_of(&candidates, home);
            let costs = balanced::costs(&candidates, at, rate, keys);
            let later = admitted(&candidates, home);
            let keys = costs.iter().zip(later);
            keys.map(|(cost, later)| (later, cost.total())).collect()
        }
        Policy::LongestPrefix => longest_prefix(&candidates),
    };
    let ranked = candidates.iter().zip(keys);
    let ranked: Vec<_> = ranked.map(|(of, key)| Ranked { of, key, home }).collect();
    let ranked = BinaryHeap::from(ranked).into_sorted_vec();
    let best = ranked.first()?.of;
    let most = candidates.iter().map(|c| c.matched).max()?;
    let reason = match best.matched {
        _ if most == 0 => Reason::Cold,
        matched if matched == most => Reason::Prefix,
        _ => Reason::Load,
    };
    Some(Ranking {
        pods: ranked.iter().map(|ranked| ranked.of.pod).collect(),
        reason,
        panic,
    })
}

/// What a pod is sorted by among the fit: the lower the better.
type Key = (bool, f64);

/// The rule of the RFC: the most leading chunks; of equal ones the fewest requests in flight.
fn longest_prefix(candidates: &[Candidate<'_>]) -> Vec<Key> {
    // Exact: a body has at most 2^20 chunks.
    let key = |c: &Candidate<'_>| f64::from(c.running) - f64::from(c.matched) * 4_294_967_296.0;
    candidates.iter().map(|c| (false, key(c))).collect()
}

/// A candidate in its place: fit pods first, then the key, then rendezvous hashing, then the name.
/// For a heap, since the sorts of the standard library may panic, and take 8 KB of the module.
struct Ranked<'a> {
    of: &'a Candidate<'a>,
    key: Key,
    home: u64,
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, (a_later, a_cost)), (b, (b_later, b_cost))) =
            ((self.of, self.key), (other.of, other.key));
        let unfit = |c: &Candidate<'_>| c.standing == Standing::Unfit;
        let score = |c: &Candidate<'_>| rendezvous::score(self.home, c.name);
        unfit(a)
            .cmp(&unfit(b))
            .then(a_later.cmp(&b_later))
            .then(a_cost.total_cmp(&b_cost))
            .then_with(|| score(b).cmp(&score(a)))
            .then_with(|| a.name.cmp(b.name))
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked<'_> {}

/// The candidate that rendezvous hashing chooses among those that may be chosen.
pub fn home_of(candidates: &[Candidate<'_>], home: u64) -> Option<usize> {
    let able = candidates.iter().enumerate();
    let able = able.filter(|(_, c)| c.standing != Standing::Unfit);
    able.max_by_key(|(_, c)| (rendezvous::score(home, c.name), c.name))
        .map(|(index, _)| index)
}

/// Which candidates come after the others, for they are new and this prompt is not of the share
/// of cold prompts that they take yet. The same prompts on every gateway, more with every second.
fn admitted<'a>(
    candidates: &'a [Candidate<'_>],
    home: u64,
) -> impl Iterator<Item = bool> + use<'a> {
    let turn = home.rotate_left(32);
    candidates.iter().map(move |candidate| {
        candidate.cold_share < 1.0
            && candidate.matched == 0
            && rendezvous::share(turn, candidate.name) >= candidate.cold_share
    })
}
