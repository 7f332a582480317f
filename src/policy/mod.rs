//! Candidates -> a decision.
//!
//! Owns the choice of the pod. Pure: what is known of each candidate goes in, a ranking and a
//! reason come out. Invariant: the choice does not depend on the order of the candidates, and a
//! decision always names one of them.
//! Cost: one pass, and a hash per candidate.

mod rendezvous;

use core::cmp::Reverse;

/// What the policy knows of one pod.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// Index of the pod in the pool.
    pub pod: usize,
    /// Its name: what every gateway hashes alike.
    pub name: &'a str,
    /// Leading chunks of the prompt that it holds, over all prompts of the body.
    pub matched: u32,
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
    /// There was no prompt to look up; chosen by load.
    NoPrompt,
    /// There is no pod to choose; Envoy's fallback route serves.
    NoPods,
}

impl Reason {
    /// All reasons, for metrics.
    pub const ALL: [Reason; 5] = [
        Self::Prefix,
        Self::Load,
        Self::Cold,
        Self::NoPrompt,
        Self::NoPods,
    ];

    /// The token in the decision header, and the metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Load => "load",
            Self::Cold => "cold",
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
}

/// The longest match wins; among equal ones the fewest requests in flight; then rendezvous
/// hashing of `home`, so that gateways that share nothing choose alike. `None` without candidates.
pub fn longest_prefix(candidates: &[Candidate<'_>], home: u64) -> Option<Ranking> {
    let mut ranked: Vec<_> = candidates
        .iter()
        .map(|c| {
            let key = (
                Reverse(c.matched),
                c.running,
                Reverse(rendezvous::score(home, c.name)),
            );
            (key, c.name, c.pod)
        })
        .collect();
    ranked.sort_unstable();
    let ((Reverse(matched), ..), ..) = *ranked.first()?;
    Some(Ranking {
        pods: ranked.into_iter().map(|(_, _, pod)| pod).collect(),
        reason: if matched > 0 {
            Reason::Prefix
        } else {
            Reason::Cold
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(pod: usize, name: &str, matched: u32, running: u32) -> Candidate<'_> {
        Candidate {
            pod,
            name,
            matched,
            running,
        }
    }

    #[test]
    fn match_goes_before_load_and_load_before_the_hash() {
        let pods = [
            candidate(0, "a", 3, 0),
            candidate(1, "b", 5, 9),
            candidate(2, "c", 5, 4),
        ];
        let ranking = longest_prefix(&pods, 1).unwrap();
        assert_eq!(
            (ranking.pods, ranking.reason),
            (vec![2, 1, 0], Reason::Prefix)
        );
        let cold = [candidate(0, "a", 0, 2), candidate(1, "b", 0, 1)];
        let ranking = longest_prefix(&cold, 1).unwrap();
        assert_eq!((ranking.pods, ranking.reason), (vec![1, 0], Reason::Cold));
        assert_eq!(longest_prefix(&[], 1), None);
    }

    #[test]
    fn cold_prompts_spread_over_idle_pods() {
        let names = ["a", "b", "c", "d"];
        let pods: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(i, n)| candidate(i, n, 0, 0))
            .collect();
        let mut won = [0u32; 4];
        for home in 0..4000 {
            won[longest_prefix(&pods, home).unwrap().pods[0]] += 1;
        }
        assert!(won.iter().all(|n| (850..1150).contains(n)), "{won:?}");
    }

    #[test]
    fn a_pod_that_leaves_moves_only_its_own_prompts() {
        let four = ["a", "b", "c", "d"];
        let pods: Vec<_> = four
            .iter()
            .enumerate()
            .map(|(i, n)| candidate(i, n, 0, 0))
            .collect();
        for home in 0..500 {
            let before = longest_prefix(&pods, home).unwrap().pods[0];
            let after = longest_prefix(&pods[..3], home).unwrap().pods[0];
            assert!(before == 3 || before == after);
        }
    }

    proptest! {
        #[test]
        fn the_order_of_candidates_does_not_matter(
            facts in prop::collection::vec((0u32..3, 0u32..3), 1..8),
            home: u64,
            rotate in 0usize..8,
        ) {
            let names: Vec<String> = (0..facts.len()).map(|i| format!("pod-{i}")).collect();
            let mut pods: Vec<_> = facts.iter().enumerate()
                .map(|(i, (matched, running))| candidate(i, &names[i], *matched, *running)).collect();
            let first = longest_prefix(&pods, home);
            let turns = rotate % pods.len();
            pods.rotate_left(turns);
            pods.reverse();
            prop_assert_eq!(first, longest_prefix(&pods, home));
        }
    }
}
