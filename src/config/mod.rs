//! Plugin configuration, JSON or a protobuf Struct -> a validated [`Config`].
//!
//! Owns every rule of the configuration. Invariant: a `Config` that exists is sound: ranges hold,
//! names are safe in headers and metric labels, and the keys agree with each other. What is not
//! sound is refused with one line that names the key's path, the value and what was expected.
//! Cost: once per configuration update.

mod protobuf;
mod rules;
mod scope;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use rules::{is_ip_port, is_pod_name};
pub use scope::Scope;
pub use tree::{ConfigError, Json};

use crate::table::Geometry;

/// A validated configuration of one filter instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the pool: namespace of its table, label of its metrics.
    pub pool: String,
    /// Which requests this instance is for.
    pub scope: Scope,
    /// Whether to steer, or only to learn and compare.
    pub mode: Mode,
    /// Static pods.
    pub pods: Vec<Pod>,
    /// Where else pods come from.
    pub discovery: Option<Discovery>,
    /// How Envoy is told.
    pub destination: Destination,
    /// Chunk size in bytes of the prompt stream.
    pub chunk_bytes: usize,
    /// Chunks kept per pod.
    pub capacity: Capacity,
    /// Most pods the table has room for.
    pub max_pods: u32,
    /// Most chunks per pod the table has room for.
    pub max_capacity_chunks: u32,
    /// Bytes of a body that are hashed before deciding.
    pub match_bytes: usize,
    /// Bytes of a body that are held when the model has not been seen.
    pub hold_bytes: usize,
    /// How a pod is chosen.
    pub policy: Policy,
    /// Whether the pods' own metrics are read.
    pub metrics_scrape: Option<MetricsScrape>,
    /// What answers carry.
    pub response_header: ResponseHeader,
    /// Where the HTTP API is served, if it is.
    pub api: Option<Api>,
}

/// What the filter does with its decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Steer.
    Route,
    /// Decide, learn from who served, steer nothing.
    Observe,
}

/// One vLLM pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name; with `cluster_header` also its Envoy cluster.
    pub name: String,
    /// `host:port`.
    pub address: Option<String>,
    /// Models that it serves; empty: any.
    pub models: Vec<String>,
}

impl Pod {
    /// Whether the pod may be asked for `model`.
    pub fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|served| served == model)
    }

    /// Whether the address is one that Envoy reports, not a name that it resolves.
    pub fn has_ip_address(&self) -> bool {
        self.address.as_deref().is_some_and(rules::is_ip_port)
    }
}

/// Pods read from Envoy's admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Cluster whose hosts are the pods, or `name*`: the clusters that are the pods.
    pub cluster: String,
    /// Cluster of the admin listener.
    pub admin_cluster: String,
    /// Milliseconds between two reads.
    pub poll_interval_ms: u32,
}

/// How Envoy is told which pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// What the header's value means.
    pub mode: DestinationMode,
    /// Name of the header, lower case.
    pub header: String,
}

/// What the destination header's value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationMode {
    /// Name of a cluster.
    ClusterHeader,
    /// `ip:port`, runners-up after commas.
    OverrideHost,
    /// Base64 of `ip:port`.
    StatefulSession,
}

/// Chunks kept per pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// So many.
    Chunks(u32),
    /// What the pod's own metrics say; `max_capacity_chunks` until then.
    Auto,
}

/// How a pod is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Least estimated cost of prefill.
    Balanced(Balanced),
    /// The RFC's rule.
    LongestPrefix,
}

/// Parameters of [`Policy::Balanced`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balanced {
    /// Cost of one request in flight, in tokens.
    pub running_weight_tokens: f64,
    /// Extra cost of recomputing a token, as a share.
    pub recompute_penalty: f64,
    /// More of it per second of the lightest pod's backlog.
    pub recompute_penalty_per_backlog_second: f64,
    /// Discount on the prompt's home pod, as a share.
    pub home_discount: f64,
    /// Where learning the prefill rate starts, in tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Milliseconds over which a new pod's share of cold prompts grows.
    pub slow_start_ms: u32,
}

/// Reading the pods' own metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsScrape {
    /// Milliseconds between two reads of a pod.
    pub poll_interval_ms: u32,
    /// Path of the metrics.
    pub path: String,
    /// `override_host` cluster to reach a single pod through.
    pub cluster: Option<String>,
}

/// What answers carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseHeader {
    /// Nothing.
    Off,
    /// The pod.
    Pod,
    /// The whole decision; lets tenants probe each other's prompts.
    Full,
}

/// The HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Path in front of its resources.
    pub path_prefix: String,
}

impl Config {
    /// Reads and validates a configuration: the text of a StringValue, or a Struct on the wire.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        rules::parse(text)
    }

    /// Geometry of the pool's table.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            chunk_bytes: u32::try_from(self.chunk_bytes).unwrap_or(u32::MAX),
            max_pods: u16::try_from(self.max_pods).unwrap_or(u16::MAX),
            max_capacity_chunks: self.max_capacity_chunks,
        }
    }
}
