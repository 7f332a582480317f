//! Istio and Envoy Gateway: their manifests, as the control plane would apply them, carry traffic.
//!
//! A change of the configuration's keys, or of a cluster's name, that forgets a manifest fails here.

use e2e::bootstrap::{root, Bootstrap};
use e2e::client::{full, request, Version};
use e2e::control_plane::the;
use e2e::envoy::{Envoy, Options};
use e2e::istio::{self, Proxy};
use e2e::manifest::{accepted, bootstraps, carries, documents, files, read};
use e2e::stub::Stub;
use e2e::{envoy_gateway, rig};
use http::Method;
use serde_json::Value;
use std::collections::BTreeSet;

const HOST: &str = "llm.example.com";
const SERVICE: &str = "vllm.llm.svc.cluster.local";
const FOUND: &str = "prefix_router_discovered_pods";

fn from(folder: &str, names: &[&str]) -> Vec<Value> {
    let folder = root().join("envoy").join(folder);
    let texts = names.iter().map(|name| read(&folder.join(name)));
    texts.flat_map(|text| documents(&text)).collect()
}

/// Envoy accepts it and runs; every pod has been discovered.
async fn start(bootstrap: &Bootstrap, options: Options, discovered: usize, what: &str) -> Envoy {
    accepted(bootstrap, what);
    let envoy = Envoy::start(bootstrap, options).await;
    rig::healthy(&envoy).await;
    let found = || async {
        let found = envoy.prometheus().await.sum(FOUND, &[]);
        found.unwrap_or(0.0) == discovered as f64
    };
    envoy.eventually("the pods are found", found).await;
    // By now every worker has ticked since.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    envoy
}

/// One pod is gone: whatever is asked is answered by another.
async fn outlives_a_pod(envoy: &Envoy, pods: &mut [Stub], host: &str) {
    pods[1].kill().await;
    let headers = [("content-type", "application/json"), ("host", host)];
    for i in 0..8 {
        let body = rig::prompt(&format!("without one {i}"), 2000).to_string();
        let request = request(Method::POST, "/v1/chat/completions", &headers, full(body));
        let reply = envoy.connect(Version::H1).await.send(request).await;
        assert_eq!(reply.status, 200, "request {i}: {reply:?}");
    }
}

/// With these files of `envoy/istio`, requests to `host` are served by all the pods of `SERVICE`.
async fn istio(context: &'static str, names: &[&str], host: &str, discovered: usize) {
    let mut pods = Stub::three().await;
    let ports = pods.iter().map(Stub::port).collect();
    let proxy = Proxy {
        context,
        services: vec![(SERVICE, ports)],
    };
    let options = Options::new(2);
    let assembled = istio::assemble(&from("istio", names), &proxy, &options);
    let what = names.join(", ");
    let envoy = start(&assembled.bootstrap, options, discovered, &what).await;
    carries(&envoy, &pods, host, &what).await;
    outlives_a_pod(&envoy, &mut pods, host).await;
}

#[tokio::test]
async fn istio_gateway() {
    let names = ["vllm.yaml", "gateway.yaml", "labels.yaml"];
    istio("GATEWAY", &names, HOST, 3).await;
}

#[tokio::test]
async fn istio_gateway_with_a_fetched_module() {
    let names = ["vllm.yaml", "gateway-fetched.yaml", "labels.yaml"];
    istio("GATEWAY", &names, HOST, 3).await;
}

#[tokio::test]
async fn istio_sidecar() {
    let names = ["vllm.yaml", "sidecar.yaml"];
    istio("SIDECAR_OUTBOUND", &names, SERVICE, 3).await;
}

#[tokio::test]
async fn istio_subsets() {
    let names = ["vllm.yaml", "subsets.yaml", "labels.yaml"];
    istio("GATEWAY", &names, HOST, 0).await;
}

#[tokio::test]
async fn istio_two_pools() {
    let mut pods = vec![];
    for _ in 0..4 {
        pods.push(Stub::start().await);
    }
    let ports = |pods: &[Stub]| pods.iter().map(Stub::port).collect();
    let proxy = Proxy {
        context: "GATEWAY",
        services: vec![
            ("llama.llm.svc.cluster.local", ports(&pods[..2])),
            ("qwen.llm.svc.cluster.local", ports(&pods[2..])),
        ],
    };
    let options = Options::new(2);
    let all = from("istio", &["two-pools.yaml", "labels.yaml"]);
    let assembled = istio::assemble(&all, &proxy, &options);
    let envoy = start(&assembled.bootstrap, options, 4, "two pools").await;
    // Each finds its chats at its own pods only: `carries` looks at no others.
    carries(&envoy, &pods[..2], "llama.example.com", "llama").await;
    carries(&envoy, &pods[2..], "qwen.example.com", "qwen").await;
    let metrics = envoy.prometheus().await;
    for pool in ["llama", "qwen"] {
        let decisions = metrics.sum("prefix_router_decisions_total", &[("pool", pool)]);
        assert_eq!(decisions, Some(10.0), "{pool}");
    }
}

fn gateway_of(options: &Options, pods: &[Stub]) -> Bootstrap {
    let all = from("envoy-gateway", &["gateway.yaml", "prefix-router.yaml"]);
    let ports: Vec<_> = pods.iter().map(Stub::port).collect();
    envoy_gateway::assemble(&all, options, &ports)
}

#[tokio::test]
async fn envoy_gateway() {
    let mut pods = Stub::three().await;
    let options = Options::new(2);
    let bootstrap = gateway_of(&options, &pods);
    let envoy = start(&bootstrap, options, 3, "Envoy Gateway").await;
    carries(&envoy, &pods, HOST, "Envoy Gateway").await;
    outlives_a_pod(&envoy, &mut pods, HOST).await;
}

/// Whoever adds a label to the shipped bootstrap and forgets these fails here.
#[test]
fn labels_are_those_of_the_shipped_bootstrap() {
    let tags = |document: &Value| document["stats_config"]["stats_tags"].clone();
    let shipped = &documents(&read(&root().join("envoy/envoy.yaml")))[0];
    let mut seen = 0;
    for patches in from("istio", &["labels.yaml", "sidecar.yaml"]) {
        for patch in patches["spec"]["configPatches"].as_array().expect("a list") {
            if patch["applyTo"] == "BOOTSTRAP" {
                assert_eq!(tags(&patch["patch"]["value"]), tags(shipped));
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2);
    for file in files() {
        for bootstrap in bootstraps(&documents(&read(&file))) {
            assert_eq!(tags(&bootstrap), tags(shipped), "{}", file.display());
        }
    }
    let gateway = from("envoy-gateway", &["gateway.yaml"]);
    let value = the(&gateway, "EnvoyProxy")["spec"]["bootstrap"]["value"].as_str();
    assert_eq!(tags(&documents(value.expect("text"))[0]), tags(shipped));
}

/// Nothing in the two folders is left untried.
#[test]
fn every_manifest_is_tried() {
    let tried = [
        "istio/gateway-fetched.yaml",
        "istio/gateway.yaml",
        "istio/labels.yaml",
        "istio/sidecar.yaml",
        "istio/subsets.yaml",
        "istio/two-pools.yaml",
        "istio/vllm.yaml",
        "envoy-gateway/gateway.yaml",
        "envoy-gateway/prefix-router.yaml",
    ];
    let shipped = root().join("envoy");
    let files = files();
    let files = files.iter().filter_map(|file| {
        let file = file.strip_prefix(&shipped).ok()?.to_str()?;
        (file.starts_with("istio/") || file.starts_with("envoy-gateway/")).then_some(file)
    });
    assert_eq!(files.collect::<BTreeSet<_>>(), BTreeSet::from(tried));
    let policy = from("envoy-gateway", &["prefix-router.yaml"]);
    assert!(the(&policy, "EnvoyPatchPolicy").is_object());
}
