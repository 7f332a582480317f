//! An Envoy in front of three pods, and the bodies that tests send through it.

use crate::bootstrap::{Bootstrap, Shipped};
use crate::client::Version;
use crate::decision::Decision;
use crate::envoy::{Envoy, Options};
use crate::stub::{only, Stub};
use serde_json::{json, Value};

/// Names of the pods in the shipped bootstrap.
pub const PODS: [&str; 3] = ["vllm-0", "vllm-1", "vllm-2"];

/// Starts Envoy with the shipped bootstrap in front of pods on these ports.
pub async fn envoy(pods: [u16; 3], concurrency: u32) -> Envoy {
    envoy_with(pods, concurrency, |bootstrap| bootstrap).await
}

/// The same with a change to the bootstrap.
pub async fn envoy_with(
    pods: [u16; 3],
    concurrency: u32,
    change: impl FnOnce(Bootstrap) -> Bootstrap,
) -> Envoy {
    envoy_of(Shipped::ClusterHeader, pods, concurrency, change).await
}

/// The same with any of the shipped bootstraps.
pub async fn envoy_of(
    shipped: Shipped,
    pods: [u16; 3],
    concurrency: u32,
    change: impl FnOnce(Bootstrap) -> Bootstrap,
) -> Envoy {
    let options = Options::new(concurrency);
    let shipped = Bootstrap::of(shipped).with_ports(&options, pods);
    let envoy = Envoy::start(&change(shipped), options).await;
    healthy(&envoy).await;
    envoy
}

/// On a busy machine the first health checks may have timed out while Envoy was compiling the
/// module: waits for the next.
pub async fn healthy(envoy: &Envoy) {
    let checked = || async {
        let clusters = envoy.admin("/clusters").await;
        !String::from_utf8_lossy(&clusters.body).contains("/failed_active_hc")
    };
    envoy.eventually("every pod is healthy", checked).await;
}

/// Index of a pod by its name.
pub fn index(pod: &str) -> usize {
    PODS.iter()
        .position(|name| *name == pod)
        .unwrap_or_else(|| panic!("no pod {pod:?}"))
}

/// `bytes` of text that no other `seed` shares and that does not repeat.
pub fn text(seed: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    let mut line = 0;
    while text.len() < bytes {
        text.push_str(&format!("{seed} says sentence {line}. "));
        line += 1;
    }
    text.truncate(bytes);
    text
}

/// A chat request; the first message is the system prompt.
pub fn chat(messages: &[(&str, &str)]) -> Value {
    let messages: Vec<_> = messages
        .iter()
        .map(|(role, text)| json!({ "role": role, "content": text }))
        .collect();
    json!({ "model": "sim", "max_tokens": 4, "messages": messages })
}

/// A chat whose whole prompt is one text.
pub fn prompt(seed: &str, bytes: usize) -> Value {
    chat(&[("user", &text(seed, bytes))])
}

/// A chat request of exactly `bytes` bytes, the model first.
pub fn chat_of(bytes: usize) -> bytes::Bytes {
    let around = |text: &str| {
        format!(r#"{{"model":"sim","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    };
    let content = text(&format!("chat of {bytes}"), bytes - around("").len());
    let body = around(&content);
    assert_eq!(body.len(), bytes);
    body.into()
}

/// Sends over a new connection; fails if the header names another pod than the one that served.
pub async fn ask(
    envoy: &Envoy,
    pods: &[Stub],
    version: Version,
    path: &str,
    body: &Value,
) -> Decision {
    let reply = envoy.connect(version).await.post(path, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let (pod, seen) = only(pods);
    assert!(seen.body == body.to_string(), "other bytes");
    let decision = reply.decision();
    assert_eq!(decision.pod, PODS[pod], "{decision:?}");
    decision
}
