//! Pods that fail: who answers instead, and who gets the credit.

use e2e::client::{self, Reply, Version};
use e2e::decision::Decision;
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

async fn start(concurrency: u32) -> ([Stub; 3], Envoy) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let envoy = rig::envoy(ports, concurrency).await;
    (pods, envoy)
}

fn treated(treatment: &str, body: &Value) -> http::Request<client::Body> {
    let headers = [("x-stub", treatment), ("content-type", "application/json")];
    client::request(Method::POST, CHAT, &headers, client::full(body.to_string()))
}

async fn send(envoy: &Envoy, treatment: &str, body: &Value) -> Reply {
    envoy
        .connect(Version::H1)
        .await
        .send(treated(treatment, body))
        .await
}

/// Sends, wants 200, and returns what the filter says together with who really served.
async fn served(envoy: &Envoy, pods: &[Stub], body: &Value) -> Decision {
    let reply = send(envoy, "", body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let decision = reply.decision();
    assert_eq!(decision.pod, PODS[only(pods).0], "{decision:?}");
    decision
}

fn forget_received(pods: &[Stub]) {
    pods.iter().for_each(|pod| drop(pod.take()));
}

/// `matched` is what the pod that served held: all of the prompt if it has served it before.
#[tokio::test]
async fn credit_follows_the_pod_that_served_instead() {
    for concurrency in [1, 2, 4] {
        let (mut pods, envoy) = start(concurrency).await;
        for round in 0..5 {
            let body = rig::prompt(&format!("moves {round}"), 3000);
            let first = served(&envoy, &pods, &body).await;
            let mut held = BTreeSet::from([first.pod.clone()]);
            let home = rig::index(&first.pod);
            pods[home].kill().await;
            for turn in 0..6 {
                let decision = served(&envoy, &pods, &body).await;
                assert_ne!(decision.pod, first.pod, "a dead pod serves nothing");
                let expected = if held.contains(&decision.pod) {
                    decision.chunks
                } else {
                    0
                };
                assert_eq!(
                    decision.matched, expected,
                    "turn {turn}: {decision:?} of {held:?}"
                );
                held.insert(decision.pod);
            }
            pods[home].revive().await;
        }
    }
}

#[tokio::test]
async fn every_request_to_a_dead_pod_is_answered() {
    let (mut pods, envoy) = start(2).await;
    // Ten prompts at home on each pod, at least.
    let bodies: Vec<_> = (0..40)
        .map(|i| rig::prompt(&format!("orphan {i}"), 1000))
        .collect();
    for body in &bodies {
        served(&envoy, &pods, body).await;
    }
    pods[1].kill().await;
    let all = bodies.iter().map(|body| send(&envoy, "", body));
    for reply in futures_util::future::join_all(all).await {
        assert_eq!(reply.status, 200);
        assert_ne!(reply.decision().pod, PODS[1]);
    }
}

#[tokio::test]
async fn an_error_status_earns_no_credit() {
    let (pods, envoy) = start(2).await;
    for status in [400, 404, 429, 500, 503] {
        let body = rig::prompt(&format!("status {status}"), 3000);
        let treatment = format!("status={status}");
        for _ in 0..2 {
            let reply = send(&envoy, &treatment, &body).await;
            assert_eq!(reply.status, status);
            let decision = reply.decision();
            assert_eq!(
                (decision.pod.as_str(), decision.matched),
                (PODS[only(&pods).0], 0),
                "{status}"
            );
        }
        let served_once = served(&envoy, &pods, &body).await;
        assert_eq!(served_once.matched, 0, "{status} left credit behind");
        // An error takes back only what it brought.
        send(&envoy, &treatment, &body).await;
        forget_received(&pods);
        let still = served(&envoy, &pods, &body).await;
        assert_eq!(
            (still.pod, still.matched),
            (served_once.pod, served_once.chunks),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_reset_before_the_first_byte_earns_no_credit_and_after_it_does() {
    let (pods, envoy) = start(2).await;
    let body = rig::prompt("reset", 3000);
    for _ in 0..2 {
        assert_eq!(send(&envoy, "reset", &body).await.status, 503);
        // A prompt that a pod has taken is not sent again.
        assert_eq!(pods.iter().map(|p| p.take().len()).sum::<usize>(), 1);
    }
    assert_eq!(
        served(&envoy, &pods, &body).await.matched,
        0,
        "after a reset"
    );

    let body = rig::prompt("half an answer", 3000);
    let mut conn = envoy.connect(Version::H1).await;
    assert!(
        conn.try_send(treated("half", &body)).await.is_err(),
        "the answer is cut"
    );
    let (pod, _) = only(&pods);
    let after = served(&envoy, &pods, &body).await;
    assert_eq!(
        (after.pod.as_str(), after.matched),
        (PODS[pod], after.chunks),
        "it did the work"
    );
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_earns_no_credit() {
    let (pods, envoy) = start(2).await;
    for version in [Version::H1, Version::H2] {
        let body = rig::prompt(&format!("leaves {version:?}"), 3000);
        let mut conn = envoy.connect(version).await;
        let request = treated("hang", &body);
        let waiting = tokio::spawn(async move { conn.try_send(request).await });
        let arrived = || async { pods.iter().any(|p| p.seen().iter().any(|s| s.complete)) };
        envoy.eventually("the pod has it", arrived).await;
        forget_received(&pods);
        waiting.abort();
        let _ = waiting.await;
        let undone = || async {
            let samples = envoy.prometheus().await;
            samples.sum("prefix_router_requests_in_flight", &[]) == Some(0.0)
        };
        envoy.eventually("the filter notices", undone).await;
        assert_eq!(served(&envoy, &pods, &body).await.matched, 0, "{version:?}");
    }
}

#[tokio::test]
async fn a_pod_comes_back() {
    let (mut pods, envoy) = start(2).await;
    let body = rig::prompt("back", 3000);
    let first = served(&envoy, &pods, &body).await;
    let home = rig::index(&first.pod);
    pods[home].kill().await;
    served(&envoy, &pods, &body).await;
    pods[home].revive().await;
    let mut serial = 0;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        serial += 1;
        let fresh = rig::prompt(&format!("fresh {serial}"), 1000);
        if served(&envoy, &pods, &fresh).await.pod == first.pod {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{} is never used again",
            first.pod
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn with_every_pod_gone_the_answer_is_503_and_says_so() {
    let (mut pods, envoy) = start(1).await;
    for pod in &mut pods {
        pod.kill().await;
    }
    let bodies: Vec<_> = (0..24)
        .map(|i| rig::prompt(&format!("nobody {i}"), 1000))
        .collect();
    for body in &bodies {
        assert_eq!(send(&envoy, "", body).await.status, 503);
    }
    for pod in &mut pods {
        pod.revive().await;
    }
    // Every pod is ejected: at once, all the same, as nobody healthy means everybody is tried.
    for body in &bodies {
        assert_eq!(send(&envoy, "", body).await.status, 200);
    }
}
