//! What Envoy Gateway makes of the manifests in `envoy/envoy-gateway`: as much of it as they use.
//!
//! Invariant: policies are applied to what they name, and a patch that finds nothing is an error.

use crate::bootstrap::Bootstrap;
use crate::control_plane::{self as plane, list, text, the};
use crate::envoy::Options;
use serde_json::{json, Value};
use serde_json_path::JsonPath;

/// The bootstrap of the gateway's Envoy, once all documents have been applied.
pub fn assemble(documents: &[Value], options: &Options, pods: &[u16]) -> Bootstrap {
    let (gateway, route) = (the(documents, "Gateway"), the(documents, "HTTPRoute"));
    let full = |of: &Value| {
        let meta = &of["metadata"];
        format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]))
    };
    assert_eq!(
        route["spec"]["parentRefs"][0]["name"],
        gateway["metadata"]["name"]
    );
    let cluster_name = format!("httproute/{}/rule/0", full(route));

    let extension = the(documents, "EnvoyExtensionPolicy");
    targets(extension, route);
    let owner = format!("envoyextensionpolicy/{}/wasm/0", full(extension));
    let filter = wasm(&extension["spec"]["wasm"][0], &owner);

    let host = &route["spec"]["hostnames"][0];
    let mut enabled = json!({});
    enabled[text(&filter["name"])] = json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {},
    });
    let backend = the(documents, "BackendTrafficPolicy");
    targets(backend, route);
    let backend = &backend["spec"];
    let triggers: Vec<_> = list(&backend["retry"]["retryOn"]["triggers"])
        .iter()
        .map(text)
        .collect();
    let virtual_host = json!({
        "name": full(gateway), "domains": [host],
        "routes": [{
            "name": format!("{cluster_name}/match/0"),
            "match": { "prefix": "/" },
            "route": {
                "cluster": cluster_name,
                "timeout": backend["timeout"]["http"]["requestTimeout"],
                "idle_timeout": backend["timeout"]["http"]["streamIdleTimeout"],
                "retry_policy": {
                    "retry_on": triggers.join(","), "num_retries": backend["retry"]["numRetries"],
                },
            },
            "typed_per_filter_config": enabled,
        }],
    });

    let mut manager = plane::manager("http", json!([virtual_host]));
    let config = &mut manager["typed_config"];
    let filters = config["http_filters"].as_array_mut().expect("filters");
    filters.insert(0, filter);
    let client = the(documents, "ClientTrafficPolicy");
    targets(client, gateway);
    let client = &client["spec"];
    let removed = &client["headers"]["earlyRequestHeaders"]["remove"];
    config["early_header_mutation_extensions"] = plane::early_removal(removed);
    config["http2_protocol_options"] = json!({
        "initial_stream_window_size": quantity(&client["http2"]["initialStreamWindowSize"]),
        "initial_connection_window_size": quantity(&client["http2"]["initialConnectionWindowSize"]),
    });
    let section = text(&gateway["spec"]["listeners"][0]["name"]);
    let mut listener = json!({
        "name": format!("{}/{section}", full(gateway)),
        "default_filter_chain": { "filters": [manager] },
        "per_connection_buffer_limit_bytes": quantity(&client["connection"]["bufferLimit"]),
    });
    patch(the(documents, "EnvoyPatchPolicy"), gateway, &mut listener);

    let cluster = cluster(backend, &cluster_name, pods);
    let mut bootstrap = plane::bootstrap(listener, vec![cluster], options);
    let proxy = &the(documents, "EnvoyProxy")["spec"]["bootstrap"];
    assert_eq!(proxy["type"], "Merge");
    let merged = serde_yaml_ng::from_str(text(&proxy["value"])).expect("YAML");
    plane::merge(&mut bootstrap, &merged);
    plane::finished(bootstrap)
}

fn targets(policy: &Value, target: &Value) {
    let [of] = list(&policy["spec"]["targetRefs"]) else {
        panic!("one target: {policy}");
    };
    assert_eq!(of["kind"], target["kind"]);
    assert_eq!(of["name"], target["metadata"]["name"]);
    assert_eq!(
        policy["metadata"]["namespace"],
        target["metadata"]["namespace"]
    );
}

/// Disabled here, and enabled by the route.
fn wasm(given: &Value, owner: &str) -> Value {
    json!({
        "name": format!("envoy.filters.http.wasm/{owner}"),
        "disabled": true,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": given["name"],
                "root_id": given["rootID"],
                "fail_open": given["failOpen"],
                "vm_config": {
                    "vm_id": owner, "runtime": "envoy.wasm.runtime.v8", "code": given["code"],
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": given["config"].to_string(),
                },
            },
        },
    })
}

fn cluster(backend: &Value, name: &str, pods: &[u16]) -> Value {
    let mut cluster = plane::cluster(name, pods);
    assert_eq!(backend["loadBalancer"]["type"], "LeastRequest");
    let from = &backend["loadBalancer"]["endpointOverride"]["extractFrom"];
    let [from] = list(from) else {
        panic!("one header: {from}");
    };
    cluster
        .as_object_mut()
        .expect("an object")
        .remove("lb_policy");
    cluster["load_balancing_policy"] = plane::override_host(&from["header"]);
    plane::idle_timeout(
        &mut cluster,
        &backend["timeout"]["http"]["connectionIdleTimeout"],
    );
    let passive = &backend["healthCheck"]["passive"];
    cluster["outlier_detection"] = json!({
        "split_external_local_origin_errors": passive["splitExternalLocalOriginErrors"],
        "consecutive_local_origin_failure": passive["consecutiveLocalOriginFailures"],
        "consecutive_5xx": passive["consecutive5XxErrors"],
        "consecutive_gateway_failure": passive["consecutiveGatewayErrors"],
        "interval": passive["interval"],
        "base_ejection_time": passive["baseEjectionTime"],
        "max_ejection_percent": passive["maxEjectionPercent"],
    });
    let limits = &backend["circuitBreaker"];
    cluster["circuit_breakers"] = json!({ "thresholds": [{
        "max_connections": limits["maxConnections"],
        "max_pending_requests": limits["maxPendingRequests"],
        "max_requests": limits["maxParallelRequests"],
        "max_retries": limits["maxParallelRetries"],
    }] });
    cluster
}

/// Adds what the policy adds, at every place that its path finds.
fn patch(policy: &Value, gateway: &Value, listener: &mut Value) {
    let spec = &policy["spec"];
    assert_eq!(spec["targetRef"]["kind"], "Gateway");
    assert_eq!(spec["targetRef"]["name"], gateway["metadata"]["name"]);
    for patch in list(&spec["jsonPatches"]) {
        assert_eq!(
            patch["type"],
            "type.googleapis.com/envoy.config.listener.v3.Listener"
        );
        assert_eq!(patch["name"], listener["name"]);
        let operation = &patch["operation"];
        assert_eq!(operation["op"], "add");
        let path = JsonPath::parse(text(&operation["jsonPath"])).expect("a JSONPath");
        let found = path.query_located(listener);
        let places: Vec<_> = found.locations().map(|p| p.to_json_pointer()).collect();
        assert!(!places.is_empty(), "finds nothing: {operation}");
        let key = text(&operation["path"]).strip_prefix('/').expect("a key");
        for place in places {
            let place = listener.pointer_mut(&place).expect("a place");
            place[key] = operation["value"].clone();
        }
    }
}

/// Bytes of a Kubernetes quantity.
fn quantity(value: &Value) -> u64 {
    let mebibytes = text(value).strip_suffix("Mi").expect("mebibytes");
    mebibytes.parse::<u64>().expect("a number") << 20
}
