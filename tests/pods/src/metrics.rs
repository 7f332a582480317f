//! Counters of one pod and their Prometheus text, under vLLM's names.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::config::PodConfig;
use crate::queue::Engine;

/// Upper bounds of the time-to-first-token histogram in seconds.
const TTFT_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5.0, 20.0,
];

/// Counters that start at zero with each process.
pub struct Counters {
    pub requests: AtomicU64,
    pub connections: AtomicU64,
    pub running: AtomicU64,
    pub waiting: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub generation_tokens: AtomicU64,
    pub succeeded: AtomicU64,
    ttft: Mutex<Histogram>,
    started: Mutex<f64>,
}

#[derive(Default)]
struct Histogram {
    counts: [u64; TTFT_BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            requests: zero(),
            connections: zero(),
            running: zero(),
            waiting: zero(),
            prompt_tokens: zero(),
            cached_tokens: zero(),
            generation_tokens: zero(),
            succeeded: zero(),
            ttft: Mutex::default(),
            started: Mutex::new(now()),
        }
    }
}

fn now() -> f64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs_f64()
}

impl Counters {
    /// Zero, but for the gauges of requests that are still under way; a later start time.
    pub fn reset(&self) {
        for counter in [
            &self.requests,
            &self.prompt_tokens,
            &self.cached_tokens,
            &self.generation_tokens,
            &self.succeeded,
        ] {
            counter.store(0, Relaxed);
        }
        *self.ttft.lock().unwrap_or_else(PoisonError::into_inner) = Histogram::default();
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        *started = now().max(*started + 0.01);
    }

    /// Start of the simulated process in Unix seconds.
    pub fn started(&self) -> f64 {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn prefilled(&self, prompt_tokens: usize, cached_tokens: usize) {
        self.prompt_tokens.fetch_add(prompt_tokens as u64, Relaxed);
        self.cached_tokens.fetch_add(cached_tokens as u64, Relaxed);
    }

    pub fn first_token(&self, after: Duration) {
        let mut ttft = self.ttft.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = after.as_secs_f64();
        if let Some(bucket) = TTFT_BUCKETS.iter().position(|le| seconds <= *le) {
            ttft.counts[bucket] += 1;
        }
        ttft.count += 1;
        ttft.sum += seconds;
    }

    pub fn finished(&self, tokens: usize) {
        self.generation_tokens.fetch_add(tokens as u64, Relaxed);
        self.succeeded.fetch_add(1, Relaxed);
    }
}

/// One more of something, until dropped.
pub struct Gauge {
    engine: Arc<Engine>,
    of: fn(&Counters) -> &AtomicU64,
}

impl Gauge {
    pub fn raise(engine: &Arc<Engine>, of: fn(&Counters) -> &AtomicU64) -> Self {
        of(&engine.counters).fetch_add(1, Relaxed);
        Self {
            engine: engine.clone(),
            of,
        }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        (self.of)(&self.engine.counters).fetch_sub(1, Relaxed);
    }
}

/// A snapshot of one pod.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// POST requests since the last restart, `/sim/…` apart.
    pub requests: u64,
    /// Connections accepted since the pod was made.
    pub connections: u64,
    /// Requests in prefill or decode.
    pub running: u64,
    /// Requests that wait for a slot, for the prefill or for blocks.
    pub waiting: u64,
    /// Prompt tokens since the last restart (vLLM's `prefix_cache_queries`).
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache (vLLM's `prefix_cache_hits`).
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Prompts answered to the end.
    pub succeeded: u64,
    /// Blocks pinned by requests.
    pub blocks_pinned: usize,
    /// Blocks whose content can be found.
    pub blocks_named: usize,
    /// All blocks.
    pub blocks: usize,
    /// Start of the simulated process in Unix seconds.
    pub process_start_time: f64,
}

/// Reads all counters.
pub fn stats(engine: &Engine) -> Stats {
    let c = &engine.counters;
    let (blocks_pinned, blocks_named, blocks) = engine.blocks();
    Stats {
        requests: c.requests.load(Relaxed),
        connections: c.connections.load(Relaxed),
        running: c.running.load(Relaxed),
        waiting: c.waiting.load(Relaxed),
        prompt_tokens: c.prompt_tokens.load(Relaxed),
        cached_tokens: c.cached_tokens.load(Relaxed),
        generation_tokens: c.generation_tokens.load(Relaxed),
        succeeded: c.succeeded.load(Relaxed),
        blocks_pinned,
        blocks_named,
        blocks,
        process_start_time: c.started(),
    }
}

/// The body of `/metrics`.
pub fn prometheus(engine: &Engine, config: &PodConfig) -> String {
    let s = stats(engine);
    let model = config.models.first().map_or("sim", String::as_str);
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    let mut out = String::with_capacity(4096);
    let mut put = |name: &str, kind: &str, labels: &str, value: f64| {
        let _ = writeln!(
            out,
            "# HELP {name} {name} of a simulated pod.\n# TYPE {name} {kind}"
        );
        let _ = writeln!(out, "{name}{{{labels}}} {value:?}");
    };
    let usage = s.blocks_pinned as f64 / s.blocks.max(1) as f64;
    put(
        "vllm:num_requests_running",
        "gauge",
        &labels,
        s.running as f64,
    );
    put(
        "vllm:num_requests_waiting",
        "gauge",
        &labels,
        s.waiting as f64,
    );
    put("vllm:kv_cache_usage_perc", "gauge", &labels, usage);
    put(
        "vllm:prefix_cache_queries_total",
        "counter",
        &labels,
        s.prompt_tokens as f64,
    );
    put(
        "vllm:prefix_cache_hits_total",
        "counter",
        &labels,
        s.cached_tokens as f64,
    );
    put(
        "vllm:prompt_tokens_total",
        "counter",
        &labels,
        s.prompt_tokens as f64,
    );
    put(
        "vllm:generation_tokens_total",
        "counter",
        &labels,
        s.generation_tokens as f64,
    );
    put("vllm:num_preemptions_total", "counter", &labels, 0.0);
    let stopped = format!("{labels},finished_reason=\"stop\"");
    put(
        "vllm:request_success_total",
        "counter",
        &stopped,
        s.succeeded as f64,
    );
    let cache = format!(
        "block_size=\"{}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
         gpu_memory_utilization=\"0.9\",num_gpu_blocks=\"{}\"",
        config.block_size, s.blocks
    );
    put("vllm:cache_config_info", "gauge", &cache, 1.0);
    let name = "vllm:time_to_first_token_seconds";
    let _ = writeln!(
        out,
        "# HELP {name} Histogram of time to first token in seconds.\n# TYPE {name} histogram"
    );
    let ttft = engine
        .counters
        .ttft
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut below = 0;
    for (le, count) in TTFT_BUCKETS.iter().zip(ttft.counts) {
        below += count;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{le:?}\"}} {below}.0");
    }
    let _ = writeln!(
        out,
        "{name}_bucket{{{labels},le=\"+Inf\"}} {}.0",
        ttft.count
    );
    let _ = writeln!(
        out,
        "{name}_count{{{labels}}} {}.0\n{name}_sum{{{labels}}} {:?}",
        ttft.count, ttft.sum
    );
    let name = "process_start_time_seconds";
    let _ = writeln!(
        out,
        "# HELP {name} Start time of the process since unix epoch in seconds."
    );
    let _ = writeln!(
        out,
        "# TYPE {name} gauge\n{name} {:?}",
        s.process_start_time
    );
    out
}

/// The load report that vLLM adds to an answer when the request asks for one.
pub fn orca(engine: &Engine, format: &str) -> Option<String> {
    let s = stats(engine);
    let usage = s.blocks_pinned as f64 / s.blocks.max(1) as f64;
    let waiting = s.waiting as f64;
    match format.to_ascii_lowercase().as_str() {
        "text" => Some(format!(
            "TEXT named_metrics.kv_cache_usage_perc={usage:?}, named_metrics.num_requests_waiting={waiting:?}"
        )),
        "json" => Some(format!(
            "JSON {{\"named_metrics\": {{\"kv_cache_usage_perc\": {usage:?}, \"num_requests_waiting\": {waiting:?}}}}}"
        )),
        _ => None,
    }
}
