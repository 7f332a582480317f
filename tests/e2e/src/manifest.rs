//! Manifests under `envoy/`: what of Envoy's configuration is inside them, and whether it works.
//!
//! Invariant: configuration is taken from the file as it is shipped, payloads of ConfigMaps
//! included. Replaced is only what a machine without that platform cannot have: ports, names that
//! its DNS would know, the place of the module.

use crate::bootstrap::{module, root, Bootstrap, Shipped};
use crate::client::{full, request, Version};
use crate::envoy::{free_port, validate, Envoy, Options};
use crate::rig::{self, PODS};
use crate::stub::{only, Stub};
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{json, Value};
use std::io::Write;
use std::path::{Path, PathBuf};

const CHAT: &str = "/v1/chat/completions";
const MATCHED: &str = "prefix_router_matched_chunks_total";
const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";

/// Every YAML file under `envoy/`, whatever the platform.
pub fn files() -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![root().join("envoy")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text of a shipped file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// All documents of a YAML text, followed by those inside its ConfigMaps.
pub fn documents(text: &str) -> Vec<Value> {
    let parse = |document| Value::deserialize(document).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    let mut all: Vec<_> = serde_yaml_ng::Deserializer::from_str(text)
        .map(parse)
        .collect();
    for map in all.clone().iter().filter(|d| d["kind"] == "ConfigMap") {
        let payloads = map["data"].as_object().into_iter().flatten();
        let yaml = payloads.filter(|(name, _)| name.ends_with(".yaml") || name.ends_with(".json"));
        for (_, text) in yaml {
            all.extend(documents(text.as_str().expect("text")));
        }
    }
    all
}

/// The documents that are bootstraps of Envoy.
pub fn bootstraps(documents: &[Value]) -> Vec<Value> {
    let whole = documents
        .iter()
        .filter(|d| d["static_resources"].is_object());
    whole.cloned().collect()
}

/// The `typed_config` of every Wasm filter, however deep it is.
pub fn wasm_filters(within: &Value) -> Vec<Value> {
    match within {
        Value::Object(keys) if keys.get("@type").is_some_and(|t| t == WASM) => vec![within.clone()],
        Value::Object(keys) => keys.values().flat_map(wasm_filters).collect(),
        Value::Array(items) => items.iter().flat_map(wasm_filters).collect(),
        _ => vec![],
    }
}

/// The shipped bootstrap for this filter's destination with the filter in it, in front of `pods`: they take the place of the
/// filter's static pods.
pub fn around(filter: &Value, options: &Options, pods: [u16; 3]) -> Bootstrap {
    let mut filter = filter.clone();
    at_home(&mut filter);
    let mut plugin = Bootstrap::shipped().with_filter(&filter).plugin();
    let kind = match plugin["destination"]["mode"].as_str() {
        None | Some("cluster_header") => Shipped::ClusterHeader,
        Some("override_host") => Shipped::OverrideHost,
        Some("stateful_session") => Shipped::StatefulSession,
        Some(other) => panic!("{other} is no destination"),
    };
    let around = Bootstrap::of(kind).with_ports(options, pods);
    let mut around = around.with_filter(&filter);
    let like = plugin["pods"].as_array().and_then(|pods| pods.first());
    let like = like.expect("static pods").clone();
    let pods = PODS.iter().zip(pods).map(|(name, port)| {
        let mut pod = like.clone();
        pod["name"] = json!(name);
        pod["address"] = format!("127.0.0.1:{port}").into();
        pod
    });
    plugin["pods"] = pods.collect();
    around.set_plugin(&plugin);
    around
}

/// A whole bootstrap on this machine: `vllm-1.…` is the second pod, any other name is all of them.
pub fn relocated(bootstrap: &Value, options: &Options, pods: [u16; 3]) -> Bootstrap {
    let mut bootstrap = bootstrap.clone();
    at_home(&mut bootstrap);
    let listeners = &mut bootstrap["static_resources"]["listeners"];
    for listener in listeners.as_array_mut().expect("listeners") {
        let address = &mut listener["address"]["socket_address"];
        address["address"] = json!("127.0.0.1");
        let port = match listener["name"] == "llm" {
            true => options.listener,
            false => free_port(),
        };
        listener["address"]["socket_address"]["port_value"] = json!(port);
    }
    bootstrap["admin"]["address"]["socket_address"]["port_value"] = json!(options.admin);
    let clusters = &mut bootstrap["static_resources"]["clusters"];
    for cluster in clusters.as_array_mut().expect("clusters") {
        let Some(endpoints) = cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints")
        else {
            continue;
        };
        let at = "/endpoint/address/socket_address/address";
        let name = endpoints[0].pointer(at).and_then(Value::as_str);
        let name = name.expect("an address").split('.').next().unwrap_or("");
        let ports = match (name, PODS.iter().position(|pod| *pod == name)) {
            ("127", _) => vec![options.admin],
            (_, Some(pod)) => vec![pods[pod]],
            _ => pods.to_vec(),
        };
        let endpoint = |port: &u16| {
            json!({ "endpoint": { "address": { "socket_address": {
                "address": "127.0.0.1", "port_value": port,
            } } } })
        };
        *endpoints = ports.iter().map(endpoint).collect();
    }
    Bootstrap::from_value(bootstrap, Shipped::ClusterHeader)
}

/// The module is where `make build` leaves it, however the platform would get it.
pub fn at_home(within: &mut Value) {
    match within {
        Value::Object(keys) if keys.contains_key("vm_config") => {
            let here = module();
            keys["vm_config"]["code"] = json!({ "local": { "filename": here } });
        }
        Value::Object(keys) => keys.values_mut().for_each(at_home),
        Value::Array(items) => items.iter_mut().for_each(at_home),
        _ => {}
    }
}

/// Envoy accepts it.
pub fn accepted(bootstrap: &Bootstrap, what: &str) {
    let file = tempfile::Builder::new().suffix(".json").tempfile();
    let mut file = file.expect("a temporary file");
    file.write_all(bootstrap.text().as_bytes()).expect("write");
    let out = validate(file.path());
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{what}: {log}");
}

/// Envoy accepts it, later turns go to the pod of the first, and long bodies arrive. `bootstrap`
/// has to carry the ports of `options` and of `pods`.
pub async fn serves(bootstrap: &Bootstrap, options: Options, pods: &[Stub], what: &str) {
    accepted(bootstrap, what);
    let envoy = Envoy::start(bootstrap, options).await;
    rig::healthy(&envoy).await;
    carries(&envoy, pods, "llm.test", what).await;
}

/// The same of an Envoy that runs, for what is sent to `host`.
pub async fn carries(envoy: &Envoy, pods: &[Stub], host: &str, what: &str) {
    let headers = [("content-type", "application/json"), ("host", host)];
    let send = |body: Bytes| {
        let request = request(Method::POST, CHAT, &headers, full(body));
        async { envoy.connect(Version::H1).await.send(request).await }
    };
    let chunks = || async { envoy.prometheus().await.sum(MATCHED, &[]).unwrap_or(0.0) };
    let before = chunks().await;
    for i in 0..4 {
        let opening = rig::text(&format!("{what} {host} {i}"), 4000);
        let answer = rig::text("answer", 300);
        let turns = [
            rig::chat(&[("user", &opening)]),
            rig::chat(&[
                ("user", &opening),
                ("assistant", &answer),
                ("user", "go on"),
            ]),
        ];
        let mut served = vec![];
        for turn in turns {
            let reply = send(turn.to_string().into()).await;
            assert_eq!(reply.status, 200, "{what}: {reply:?}");
            let (pod, _) = only(pods);
            if reply.headers.contains_key(crate::decision::HEADER) {
                // Pods that are discovered as hosts are called by their addresses.
                let address = format!("127.0.0.1:{}", pods[pod].port());
                let said = reply.decision().pod;
                assert!(said == PODS[pod] || said == address, "{what}: {said}");
            }
            served.push(pod);
        }
        assert_eq!(served[0], served[1], "{what}: the second turn of chat {i}");
    }
    let matched = chunks().await - before;
    assert!(matched >= 60.0, "{what}: {matched} chunks matched");
    for bytes in [33 << 10, 2 << 20] {
        let body = rig::chat_of(bytes);
        let reply = send(body.clone()).await;
        assert_eq!(reply.status, 200, "{what}: a body of {bytes} bytes");
        assert!(only(pods).1.body == body, "{what}: other bytes");
    }
}

/// Says on the terminal, passed or not, what is not tried here.
pub fn skipped(what: &str, why: &str) {
    // Unlike the macros, not held back by the test harness.
    let _ = writeln!(std::io::stderr(), "skipped: {what} ({why})");
}
