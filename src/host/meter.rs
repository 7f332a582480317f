//! The metrics in Envoy.
//!
//! Owns the ids. Invariant: a metric is defined once per instance, when it first has a value.
//! Cost: one host call per count; gauges and the table's counters once a second.

use super::abi::{self, MetricType};
use crate::config::{Capacity, Config};
use crate::metrics::{Kind, Meter, Metric};
use crate::policy::Reason;
use crate::router::{Env, Router};
use core::cell::{Cell, RefCell};
use hashbrown::HashMap;

/// Series of a metric: the metric, a pod, a word.
type Series = (Metric, Option<usize>, &'static str);

/// The metrics of one instance.
pub struct HostMeter {
    pool: String,
    pods: Vec<String>,
    ids: RefCell<HashMap<Series, u32>>,
    table_seen: Cell<[u64; 4]>,
}

impl HostMeter {
    /// The metrics of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            pool: config.pool.clone(),
            pods: config.pods.iter().map(|pod| pod.name.clone()).collect(),
            ids: RefCell::new(HashMap::new()),
            table_seen: Cell::new([0; 4]),
        }
    }

    /// Sets the gauges and counts what the table counted since.
    pub fn gauges(&self, router: &Router, env: &Env<'_>) {
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
        let config = router.config();
        let capacity = match config.capacity {
            Capacity::Chunks(chunks) => chunks,
            Capacity::Auto => config.max_capacity_chunks,
        };
        for (pod, running) in router.running(env).into_iter().enumerate() {
            self.set(Metric::RequestsInFlight, Some(pod), running.into());
            self.set(Metric::CapacityChunks, Some(pod), capacity.into());
            self.set(
                Metric::StoredChunks,
                Some(pod),
                router.stored_chunks(env, pod).into(),
            );
        }
        self.set(
            Metric::TableMaxBytes,
            None,
            router.table().footprint().bytes,
        );
        self.set(Metric::EnvoyTooOld, None, u64::from(!router.may_pause()));
    }

    /// Sets the gauges of every pod to 0.
    pub fn zero(&self, router: &Router) {
        let pods = router.config().pods.len();
        for pod in 0..pods {
            for metric in [
                Metric::RequestsInFlight,
                Metric::CapacityChunks,
                Metric::StoredChunks,
            ] {
                self.set(metric, Some(pod), 0);
            }
        }
    }

    fn set(&self, metric: Metric, pod: Option<usize>, value: u64) {
        if let Some(id) = self.id((metric, pod, ""), "") {
            abi::record_metric(id, value);
        }
    }

    fn id(&self, series: Series, key: &str) -> Option<u32> {
        let mut ids = self.ids.try_borrow_mut().ok()?;
        if let Some(id) = ids.get(&series) {
            return Some(*id);
        }
        let (metric, pod, word) = series;
        let mut labels = Vec::with_capacity(2);
        if let Some(name) = pod.and_then(|pod| self.pods.get(pod)) {
            labels.push(("pod", name.as_str()));
        }
        if !word.is_empty() {
            labels.push((key, word));
        }
        let kind = match metric.kind() {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let id = abi::define_metric(kind, &metric.full_name(&self.pool, &labels))?;
        ids.insert(series, id);
        Some(id)
    }

    fn add(&self, series: Series, key: &str, n: u64) {
        if n == 0 {
            return;
        }
        if let Some(id) = self.id(series, key) {
            abi::increment_metric(id, i64::try_from(n).unwrap_or(i64::MAX));
        }
    }
}

impl Meter for HostMeter {
    fn decision(&self, reason: Reason, pod: Option<usize>) {
        self.add((Metric::Decisions, pod, reason.as_str()), "reason", 1);
    }

    fn count(&self, metric: Metric, n: u64) {
        self.add((metric, None, ""), "", n);
    }

    fn count_labelled(&self, metric: Metric, key: &'static str, value: &'static str) {
        self.add((metric, None, value), key, 1);
    }
}
