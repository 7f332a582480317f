//! What control planes do alike with the manifests under `envoy/`: parts of a bootstrap, and the
//! places in it.
//!
//! Invariant: a patch that finds nothing to patch is an error.

use crate::bootstrap::{Bootstrap, Shipped};
use crate::envoy::Options;
use serde_json::{json, Value};

/// Type of the connection manager.
pub const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Everything of an API object that has this kind.
pub fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|d| d["kind"] == kind).collect()
}

/// The only one of its kind.
pub fn the<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let all = of_kind(documents, kind);
    assert_eq!(all.len(), 1, "{kind}");
    all[0]
}

/// A list, or nothing.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text that has to be there.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// A connection manager with these virtual hosts and nothing but the router.
pub fn manager(stat_prefix: &str, virtual_hosts: Value) -> Value {
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": MANAGER,
            "stat_prefix": stat_prefix,
            "http_filters": [
                { "name": "envoy.filters.http.router", "typed_config": { "@type": router } },
            ],
            "route_config": { "name": "routes", "virtual_hosts": virtual_hosts },
        },
    })
}

/// A cluster of these ports of this machine.
pub fn cluster(name: &str, ports: &[u16]) -> Value {
    let endpoint = |port: &u16| {
        let address = json!({ "address": "127.0.0.1", "port_value": port });
        json!({ "endpoint": { "address": { "socket_address": address } } })
    };
    let endpoints: Vec<_> = ports.iter().map(endpoint).collect();
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {},
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] },
    })
}

/// Sets what HTTP connections to the pods have in common.
pub fn idle_timeout(cluster: &mut Value, timeout: &Value) {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    cluster["typed_extension_protocol_options"][options] = json!({
        "@type": format!("type.googleapis.com/{options}"),
        "common_http_protocol_options": { "idle_timeout": timeout },
        "explicit_http_config": { "http_protocol_options": {} },
    });
}

/// The policy that takes addresses from a header.
pub fn override_host(header: &Value) -> Value {
    let policy = |name: &str, kind: &str, mut config: Value| {
        let package = format!("envoy.extensions.load_balancing_policies.{name}.v3.{kind}");
        config["@type"] = format!("type.googleapis.com/{package}").into();
        let name = format!("envoy.load_balancing_policies.{name}");
        let config = json!({ "name": name, "typed_config": config });
        json!({ "policies": [{ "typed_extension_config": config }] })
    };
    let otherwise = policy("least_request", "LeastRequest", json!({}));
    let config = json!({
        "override_host_sources": [{ "header": header }], "fallback_policy": otherwise,
    });
    policy("override_host", "OverrideHost", config)
}

/// The step that removes headers before a route is picked.
pub fn early_removal(headers: &Value) -> Value {
    let kind = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation";
    let mutations: Vec<_> = list(headers)
        .iter()
        .map(|h| json!({ "remove": h }))
        .collect();
    json!([{
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": { "@type": format!("type.googleapis.com/{kind}"), "mutations": mutations },
    }])
}

/// The bootstrap of one listener, with the cluster to Envoy's own admin listener that both
/// control planes have.
pub fn bootstrap(mut listener: Value, mut clusters: Vec<Value>, options: &Options) -> Value {
    let address =
        |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    listener["address"] = address(options.listener);
    clusters.push(cluster("prometheus_stats", &[options.admin]));
    json!({
        "admin": { "address": address(options.admin) },
        "static_resources": { "listeners": [listener], "clusters": clusters },
    })
}

/// As a message of Envoy's: fields are merged, lists appended.
pub fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch)) => into.extend(patch.iter().cloned()),
        (into, patch) => *into = patch.clone(),
    }
}

/// Done: for this machine.
pub fn finished(mut bootstrap: Value) -> Bootstrap {
    crate::manifest::at_home(&mut bootstrap);
    Bootstrap::from_value(bootstrap, Shipped::OverrideHost)
}
