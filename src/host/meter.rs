//! The metrics in Envoy.
//!
//! Owns the ids. Invariant: a metric is defined once per instance, when it first has a value.
//! Cost: one host call per count; gauges and the table's counters once a second.

use super::abi::{self, MetricType};
use crate::config::Config;
use crate::metrics::{Kind, Meter, Metric, BASELINE};
use crate::pods::{Member, Members};
use crate::policy::Reason;
use crate::router::{Env, Router};
use crate::table::PodKey;
use core::cell::{Cell, RefCell};
use hashbrown::HashMap;
use std::rc::Rc;

/// Label of the pods that have none of their own.
const OTHER: &str = "other";

/// Pods that have series of their own; what comes and goes after that shares the label `other`.
const MAX_PODS: usize = 1024;
/// Gauges of a pod.
const OF_POD: [Metric; 6] = [
    Metric::RequestsInFlight,
    Metric::BacklogTokens,
    Metric::PodFit,
    Metric::PodHealthy,
    Metric::StoredChunks,
    Metric::CapacityChunks,
];

/// Counters that are there as 0 before their first count, so that the first one is an increase.
const FROM_ZERO: [Metric; 9] = [
    Metric::CasRetries,
    Metric::DroppedNotifies,
    Metric::DroppedChunks,
    Metric::JunkPages,
    Metric::PromptChunks,
    Metric::MatchedChunks,
    Metric::PromptTokens,
    Metric::PredictedCachedTokens,
    Metric::ReportedCachedTokens,
];

/// Series of a metric: the metric, a pod, a word.
type Series = (Metric, Option<PodKey>, &'static str);

/// The metrics of one instance.
pub struct HostMeter {
    pool: String,
    ids: RefCell<HashMap<Series, u32>>,
    pods: RefCell<Vec<PodKey>>,
    shown: RefCell<Members>,
    table_seen: Cell<[u64; 4]>,
    /// First time that the gauges were set.
    since_ms: Cell<u64>,
}

impl HostMeter {
    /// The metrics of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            pool: config.pool.clone(),
            ids: RefCell::new(HashMap::new()),
            pods: RefCell::new(Vec::new()),
            shown: RefCell::new(Rc::new([])),
            table_seen: Cell::new([0; 4]),
            since_ms: Cell::new(0),
        }
    }

    /// Sets the gauges and counts what the table counted since.
    pub fn gauges(&self, router: &Router, env: &Env<'_>) {
        for metric in FROM_ZERO {
            self.id(metric, None, "", "");
        }
        let stats = router.table().stats();
        let now = [
            stats.cas_retries,
            stats.dropped_notifies,
            stats.dropped_chunks,
            stats.junk_pages,
        ];
        let metrics = [
            Metric::CasRetries,
            Metric::DroppedNotifies,
            Metric::DroppedChunks,
            Metric::JunkPages,
        ];
        let seen = self.table_seen.replace(now);
        for ((metric, now), seen) in metrics.into_iter().zip(now).zip(seen) {
            self.count(metric, now.saturating_sub(seen));
        }
        let members = router.members(env);
        let (loads, rate) = router.loads(env, &members);
        let fit = router.fit(env, &members);
        for ((member, load), fit) in members.iter().zip(loads).zip(fit) {
            let values = [
                load.running.into(),
                load.backlog as u64,
                fit.into(),
                member.healthy.into(),
                router.stored_chunks(env, member).into(),
                member.capacity.into(),
            ];
            for (metric, value) in OF_POD.into_iter().zip(values) {
                self.set(metric, Some(member), value);
            }
        }
        let before = self.shown.replace(members.clone());
        let left = before
            .iter()
            .filter(|old| members.iter().all(|new| new.key != old.key));
        left.for_each(|member| self.zero_pod(member));
        if router.config().discovery.is_some() {
            let (found, now_ms) = (router.discovery(), env.now_ms());
            if self.since_ms.get() == 0 {
                self.since_ms.set(now_ms);
            }
            // Before the first success it is as old as this instance.
            let last = match found.polled_ms {
                0 => self.since_ms.get(),
                polled_ms => polled_ms,
            };
            let age = now_ms.saturating_sub(last) / 1000;
            self.set(Metric::DiscoveryAge, None, age);
            self.set(Metric::DiscoveredPods, None, found.pods as u64);
            self.set(Metric::LeftOutPods, None, found.left_out.into());
        }
        let bytes = router.table().footprint().bytes;
        self.set(Metric::LiveVms, None, router.live_vms(env));
        self.set(Metric::TableMaxBytes, None, bytes);
        self.set(Metric::PrefillRate, None, rate as u64);
        self.set(Metric::EnvoyTooOld, None, u64::from(!router.may_pause()));
    }

    /// Sets the gauges of every pod to 0: nobody is left to set them.
    pub fn zero(&self) {
        let shown = self.shown.replace(Rc::new([]));
        shown.iter().for_each(|member| self.zero_pod(member));
        self.set(Metric::LiveVms, None, 0);
    }

    fn zero_pod(&self, member: &Member) {
        for metric in OF_POD {
            self.set(metric, Some(member), 0);
        }
    }

    fn set(&self, metric: Metric, pod: Option<&Member>, value: u64) {
        if let Some(id) = self.id(metric, pod, "", "") {
            abi::record_metric(id, value);
        }
    }

    fn id(
        &self,
        metric: Metric,
        pod: Option<&Member>,
        key: &str,
        word: &'static str,
    ) -> Option<u32> {
        let mut ids = self.ids.try_borrow_mut().ok()?;
        let mut pods = self.pods.try_borrow_mut().ok()?;
        let pod = pod.map(|member| match pods.contains(&member.key) {
            false if pods.len() >= MAX_PODS => (PodKey::of(OTHER), OTHER),
            _ => (member.key, member.pod.name.as_str()),
        });
        let series = (metric, pod.map(|(key, _)| key), word);
        if let Some(id) = ids.get(&series) {
            return Some(*id);
        }
        let mut labels = Vec::with_capacity(2);
        if let Some((key, name)) = pod {
            if !pods.contains(&key) {
                pods.push(key);
            }
            labels.push(("pod", name));
        }
        if !word.is_empty() {
            labels.push((key, word));
        }
        let kind = match metric.kind() {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let id = abi::define_metric(kind, &metric.full_name(&self.pool, &labels))?;
        ids.insert(series, id);
        Some(id)
    }

    fn add(&self, metric: Metric, pod: Option<&Member>, key: &str, word: &'static str, n: u64) {
        if n == 0 {
            return;
        }
        if let Some(id) = self.id(metric, pod, key, word) {
            abi::increment_metric(id, i64::try_from(n).unwrap_or(i64::MAX));
        }
    }
}

impl Meter for HostMeter {
    fn decision(&self, reason: Reason, pod: Option<&Member>) {
        self.add(Metric::Decisions, pod, "reason", reason.as_str(), 1);
    }

    fn count(&self, metric: Metric, n: u64) {
        self.add(metric, None, "", "", n);
    }

    fn count_labelled(&self, metric: Metric, key: &'static str, value: &'static str, n: u64) {
        self.add(metric, None, key, value, n);
    }

    fn count_on(&self, metric: Metric, pod: &Member, n: u64) {
        self.add(metric, Some(pod), "", "", n);
    }

    fn record(&self, metric: Metric, value: u64) {
        self.set(metric, None, value);
    }

    fn decisions(&self, reason: Reason, pod: Option<&Member>) -> u64 {
        let id = self.id(Metric::Decisions, pod, "reason", reason.as_str());
        id.map_or(0, abi::metric)
    }

    fn saved(&self) -> u64 {
        let (key, word) = BASELINE;
        let id = self.id(Metric::SavedPrefillTokens, None, key, word);
        id.map_or(0, abi::metric)
    }

    fn total(&self, metric: Metric, pod: Option<&Member>) -> u64 {
        self.id(metric, pod, "", "").map_or(0, abi::metric)
    }
}
