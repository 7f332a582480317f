//! The rules of the configuration, a line each.

use super::protobuf::decode_struct;
use super::tree::{ConfigError, Node, Object};
use super::{
    Api, Balanced, Capacity, Config, Destination, DestinationMode, Discovery, MetricsScrape, Mode,
    Pod, Policy, ResponseHeader, Scope,
};
use core::net::SocketAddr;

const KEYS: [&str; 16] = [
    "pool",
    "match",
    "mode",
    "pods",
    "discovery",
    "destination",
    "chunk_bytes",
    "capacity_chunks",
    "max_pods",
    "max_capacity_chunks",
    "match_bytes",
    "hold_bytes",
    "policy",
    "metrics_scrape",
    "response_header",
    "api",
];
/// Most static pods, and most slots of a table.
const MAX_PODS: u32 = 256;
const MAX_CAPACITY: u32 = 1 << 20;
/// Most chunks of all pods together: 24 bytes each make this 1.5 GiB of shared data.
const MAX_TABLE_CHUNKS: u64 = 1 << 26;
/// Largest part of a body that is read: its JSON takes up to 8 times as much, twice that while it
/// grows, and a VM has 1 GiB.
const MAX_BODY: u32 = 16 << 20;
/// No list of names is longer.
const MAX_LIST: usize = 256;
const DAY_MS: u32 = 86_400_000;

#[cold]
pub(super) fn parse(text: &[u8]) -> Result<Config, ConfigError> {
    let json = match serde_json::from_slice(text) {
        Ok(json) => json,
        // No Struct on the wire is JSON, nor the other way round.
        Err(error) => decode_struct(text).ok_or_else(|| ConfigError::whole(error))?,
    };
    let root = Node::root(&json);
    let keys = root.object(&KEYS)?;
    let config = Config {
        pool: keys.or("pool", "default".to_owned(), |n| {
            n.text("1 to 64 letters, digits, '-', '_' or '.'", is_pool_name)
        })?,
        scope: keys.or("match", Scope::default(), |n| scope(&n))?,
        mode: keys.or("mode", Mode::Route, |n| {
            n.word(&[("route", Mode::Route), ("observe", Mode::Observe)])
        })?,
        pods: keys.or("pods", Vec::new(), |n| pods(&n))?,
        discovery: keys.get("discovery").map(|n| discovery(&n)).transpose()?,
        destination: destination(keys.get("destination").as_ref())?,
        chunk_bytes: keys.or("chunk_bytes", 256, |n| n.whole(16, 65_536).map(size))?,
        capacity: keys.or("capacity_chunks", Capacity::Chunks(8192), |n| capacity(&n))?,
        max_pods: keys.or("max_pods", 64, |n| n.whole(1, MAX_PODS))?,
        max_capacity_chunks: keys
            .or("max_capacity_chunks", 32_768, |n| n.whole(16, MAX_CAPACITY))?,
        match_bytes: keys.or("match_bytes", 524_288, |n| n.whole(1, MAX_BODY).map(size))?,
        hold_bytes: keys.or("hold_bytes", 917_504, |n| n.whole(1, MAX_BODY).map(size))?,
        policy: keys.or("policy", Policy::Balanced(Balanced::default()), |n| {
            policy(&n)
        })?,
        metrics_scrape: keys
            .get("metrics_scrape")
            .map(|n| metrics_scrape(&n))
            .transpose()?,
        response_header: keys.or("response_header", ResponseHeader::Off, |n| {
            n.word(&[
                ("off", ResponseHeader::Off),
                ("pod", ResponseHeader::Pod),
                ("full", ResponseHeader::Full),
            ])
        })?,
        api: keys.get("api").map(|n| api(&n)).transpose()?,
    };
    agreement(&config, &keys)?;
    Ok(config)
}

/// The rules between keys.
#[cold]
fn agreement(config: &Config, keys: &Object<'_>) -> Result<(), ConfigError> {
    let at = |key: &str| keys.get(key).unwrap_or_else(|| keys.node.clone());
    let mode = config.destination.mode;
    if keys.get("pods").is_none() && config.discovery.is_none() {
        keys.need("pods", "a list of pods, or `discovery`")?;
    }
    if config.pods.is_empty() && config.discovery.is_none() {
        return Err(
            at("pods").refuse_because("names no pods and there is no `discovery`; expected either")
        );
    }
    if config.pods.len() > size(config.max_pods) {
        let most = config.max_pods;
        return Err(at("pods").refuse_because(format_args!("is longer than max_pods, {most}")));
    }
    if config.chunk_bytes > config.match_bytes {
        let least = config.chunk_bytes;
        return Err(at("match_bytes").refuse(format_args!("at least chunk_bytes, {least}")));
    }
    if config.match_bytes > config.hold_bytes {
        let (key, relation, other) = match keys.get("hold_bytes") {
            Some(_) => ("hold_bytes", "at least match_bytes", config.match_bytes),
            None => ("match_bytes", "at most hold_bytes", config.hold_bytes),
        };
        return Err(at(key).refuse(format_args!("{relation}, {other}")));
    }
    match config.capacity {
        Capacity::Chunks(chunks) if chunks > config.max_capacity_chunks => {
            let (key, relation, other) = match keys.get("capacity_chunks") {
                Some(_) => (
                    "capacity_chunks",
                    "at most max_capacity_chunks",
                    config.max_capacity_chunks,
                ),
                None => ("max_capacity_chunks", "at least capacity_chunks", chunks),
            };
            return Err(at(key).refuse(format_args!("{relation}, {other}")));
        }
        Capacity::Auto if config.metrics_scrape.is_none() => {
            return Err(at("capacity_chunks")
                .refuse_because("needs `metrics_scrape`, which reads the pods' cache size"));
        }
        _ => {}
    }
    let chunks = u64::from(config.max_pods).saturating_mul(config.max_capacity_chunks.into());
    if chunks > MAX_TABLE_CHUNKS {
        return Err(at("max_capacity_chunks").refuse_because(format_args!(
            "times max_pods ({}) is more than {MAX_TABLE_CHUNKS} chunks",
            config.max_pods
        )));
    }
    if let Some(discovery) = &config.discovery {
        let clusters = discovery.cluster.ends_with('*');
        if clusters != (mode == DestinationMode::ClusterHeader) {
            let expected = if clusters {
                "the name of one cluster (a final * goes with cluster_header)"
            } else {
                "a name that ends in *, as cluster_header needs a cluster per pod"
            };
            let discovery = at("discovery");
            let cluster = discovery.object(&["cluster", "admin_cluster", "poll_interval_ms"])?;
            return Err(cluster.need("cluster", expected)?.refuse(expected));
        }
    }
    if let (DestinationMode::StatefulSession, Some(scrape)) = (mode, &config.metrics_scrape) {
        if scrape.cluster.is_none() {
            return Err(at("metrics_scrape").refuse_because(
                "needs `cluster`, the name of an override_host cluster, with stateful_session",
            ));
        }
    }
    if mode != DestinationMode::ClusterHeader && !config.pods.is_empty() {
        for (pod, node) in config.pods.iter().zip(at("pods").list(size(MAX_PODS))?) {
            if !pod.has_ip_address() {
                let keys = node.object(&["name", "address", "models"])?;
                let expected = "ip:port, which this destination mode needs";
                return Err(keys.need("address", expected)?.refuse(expected));
            }
        }
    }
    Ok(())
}

#[cold]
fn pods(node: &Node<'_>) -> Result<Vec<Pod>, ConfigError> {
    let mut pods: Vec<Pod> = Vec::new();
    for node in node.list(size(MAX_PODS))? {
        let keys = node.object(&["name", "address", "models"])?;
        let expected = "1 to 256 visible ASCII characters without quotes, backslash or comma";
        let name = keys.need("name", expected)?;
        let address = keys.get("address");
        let pod = Pod {
            name: name.text(expected, is_pod_name)?,
            address: address
                .as_ref()
                .map(|n| n.text("host:port", is_host_port).map(canonical))
                .transpose()?,
            models: keys.or("models", Vec::new(), |n| {
                texts(&n, "a model's name", is_text)
            })?,
        };
        if pods.iter().any(|known| known.name == pod.name) {
            return Err(name.refuse_because("is the name of an earlier pod too"));
        }
        if let Some(address) = address {
            if pods.iter().any(|known| known.address == pod.address) {
                return Err(address.refuse_because("is the address of an earlier pod too"));
            }
        }
        pods.push(pod);
    }
    Ok(pods)
}

#[cold]
fn scope(node: &Node<'_>) -> Result<Scope, ConfigError> {
    let keys = node.object(&["hosts", "path_prefixes", "clusters"])?;
    let hosts = keys.or("hosts", Vec::new(), |n| {
        texts(&n, "a host name, *.domain or host:port", |t| {
            is_visible(t, 256) && !t.contains('/')
        })
    })?;
    Ok(Scope {
        hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        path_prefixes: keys.or("path_prefixes", Vec::new(), |n| {
            texts(&n, "a path that starts with /", is_path)
        })?,
        clusters: keys.or("clusters", Vec::new(), |n| {
            texts(&n, "the name of a cluster", |t| is_visible(t, 256))
        })?,
    })
}

#[cold]
fn discovery(node: &Node<'_>) -> Result<Discovery, ConfigError> {
    let keys = node.object(&["cluster", "admin_cluster", "poll_interval_ms"])?;
    let expected = "the name of a cluster, or its beginning and *";
    Ok(Discovery {
        cluster: keys.need("cluster", expected)?.text(expected, |t| {
            is_visible(t, 256)
                && t != "*"
                && t.find('*').is_none_or(|at| at.wrapping_add(1) == t.len())
        })?,
        admin_cluster: keys.or("admin_cluster", "prometheus_stats".to_owned(), |n| {
            n.text("the name of a cluster", |t| is_visible(t, 256))
        })?,
        poll_interval_ms: keys.or("poll_interval_ms", 1000, |n| n.whole(100, DAY_MS))?,
    })
}

#[cold]
fn destination(node: Option<&Node<'_>>) -> Result<Destination, ConfigError> {
    use DestinationMode::{ClusterHeader, OverrideHost, StatefulSession};
    let keys = node.map(|n| n.object(&["mode", "header"])).transpose()?;
    let words = [
        ("cluster_header", ClusterHeader),
        ("override_host", OverrideHost),
        ("stateful_session", StatefulSession),
    ];
    let Some(keys) = keys else {
        return Ok(Destination {
            mode: ClusterHeader,
            header: default_header(ClusterHeader),
        });
    };
    let mode = keys.or("mode", ClusterHeader, |n| n.word(&words))?;
    let header = keys.or("header", default_header(mode), |n| {
        n.text(
            "a lower-case header name that Envoy and the filter do not use",
            is_header_name,
        )
    })?;
    Ok(Destination { mode, header })
}

fn default_header(mode: DestinationMode) -> String {
    match mode {
        DestinationMode::ClusterHeader => "x-vllm-cluster",
        DestinationMode::OverrideHost => "x-gateway-destination-endpoint",
        DestinationMode::StatefulSession => "x-vllm-host",
    }
    .to_owned()
}

#[cold]
fn capacity(node: &Node<'_>) -> Result<Capacity, ConfigError> {
    if node.is_text("auto") {
        return Ok(Capacity::Auto);
    }
    match node.whole(16, MAX_CAPACITY) {
        Ok(chunks) => Ok(Capacity::Chunks(chunks)),
        Err(_) => Err(node.refuse(format_args!(
            "\"auto\" or a whole number from 16 to {MAX_CAPACITY}"
        ))),
    }
}

/// The spelling of an address that Envoy uses: IPv6 in lower case. A name is the same either way.
fn canonical(mut address: String) -> String {
    address.make_ascii_lowercase();
    address
}

#[cold]
fn policy(node: &Node<'_>) -> Result<Policy, ConfigError> {
    #[derive(Clone, Copy)]
    enum Name {
        Balanced,
        LongestPrefix,
    }
    let keys = node.object(&[
        "name",
        "running_weight_tokens",
        "recompute_penalty",
        "recompute_penalty_per_backlog_second",
        "home_discount",
        "prefill_tokens_per_second",
        "slow_start_ms",
    ])?;
    let names = [
        ("balanced", Name::Balanced),
        ("longest_prefix", Name::LongestPrefix),
    ];
    match keys.or("name", Name::Balanced, |n| n.word(&names))? {
        Name::LongestPrefix => {
            node.object(&["name"])?;
            Ok(Policy::LongestPrefix)
        }
        Name::Balanced => {
            let default = Balanced::default();
            let number =
                |key: &str, default, least, most| keys.or(key, default, |n| n.number(least, most));
            Ok(Policy::Balanced(Balanced {
                running_weight_tokens: number(
                    "running_weight_tokens",
                    default.running_weight_tokens,
                    0.0,
                    1e6,
                )?,
                recompute_penalty: number(
                    "recompute_penalty",
                    default.recompute_penalty,
                    0.0,
                    1e3,
                )?,
                recompute_penalty_per_backlog_second: number(
                    "recompute_penalty_per_backlog_second",
                    default.recompute_penalty_per_backlog_second,
                    0.0,
                    1e4,
                )?,
                home_discount: number("home_discount", default.home_discount, 0.0, 1.0)?,
                prefill_tokens_per_second: number(
                    "prefill_tokens_per_second",
                    default.prefill_tokens_per_second,
                    1.0,
                    1e8,
                )?,
                slow_start_ms: keys.or("slow_start_ms", default.slow_start_ms, |n| {
                    n.whole(0, DAY_MS)
                })?,
            }))
        }
    }
}

impl Default for Balanced {
    fn default() -> Self {
        Self {
            running_weight_tokens: 100.0,
            recompute_penalty: 0.25,
            recompute_penalty_per_backlog_second: 8.0,
            home_discount: 0.1,
            prefill_tokens_per_second: 8000.0,
            slow_start_ms: 10_000,
        }
    }
}

#[cold]
fn metrics_scrape(node: &Node<'_>) -> Result<MetricsScrape, ConfigError> {
    let keys = node.object(&["poll_interval_ms", "path", "cluster"])?;
    let cluster = keys.get("cluster");
    Ok(MetricsScrape {
        poll_interval_ms: keys.or("poll_interval_ms", 1000, |n| n.whole(100, DAY_MS))?,
        path: keys.or("path", "/metrics".to_owned(), |n| {
            n.text("a path that starts with /", is_path)
        })?,
        cluster: cluster
            .map(|n| n.text("the name of a cluster", |t| is_visible(t, 256)))
            .transpose()?,
    })
}

#[cold]
fn api(node: &Node<'_>) -> Result<Api, ConfigError> {
    let keys = node.object(&["path_prefix"])?;
    let path_prefix = keys.or("path_prefix", "/prefix-router".to_owned(), |n| {
        n.text("a path that starts with / and does not end with it", |t| {
            is_path(t) && !t.ends_with('/')
        })
    })?;
    Ok(Api { path_prefix })
}

#[cold]
fn texts(
    node: &Node<'_>,
    expected: &str,
    good: impl Fn(&str) -> bool,
) -> Result<Vec<String>, ConfigError> {
    node.list(MAX_LIST)?
        .iter()
        .map(|item| item.text(expected, &good))
        .collect()
}

fn size(n: u32) -> usize {
    n as usize
}

fn is_visible(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

fn is_text(text: &str) -> bool {
    (1..=256).contains(&text.len())
}

fn is_path(text: &str) -> bool {
    is_visible(text, 1024) && text.starts_with('/')
}

fn is_pool_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Safe in a header value, a structured-field string and a metric label.
pub(crate) fn is_pod_name(text: &str) -> bool {
    is_visible(text, 256)
        && !text.bytes().any(|b| matches!(b, b'"' | b'\\' | b','))
        && !text
            .as_bytes()
            .windows(3)
            .any(|three| matches!(three, b".;." | b".=."))
}

fn is_host_port(text: &str) -> bool {
    if is_ip_port(text) {
        return true;
    }
    match text.rsplit_once(':') {
        Some((host, port)) => {
            is_visible(host, 253)
                && host
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        None => false,
    }
}

/// `10.0.0.5:8000` or `[::1]:8000`.
pub(crate) fn is_ip_port(text: &str) -> bool {
    text.parse::<SocketAddr>()
        .is_ok_and(|address| address.port() > 0)
}

fn is_header_name(text: &str) -> bool {
    const TAKEN: [&str; 12] = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "content-type",
        "content-encoding",
        "x-prefix-router",
    ];
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&b)
        })
        && !TAKEN.contains(&text)
}
