//! The shipped bootstrap without the filter: what holds when the filter is bypassed.
//!
//! `fail_open` lets requests past a module that has crashed. The module must never crash, so the
//! tests take it out instead.

use e2e::client::{self, Version};
use e2e::rig;
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn requests_are_spread_and_nobody_names_a_cluster() {
    let pods = Stub::three().await;
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 2, |b| b.without_filter()).await;
    for version in [Version::H1, Version::H2] {
        let mut conn = envoy.connect(version).await;
        for name in ["vllm-0", "vllm-0/only", "no-such-cluster", ""] {
            let headers = [("x-vllm-cluster", name), ("x-vllm-cluster", "vllm-1")];
            let body = client::full(rig::prompt(name, 1000).to_string());
            let reply = conn
                .send(client::request(Method::POST, CHAT, &headers, body))
                .await;
            assert_eq!(reply.status, 200, "{name}");
            let (_, seen) = only(&pods);
            assert!(
                !seen.headers.contains_key("x-vllm-cluster"),
                "{name}: {seen:?}"
            );
        }
    }
    for _ in 0..60 {
        let mut conn = envoy.connect(Version::H1).await;
        assert_eq!(conn.get("/v1/models").await.status, 200);
    }
    for pod in &pods {
        assert!(!pod.take().is_empty(), "every pod gets a share");
    }
}

#[tokio::test]
async fn a_pod_s_cluster_falls_back_to_the_pool() {
    let mut pods = Stub::three().await;
    // Without the filter, and with the header let through: every request names the pod.
    let named = |b: e2e::bootstrap::Bootstrap| {
        b.without_filter()
            .with_manager("early_header_mutation_extensions", json!([]))
    };
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 2, named).await;
    let request = || {
        let body = client::full(rig::prompt("x", 1000).to_string());
        client::request(Method::POST, CHAT, &[("x-vllm-cluster", "vllm-0")], body)
    };
    for _ in 0..8 {
        let mut conn = envoy.connect(Version::H1).await;
        assert_eq!(conn.send(request()).await.status, 200);
        assert_eq!(only(&pods).0, 0, "the pod that was named");
    }
    pods[0].kill().await;
    for i in 0..8 {
        let mut conn = envoy.connect(Version::H1).await;
        let reply = conn.send(request()).await;
        assert_eq!(reply.status, 200, "request {i} after the pod was killed");
        assert_ne!(only(&pods).0, 0);
    }
    pods[0].revive().await;
    let back = || async {
        let mut conn = envoy.connect(Version::H1).await;
        conn.send(request()).await.status == 200 && only(&pods).0 == 0
    };
    envoy.eventually("the pod is used again", back).await;
}

#[tokio::test]
async fn with_every_pod_gone_the_answer_is_503_and_all_come_back() {
    let mut pods = Stub::three().await;
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 1, |b| b.without_filter()).await;
    for pod in &mut pods {
        pod.kill().await;
    }
    let mut conn = envoy.connect(Version::H1).await;
    assert_eq!(conn.get("/v1/models").await.status, 503);
    for pod in &mut pods {
        pod.revive().await;
    }
    let back = || async {
        envoy
            .connect(Version::H1)
            .await
            .get("/v1/models")
            .await
            .status
            == 200
    };
    envoy.eventually("answers again", back).await;
}
