//! Held bodies and Envoy's limits: never a 413, and a body that does not move is not waited for.

use bytes::Bytes;
use e2e::bootstrap::Bootstrap;
use e2e::client::{self, Body, Reply, Version};
use e2e::envoy::Envoy;
use e2e::raw::Raw;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::json;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
/// Waiting for a body that stalls ends within this.
const SOON: Duration = Duration::from_secs(20);

/// Nothing raises the limit of the listener.
async fn limited(bytes: u32, concurrency: u32) -> ([Stub; 3], Envoy) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let limit = |b: Bootstrap| b.with_buffer_limit(bytes);
    let envoy = rig::envoy_with(ports, concurrency, limit).await;
    (pods, envoy)
}

async fn send(envoy: &Envoy, version: Version, body: Body) -> Reply {
    let headers = [("content-type", "application/json")];
    let request = client::request(Method::POST, CHAT, &headers, body);
    envoy.connect(version).await.send(request).await
}

fn intact(pods: &[Stub], reply: &Reply, body: &Bytes, what: &str) {
    assert_eq!(reply.status, 200, "{what}: {reply:?}");
    let (pod, seen) = only(pods);
    assert!(seen.body == *body, "{what}: other bytes");
    assert_eq!(reply.decision().pod, PODS[pod], "{what}");
}

/// A limit above `hold_bytes` is enough, however fast the client sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_client_meets_no_limit() {
    let (pods, envoy) = limited(1 << 20, 2).await;
    let messages = json!([{ "role": "user", "content": rig::text("late", 8 << 20) }]);
    let late = Bytes::from(format!("{{\"messages\": {messages}, \"model\": \"m\"}}"));
    for round in 0..8 {
        for version in [Version::H1, Version::H2] {
            let bodies = [
                client::full(late.clone()),
                client::pieces(late.clone(), 65_536, None),
            ];
            for body in bodies {
                let reply = send(&envoy, version, body).await;
                let what = format!("{version:?}, round {round}");
                intact(&pods, &reply, &late, &what);
                assert_eq!(reply.decision().detail, "no_model", "{what}");
            }
        }
    }
}

/// A limit below what the filter would like to see: the body is decided on what Envoy may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_limit_costs_a_pause_and_part_of_the_prompt() {
    let (pods, envoy) = limited(32_768, 2).await;
    let body = rig::chat_of(300_000);
    let mut first = None;
    for version in [Version::H1, Version::H1, Version::H2] {
        let begun = Instant::now();
        let reply = send(&envoy, version, client::full(body.clone())).await;
        let what = format!("{version:?}");
        intact(&pods, &reply, &body, &what);
        assert!(begun.elapsed() < SOON, "{what}: {:?}", begun.elapsed());
        let decision = reply.decision();
        // HTTP/2 has a window of its own, which may let all of the body in.
        if version == Version::H1 {
            assert_eq!(decision.detail, "stalled", "{what}: {decision:?}");
            assert!(decision.chunks > 10, "{what}: {decision:?}");
        }
        match &first {
            None => first = Some(decision),
            Some(first) => {
                assert_eq!(decision.pod, first.pod, "{what}");
                assert!(decision.matched > 10, "{what}: {decision:?}");
            }
        }
    }
}

/// A client that stops in the middle: the pod hears of the request, and gets the rest when it comes.
#[tokio::test]
async fn a_client_that_pauses_is_decided_on_what_came() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let body = rig::chat_of(200_000);
    for version in [Version::H1, Version::H2] {
        let what = format!("{version:?}");
        let (sender, slow) = client::slow();
        let mut conn = envoy.connect(version).await;
        let headers = [("content-type", "application/json")];
        let request = client::request(Method::POST, CHAT, &headers, slow);
        let answer = tokio::spawn(async move { conn.send(request).await });
        sender.send(body.slice(..120_000)).await.expect("reads on");
        let begun = || async { pods.iter().any(|p| !p.seen().is_empty()) };
        envoy.within(SOON, &what, begun).await;
        // A piece that comes later is not looked at any more, and neither is a second pause.
        sender
            .send(body.slice(120_000..150_000))
            .await
            .expect("reads on");
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert!(!answer.is_finished(), "{what}");
        sender.send(body.slice(150_000..)).await.expect("reads on");
        drop(sender);
        let reply = answer.await.expect("sent");
        let detail = reply.decision().detail;
        intact(&pods, &reply, &body, &what);
        assert_eq!(detail, "stalled", "{what}");
    }
}

/// Many at once, of which some leave while they wait; then all is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_stall_and_some_that_leave() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let body = rig::chat_of(60_000);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut waiting = Vec::new();
    for _ in 0..100 {
        let mut raw = Raw::open(envoy.address()).await;
        raw.write(&head).await;
        raw.write(&body[..40_000]).await;
        waiting.push(raw);
    }
    for raw in waiting.split_off(50) {
        raw.reset();
    }
    let heard = || async { pods.iter().map(|pod| pod.seen().len()).sum::<usize>() >= 50 };
    envoy
        .within(SOON, "those that stayed are decided", heard)
        .await;
    for raw in &mut waiting {
        raw.write(&body[40_000..]).await;
    }
    for mut raw in waiting {
        assert_eq!(raw.status(SOON).await, Some(200));
    }
    for pod in &pods {
        for seen in pod.take() {
            assert!(!seen.complete || seen.body == body);
        }
    }
    let reply = send(&envoy, Version::H1, client::full(body.clone())).await;
    intact(&pods, &reply, &body, "afterwards");
    assert_eq!(envoy.crashes(), Vec::<String>::new());
    let idle = || async {
        let metrics = envoy.prometheus().await;
        metrics.sum("prefix_router_requests_in_flight", &[]) == Some(0.0)
    };
    envoy.eventually("nothing is in flight", idle).await;
}
