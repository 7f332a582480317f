//! Observe mode: another balancer decides, the filter learns from who served, and counts how often
//! it would have said the same and what that would have saved.

use e2e::bootstrap::Shipped;
use e2e::client::{self, Version};
use e2e::decision::Decision;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::json;
use std::collections::BTreeMap;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn what_it_would_have_saved_adds_up() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let keys = json!({ "mode": "observe", "policy": { "name": "longest_prefix" } });
    let envoy = rig::envoy_of(Shipped::OverrideHost, ports, 2, |b| {
        b.with_plugin(keys).with_clusters(
            |name| name == "vllm",
            |cluster| {
                let cluster = cluster.as_object_mut().expect("a cluster");
                let policy = cluster.remove("load_balancing_policy");
                policy.expect("the policy that takes addresses");
                cluster.insert("lb_policy".into(), "ROUND_ROBIN".into());
            },
        )
    })
    .await;
    // Chunks of each prompt that each pod holds.
    let mut held: BTreeMap<usize, [i64; 3]> = BTreeMap::new();
    let (mut served_held, mut best_held, mut all, mut agreed) = (0, 0, 0, 0);
    let mut used = [0; 3];
    for turn in 0..60 {
        // Two prompts that take turns with the three pods, and one that is asked twice in a row.
        let which = [0, 1, 2, 2][turn % 4];
        let body = rig::prompt(&format!("prompt {which}"), 1000 + 500 * which);
        let named = format!("127.0.0.1:{}", pods[0].port());
        let headers = [(Shipped::OverrideHost.header(), named.as_str())];
        let request = client::request(Method::POST, CHAT, &headers, client::full(body.to_string()));
        let reply = envoy.connect(Version::H1).await.send(request).await;
        assert_eq!(reply.status, 200);
        let (pod, seen) = only(&pods);
        assert!(!seen.headers.contains_key(Shipped::OverrideHost.header()));
        used[pod] += 1;
        let Decision {
            pod: name,
            matched,
            chunks,
            ..
        } = reply.decision();
        let held = held.entry(which).or_default();
        assert_eq!(
            (name.as_str(), matched),
            (PODS[pod], held[pod]),
            "turn {turn}"
        );
        let best = *held.iter().max().expect("three pods");
        // Where several hold the same, or nobody holds anything, either may be its choice.
        let would_have = held.iter().filter(|chunks| **chunks == best).count();
        agreed += i64::from(would_have == 1 && held[pod] == best);
        all += chunks;
        served_held += held[pod];
        best_held += best;
        held[pod] = chunks;
    }
    assert!(
        used.iter().all(|n| (15..=25).contains(n)),
        "round robin: {used:?}"
    );
    assert!(served_held < best_held, "{served_held} of {best_held}");
    let samples = envoy.prometheus().await;
    let sum = |name: &str| samples.sum(&format!("prefix_router_{name}_total"), &[]);
    assert_eq!(sum("observed_matched_chunks"), Some(served_held as f64));
    assert_eq!(sum("matched_chunks"), Some(best_held as f64));
    assert_eq!(sum("prompt_chunks"), Some(all as f64));
    assert_eq!(sum("observed"), Some(60.0));
    let said = samples.sum("prefix_router_observed_total", &[("outcome", "agreed")]);
    assert!(
        said.unwrap_or(0.0) >= agreed as f64,
        "{said:?}, at least {agreed}"
    );
    assert!(said.unwrap_or(0.0) < 60.0, "{said:?}");
    assert_eq!(sum("undone_notifies"), None);
}
