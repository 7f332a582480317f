//! What one pod is: name, models, size of its cache, speed.

use std::net::{Ipv4Addr, SocketAddr};

/// Configuration of one simulated pod; `PodConfig::default()` answers at once from a large cache.
#[derive(Clone, Debug)]
pub struct PodConfig {
    /// Name, also sent as the response header `x-sim-pod`.
    pub name: String,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Models that are served; empty accepts any name.
    pub models: Vec<String>,
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks of the cache.
    pub num_gpu_blocks: usize,
    /// Speed of prefill in tokens/s of what is not cached; 0 is instant.
    pub prefill_tokens_per_s: f64,
    /// Time of one generated token in milliseconds; 0 is instant.
    pub decode_ms_per_token: f64,
    /// Requests in prefill or decode at once; the others wait.
    pub max_num_seqs: usize,
    /// Generated tokens of an answer, unless the request asks for fewer (or sets `ignore_eos`).
    pub reply_tokens: usize,
    /// Longest prompt in tokens; longer ones are 400. Never more than the cache holds.
    pub max_model_len: usize,
    /// Answer inference requests with one fixed JSON after draining the body: no parsing, no log.
    pub fast: bool,
    /// Requests kept in the log of [`crate::SimPod::received`]; 0 keeps none.
    pub log_requests: usize,
}

impl Default for PodConfig {
    fn default() -> Self {
        Self {
            name: "vllm-0".into(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            models: Vec::new(),
            block_size: 16,
            num_gpu_blocks: 65_536,
            prefill_tokens_per_s: 0.0,
            decode_ms_per_token: 0.0,
            max_num_seqs: 256,
            reply_tokens: 16,
            max_model_len: 1 << 20,
            fast: false,
            log_requests: 4096,
        }
    }
}

impl PodConfig {
    /// A default pod of this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}
