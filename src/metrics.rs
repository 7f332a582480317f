//! Names and labels of the metrics.
//!
//! Owns the list of metrics and how a label travels inside Envoy's flat names. Invariant: every
//! label comes from a fixed set or is the name of a pod, of which the host counts so many apart
//! and no more, for series never expire in Envoy.
//!
//! A label is a part `key.=.value.;.` in front of the name. With these rules in the bootstrap,
//! `/stats/prometheus` shows them as labels:
//!
//! ```yaml
//! stats_config:
//!   stats_tags:
//!   - { tag_name: pool, regex: '(pool\.=\.(.*?)\.;\.)' }
//!   - { tag_name: pod, regex: '(pod\.=\.(.*?)\.;\.)' }
//!   - { tag_name: reason, regex: '(reason\.=\.(.*?)\.;\.)' }
//!   - { tag_name: detail, regex: '(detail\.=\.(.*?)\.;\.)' }
//!   - { tag_name: outcome, regex: '(outcome\.=\.(.*?)\.;\.)' }
//!   - { tag_name: baseline, regex: '(baseline\.=\.(.*?)\.;\.)' }
//! ```

use crate::pods::Member;
use crate::policy::Reason;

/// What a metric's value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Is set, once a second.
    Gauge,
    /// Whole numbers, counted by size.
    Histogram,
}

/// The label of what [`Metric::SavedPrefillTokens`] compares with.
pub const BASELINE: (&str, &str) = ("baseline", "random");

/// All metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Requests decided, by pod (where there is one) and reason.
    Decisions,
    /// Whole chunks of the prompts decided.
    PromptChunks,
    /// Leading chunks of them that the chosen pod held.
    MatchedChunks,
    /// Share of its prompt that the chosen pod held, in percent, per request.
    MatchedPercent,
    /// From the last byte that a decision needed to the decision, in microseconds.
    DecisionMicroseconds,
    /// Chunks that made room on a pod.
    EvictedChunks,
    /// Tokens of the prompts answered, as the pods counted them.
    PromptTokens,
    /// Of them, what should have been cached by what the table knew of the pod that served.
    PredictedCachedTokens,
    /// Of them, what was cached by the pods' own word, where they give it.
    ReportedCachedTokens,
    /// Tokens that need no prefill thanks to the choice of the pod, by what it is compared with.
    SavedPrefillTokens,
    /// Bodies whose prompt could not be read, by detail.
    UnreadablePrompts,
    /// Credits taken back because the pod did no work.
    UndoneNotifies,
    /// Credits moved to the pod that served after a retry.
    MovedCredits,
    /// In observe mode: whether the decision named who served, by outcome.
    Observed,
    /// Leading chunks that the pod that served held, of the same prompts: beside `MatchedChunks`,
    /// what steering would have saved.
    ObservedMatchedChunks,
    /// Writes of shared data repeated because another worker was first.
    CasRetries,
    /// Notifies given up after that happened too often.
    DroppedNotifies,
    /// Chunks for which no page had room.
    DroppedChunks,
    /// Shared values that were not the table's and counted as empty.
    JunkPages,
    /// Chunks that a pod's table holds.
    StoredChunks,
    /// Chunks that a pod's table may hold.
    CapacityChunks,
    /// Requests in flight on a pod, over all workers.
    RequestsInFlight,
    /// Tokens of prefill that wait on a pod, by our own estimate.
    BacklogTokens,
    /// Tokens of prefill per second that a pod does, as learned.
    PrefillRate,
    /// Whether a pod may be chosen.
    PodFit,
    /// Whether Envoy takes a pod for healthy.
    PodHealthy,
    /// Pods that discovery found.
    DiscoveredPods,
    /// Pods that it found beyond `max_pods`.
    LeftOutPods,
    /// Seconds since Envoy last said which pods there are.
    DiscoveryAge,
    /// Times that it did not say.
    FailedPolls,
    /// VMs of this filter that are alive; Envoy has one for each worker, and one more.
    LiveVms,
    /// Most bytes of shared data that the pool's table can take.
    TableMaxBytes,
    /// 1 when this Envoy cannot hold headers, so that requests go by load only.
    EnvoyTooOld,
}

impl Metric {
    /// The metric's bare name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decisions => "prefix_router_decisions_total",
            Self::PromptChunks => "prefix_router_prompt_chunks_total",
            Self::MatchedChunks => "prefix_router_matched_chunks_total",
            Self::MatchedPercent => "prefix_router_matched_percent",
            Self::DecisionMicroseconds => "prefix_router_decision_microseconds",
            Self::EvictedChunks => "prefix_router_evicted_chunks_total",
            Self::PromptTokens => "prefix_router_prompt_tokens_total",
            Self::PredictedCachedTokens => "prefix_router_predicted_cached_tokens_total",
            Self::ReportedCachedTokens => "prefix_router_reported_cached_tokens_total",
            Self::SavedPrefillTokens => "prefix_router_saved_prefill_tokens_total",
            Self::UnreadablePrompts => "prefix_router_unreadable_prompts_total",
            Self::UndoneNotifies => "prefix_router_undone_notifies_total",
            Self::MovedCredits => "prefix_router_moved_credits_total",
            Self::Observed => "prefix_router_observed_total",
            Self::ObservedMatchedChunks => "prefix_router_observed_matched_chunks_total",
            Self::CasRetries => "prefix_router_cas_retries_total",
            Self::DroppedNotifies => "prefix_router_dropped_notifies_total",
            Self::DroppedChunks => "prefix_router_dropped_chunks_total",
            Self::JunkPages => "prefix_router_junk_pages_total",
            Self::StoredChunks => "prefix_router_stored_chunks",
            Self::CapacityChunks => "prefix_router_capacity_chunks",
            Self::RequestsInFlight => "prefix_router_requests_in_flight",
            Self::BacklogTokens => "prefix_router_backlog_tokens",
            Self::PrefillRate => "prefix_router_prefill_tokens_per_second",
            Self::PodFit => "prefix_router_pod_fit",
            Self::PodHealthy => "prefix_router_pod_healthy",
            Self::DiscoveredPods => "prefix_router_discovered_pods",
            Self::LeftOutPods => "prefix_router_left_out_pods",
            Self::DiscoveryAge => "prefix_router_discovery_age_seconds",
            Self::FailedPolls => "prefix_router_failed_polls_total",
            Self::LiveVms => "prefix_router_live_vms",
            Self::TableMaxBytes => "prefix_router_table_max_bytes",
            Self::EnvoyTooOld => "prefix_router_envoy_too_old",
        }
    }

    /// Whether it counts, is set, or is a histogram.
    pub const fn kind(self) -> Kind {
        match self {
            Self::StoredChunks
            | Self::CapacityChunks
            | Self::RequestsInFlight
            | Self::BacklogTokens
            | Self::PrefillRate
            | Self::PodFit
            | Self::PodHealthy
            | Self::DiscoveredPods
            | Self::LeftOutPods
            | Self::DiscoveryAge
            | Self::LiveVms
            | Self::TableMaxBytes
            | Self::EnvoyTooOld => Kind::Gauge,
            Self::MatchedPercent | Self::DecisionMicroseconds => Kind::Histogram,
            _ => Kind::Counter,
        }
    }

    /// The name that Envoy is given: labels in front.
    pub fn full_name(self, pool: &str, labels: &[(&str, &str)]) -> String {
        let mut name = String::with_capacity(96);
        for (key, value) in core::iter::once(&("pool", pool)).chain(labels) {
            name.push_str(key);
            name.push_str(".=.");
            name.push_str(value);
            name.push_str(".;.");
        }
        name.push_str(self.name());
        name
    }
}

/// Where the core counts what happens; the host's registers, or nothing.
pub trait Meter {
    /// A request was decided, for a pod of the pool unless there is none.
    fn decision(&self, reason: Reason, pod: Option<&Member>);
    /// `n` more of a metric that has no label but the pool.
    fn count(&self, metric: Metric, n: u64);
    /// `n` more of a metric with one label from a fixed set.
    fn count_labelled(&self, metric: Metric, key: &'static str, value: &'static str, n: u64);
    /// `n` more of a metric of a pod.
    fn count_on(&self, metric: Metric, pod: &Member, n: u64);
    /// A value of a histogram.
    fn record(&self, metric: Metric, value: u64);
    /// Decisions for a reason so far, on all workers.
    fn decisions(&self, reason: Reason, pod: Option<&Member>) -> u64;
    /// Tokens that needed no prefill thanks to the choice, compared with a random one.
    fn saved(&self) -> u64;
    /// A counter without a label but the pool or a pod so far, on all workers.
    fn total(&self, metric: Metric, pod: Option<&Member>) -> u64;
}

/// A meter that counts nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Meter for Silent {
    fn decision(&self, _: Reason, _: Option<&Member>) {}
    fn count(&self, _: Metric, _: u64) {}
    fn count_labelled(&self, _: Metric, _: &'static str, _: &'static str, _: u64) {}
    fn count_on(&self, _: Metric, _: &Member, _: u64) {}
    fn record(&self, _: Metric, _: u64) {}
    fn decisions(&self, _: Reason, _: Option<&Member>) -> u64 {
        0
    }
    fn saved(&self) -> u64 {
        0
    }
    fn total(&self, _: Metric, _: Option<&Member>) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_in_front_of_the_name() {
        let name = Metric::Decisions.full_name("p", &[("pod", "a"), ("reason", "cold")]);
        assert_eq!(
            name,
            "pool.=.p.;.pod.=.a.;.reason.=.cold.;.prefix_router_decisions_total"
        );
    }
}
