//! Every key's good and bad values.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text.as_bytes()).map_err(|error| error.to_string())
}

/// A configuration with two pods and `extra` keys.
fn with(extra: &str) -> Result<Config, String> {
    parse(&format!(
        r#"{{"pods": [{{"name": "a", "address": "10.0.0.1:80"}}, {{"name": "b"}}]{}{extra}}}"#,
        if extra.is_empty() { "" } else { ", " }
    ))
}

#[test]
fn defaults() {
    let config = with("").unwrap();
    assert_eq!(config.pool, "default");
    assert!(config.scope.is_everything());
    assert_eq!(config.mode, Mode::Route);
    assert_eq!(config.destination.mode, DestinationMode::ClusterHeader);
    assert_eq!(config.destination.header, "x-vllm-cluster");
    assert_eq!(
        (config.chunk_bytes, config.capacity),
        (256, Capacity::Chunks(8192))
    );
    assert_eq!((config.max_pods, config.max_capacity_chunks), (64, 32768));
    assert_eq!((config.match_bytes, config.hold_bytes), (524_288, 917_504));
    assert!(matches!(config.policy, Policy::Balanced(_)));
    assert_eq!(config.response_header, ResponseHeader::Off);
    assert_eq!((config.metrics_scrape, config.api), (None, None));
    assert_eq!(config.pods[1].address, None);
}

#[test]
fn good_values() {
    for good in [
        r#""pool": "team-a.x_1""#,
        r#""match": {"hosts": ["LLM.example.com", "*.b", "[::1]:8080"], "path_prefixes": ["/a"]}"#,
        r#""match": {"clusters": ["vllm", "outbound|8000||vllm.svc"]}"#,
        r#""match": {}"#,
        r#""mode": "observe""#,
        r#""destination": {"header": "x-other"}"#,
        r#""destination": {}"#,
        r#""chunk_bytes": 16, "capacity_chunks": 16, "max_pods": 2, "max_capacity_chunks": 16"#,
        r#""chunk_bytes": 256.0"#,
        r#""match_bytes": 1000, "hold_bytes": 1000"#,
        r#""policy": {"name": "longest_prefix"}"#,
        r#""policy": {"name": "balanced", "running_weight_tokens": 0, "home_discount": 0.5, "slow_start_ms": 0}"#,
        r#""metrics_scrape": {}, "capacity_chunks": "auto""#,
        r#""response_header": "pod""#,
        r#""api": {}"#,
        r#""discovery": {"cluster": "vllm-*"}"#,
    ] {
        with(good).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    parse(r#"{"discovery": {"cluster": "vllm"}, "destination": {"mode": "override_host"}}"#)
        .unwrap();
    parse(r#"{"pods": [{"name": "p", "address": "[::1]:80"}], "destination": {"mode": "stateful_session"}}"#).unwrap();
    let config = parse(r#"{"discovery": {"cluster": "v*"}}"#).unwrap();
    assert_eq!(config.discovery.unwrap().admin_cluster, "prometheus_stats");
}

#[test]
fn bad_values_are_refused_with_one_line() {
    let cases = [
        (
            r#""pol": 1"#,
            "pol: unknown key with value 1; expected one of pool,",
        ),
        (r#""pool": """#, "pool: \"\" is not 1 to 64 letters"),
        (r#""pool": "a b""#, "pool: \"a b\" is not"),
        (r#""match": {"host": []}"#, "match.host: unknown key"),
        (
            r#""match": {"hosts": [3]}"#,
            "match.hosts[0]: 3 is not a host name",
        ),
        (
            r#""match": {"path_prefixes": ["a"]}"#,
            "match.path_prefixes[0]: \"a\" is not a path",
        ),
        (
            r#""match": {"clusters": ["a", ""]}"#,
            "match.clusters[1]: \"\" is not the name of a cluster",
        ),
        (
            r#""mode": "steer""#,
            "mode: \"steer\" is not one of \"route\", \"observe\"",
        ),
        (
            r#""destination": {"mode": "x"}"#,
            "destination.mode: \"x\" is not one of",
        ),
        (
            r#""destination": {"header": "X-Upper"}"#,
            "destination.header: \"X-Upper\" is not a lower-case",
        ),
        (
            r#""destination": {"header": ":path"}"#,
            "destination.header: \":path\" is not",
        ),
        (
            r#""destination": {"header": "host"}"#,
            "destination.header: \"host\" is not",
        ),
        (
            r#""destination": {"mode": "override_host"}"#,
            "pods[1].address: missing; expected ip:port",
        ),
        (
            r#""chunk_bytes": 15"#,
            "chunk_bytes: 15 is not a whole number from 16 to 65536",
        ),
        (r#""chunk_bytes": 65537"#, "chunk_bytes: 65537 is not"),
        (r#""chunk_bytes": 16.5"#, "chunk_bytes: 16.5 is not"),
        (r#""chunk_bytes": "256""#, "chunk_bytes: \"256\" is not"),
        (r#""chunk_bytes": null"#, "chunk_bytes: null is not"),
        (
            r#""chunk_bytes": 1024, "match_bytes": 1000"#,
            "match_bytes: 1000 is not at least chunk_bytes, 1024",
        ),
        (
            r#""hold_bytes": 16777217"#,
            "hold_bytes: 16777217 is not a whole number from 1 to 16777216",
        ),
        (
            r#""match_bytes": 1000000"#,
            "match_bytes: 1000000 is not at most hold_bytes, 917504",
        ),
        (
            r#""hold_bytes": 1000"#,
            "hold_bytes: 1000 is not at least match_bytes, 524288",
        ),
        (
            r#""capacity_chunks": 0"#,
            "capacity_chunks: 0 is not \"auto\" or a whole number",
        ),
        (
            r#""capacity_chunks": 32769"#,
            "capacity_chunks: 32769 is not at most max_capacity_chunks, 32768",
        ),
        (
            r#""capacity_chunks": "auto""#,
            "capacity_chunks: \"auto\" needs `metrics_scrape`",
        ),
        (
            r#""max_capacity_chunks": 4096"#,
            "max_capacity_chunks: 4096 is not at least capacity_chunks, 8192",
        ),
        (
            r#""max_pods": 1"#,
            "pods: a list of 2 is longer than max_pods, 1",
        ),
        (r#""max_pods": 257"#, "max_pods: 257 is not"),
        (
            r#""max_pods": 256, "max_capacity_chunks": 1048576"#,
            "max_capacity_chunks: 1048576 times max_pods (256)",
        ),
        (
            r#""policy": {"name": "best"}"#,
            "policy.name: \"best\" is not one of",
        ),
        (
            r#""policy": {"name": "longest_prefix", "home_discount": 0}"#,
            "policy.home_discount: unknown key",
        ),
        (
            r#""policy": {"home_discount": 2}"#,
            "policy.home_discount: 2 is not a number from 0 to 1",
        ),
        (r#""policy": []"#, "policy: a list of 0 is not an object"),
        (
            r#""metrics_scrape": {"path": "metrics"}"#,
            "metrics_scrape.path: \"metrics\" is not",
        ),
        (
            r#""response_header": true"#,
            "response_header: true is not one of",
        ),
        (
            r#""api": {"path_prefix": "/"}"#,
            "api.path_prefix: \"/\" is not",
        ),
        (
            r#""discovery": {"cluster": "vllm"}"#,
            "discovery.cluster: \"vllm\" is not a name that ends in *",
        ),
        (
            r#""discovery": {"cluster": "*"}"#,
            "discovery.cluster: \"*\" is not",
        ),
        (r#""discovery": {}"#, "discovery.cluster: missing"),
        (
            r#""discovery": {"cluster": "a*", "poll_interval_ms": 1}"#,
            "discovery.poll_interval_ms: 1 is not",
        ),
        (
            r#""mode": "route", "mode": "route""#,
            "the configuration is not a JSON object: the key \"mode\" stands there twice",
        ),
    ];
    for (extra, expected) in cases {
        let error = with(extra).expect_err(extra);
        assert!(
            error.starts_with(expected),
            "{extra}\n  says     {error}\n  expected {expected}"
        );
        assert!(!error.contains('\n'));
    }
    let whole = [
        ("", "pods: missing; expected a list of pods, or `discovery`"),
        ("{", "the configuration is not a JSON object"),
        ("[]", "the configuration: a list of 0 is not an object"),
        (
            "{}",
            "pods: missing; expected a list of pods, or `discovery`",
        ),
        (r#"{"pods": []}"#, "pods: a list of 0 names no pods"),
        (r#"{"pods": {}}"#, "pods: an object is not a list"),
        (r#"{"pods": [{}]}"#, "pods[0].name: missing"),
        (
            r#"{"pods": [{"name": "a\"b"}]}"#,
            "pods[0].name: \"a\"b\" is not",
        ),
        (
            r#"{"pods": [{"name": "a"}, {"name": "a"}]}"#,
            "pods[1].name: \"a\" is the name of an earlier pod",
        ),
        (
            r#"{"pods": [{"name": "a", "address": "h:1"}, {"name": "b", "address": "h:1"}]}"#,
            "pods[1].address: \"h:1\" is the address",
        ),
        (
            r#"{"pods": [{"name": "a", "address": "nowhere"}]}"#,
            "pods[0].address: \"nowhere\" is not host:port",
        ),
        (
            r#"{"pods": [{"name": "a", "address": "10.0.0.1:0"}]}"#,
            "pods[0].address: \"10.0.0.1:0\" is not",
        ),
        (
            r#"{"pods": [{"name": "a", "adress": "h:1"}]}"#,
            "pods[0].adress: unknown key",
        ),
        (
            r#"{"pods": [{"name": "a", "models": [1]}]}"#,
            "pods[0].models[0]: 1 is not a model's name",
        ),
        (
            r#"{"discovery": {"cluster": "v*"}, "destination": {"mode": "override_host"}}"#,
            "discovery.cluster: \"v*\" is not the name of one cluster",
        ),
        (
            r#"{"pods": [{"name": "p", "address": "1.2.3.4:80"}], "destination": {"mode": "stateful_session"}, "metrics_scrape": {}}"#,
            "metrics_scrape: an object needs `cluster`",
        ),
        (
            r#"{"pods": [{"name": "p", "address": "name:80"}], "destination": {"mode": "override_host"}}"#,
            "pods[0].address: \"name:80\" is not ip:port",
        ),
    ];
    for (text, expected) in whole {
        let error = parse(text).expect_err(text);
        assert!(
            error.starts_with(expected),
            "{text}\n  says     {error}\n  expected {expected}"
        );
    }
}

#[test]
fn a_refusal_stays_one_short_line() {
    let error = with(&format!(r#""pool": "{}\n""#, "x".repeat(5000))).unwrap_err();
    assert!(error.len() < 300 && !error.contains('\n'), "{error}");
}
