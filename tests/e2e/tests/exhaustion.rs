//! What would wear the filter out.

use e2e::client::{self, Version};
use e2e::envoy::Envoy;
use e2e::rig;
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::json;

/// Memory of the process, in MiB.
fn resident_mib(envoy: &Envoy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", envoy.pid())).expect("status");
    let line = status
        .lines()
        .find(|l| l.starts_with("VmRSS"))
        .expect("RSS");
    let kib = line.split_whitespace().nth(1).expect("a number");
    kib.parse::<u64>().expect("a number") >> 10
}

/// A body may name 300,000 prompts; the memory of a VM, once taken, never comes back, and where
/// it reaches its limit the VM is lost.
#[tokio::test]
async fn very_many_prompts_take_no_memory_each() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let sizes = json!({ "max_pods": 256, "match_bytes": 917_504 });
    let envoy = rig::envoy_with(ports, 1, |shipped| shipped.with_plugin(sizes)).await;
    let mut conn = envoy.connect(Version::H1).await;
    conn.post("/v1/completions", &json!({ "model": "m", "prompt": "x" }))
        .await;
    only(&pods);
    let before = resident_mib(&envoy);
    for empty in ["\"\"", "[]"] {
        let all = vec![empty; 300_000].join(",");
        let body = format!("{{\"model\":\"m\",\"prompt\":[{all}]}}");
        let request = client::request(
            Method::POST,
            "/v1/completions",
            &[],
            client::full(body.clone()),
        );
        let reply = conn.send(request).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.decision().chunks, 0);
        assert!(only(&pods).1.body == body.as_bytes(), "other bytes");
    }
    let grown = resident_mib(&envoy).saturating_sub(before);
    assert!(grown < 100, "{grown} MiB more");
}
