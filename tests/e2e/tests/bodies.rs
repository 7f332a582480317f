//! What passes the filter arrives at the pod byte for byte, in every framing and size, and the
//! decision does not depend on how a body was cut.

use bytes::Bytes;
use e2e::client::{self, Body, Version};
use e2e::raw::Raw;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::{HeaderMap, Method, Request};
use serde_json::json;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

const MIB: usize = 1 << 20;

const SOON: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Framing {
    Length,
    Pieces,
    Trailers,
}

fn framed(body: &Bytes, framing: Framing) -> Body {
    let trailers = || {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("x-checksum"),
            http::HeaderValue::from_static("none"),
        )])
    };
    match framing {
        Framing::Length => client::full(body.clone()),
        Framing::Pieces => client::pieces(body.clone(), 10_007, None),
        Framing::Trailers => client::pieces(body.clone(), 70_001, Some(trailers())),
    }
}

fn post(body: Body, framing: Framing) -> Request<Body> {
    let mut headers = vec![("content-type", "application/json")];
    if framing == Framing::Trailers {
        headers.extend([("te", "trailers"), ("trailer", "x-checksum")]);
    }
    client::request(Method::POST, CHAT, &headers, body)
}

/// Every size in every framing over one Envoy: intact, and decided alike.
async fn every_size_in_every_framing(concurrency: u32, keep_trailers: bool) {
    let pods = Stub::three().await;
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), concurrency, |b| {
        if keep_trailers {
            b.with_http1_trailers()
        } else {
            b
        }
    })
    .await;
    for middle in [16 << 10, MIB, 5 * MIB] {
        for size in [middle - 1, middle, middle + 1] {
            let body = rig::chat_of(size);
            let mut first = None;
            for version in [Version::H1, Version::H2] {
                let mut conn = envoy.connect(version).await;
                for framing in [Framing::Length, Framing::Pieces, Framing::Trailers] {
                    let what = format!("{size} bytes, {version:?}, {framing:?}");
                    let reply = conn.send(post(framed(&body, framing), framing)).await;
                    assert_eq!(reply.status, 200, "{what}: {reply:?}");
                    let (pod, seen) = only(&pods);
                    assert!(seen.complete, "{what}");
                    assert_eq!(seen.body.len(), size, "{what}");
                    assert!(seen.body == body, "{what}: other bytes");
                    if framing == Framing::Trailers && keep_trailers {
                        assert!(
                            seen.trailers.is_some_and(|t| t.contains_key("x-checksum")),
                            "{what}"
                        );
                    }
                    let decision = reply.decision();
                    assert_eq!(decision.pod, PODS[pod], "{what}");
                    match &first {
                        None => {
                            assert_eq!(
                                (decision.matched, decision.reason.as_str()),
                                (0, "cold"),
                                "{what}"
                            );
                            assert!(decision.chunks > 0, "{what}");
                            first = Some(decision);
                        }
                        Some(first) => {
                            assert_eq!(decision.pod, first.pod, "{what}");
                            assert_eq!(decision.hit(), (first.chunks, first.chunks), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_in_every_framing_with_1_worker() {
    every_size_in_every_framing(1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_in_every_framing_with_4_workers_and_http1_trailers() {
    every_size_in_every_framing(4, true).await;
}

#[tokio::test]
async fn a_long_body_is_decided_before_its_end() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let body = rig::chat_of(3 * MIB);
    for version in [Version::H1, Version::H2] {
        for declared in [true, false] {
            let what = format!("{version:?}, content-length: {declared}");
            let mut conn = envoy.connect(version).await;
            let (sender, slow) = client::slow();
            let mut request = post(slow, Framing::Pieces);
            if declared {
                request
                    .headers_mut()
                    .insert("content-length", body.len().into());
            }
            let answer = tokio::spawn(async move { conn.send(request).await });
            let half = 700_000;
            for at in (0..half).step_by(50_000) {
                sender
                    .send(body.slice(at..half.min(at + 50_000)))
                    .await
                    .expect("reads on");
            }
            let begun = || async { pods.iter().any(|p| !p.seen().is_empty()) };
            envoy
                .eventually(&format!("{what}: the pod sees it"), begun)
                .await;
            assert!(!answer.is_finished(), "{what}");
            sender.send(body.slice(half..)).await.expect("reads on");
            drop(sender);
            let reply = answer.await.expect("sent");
            assert_eq!(reply.status, 200, "{what}");
            assert!(only(&pods).1.body == body, "{what}: other bytes");
        }
    }
}

#[tokio::test]
async fn a_short_body_is_held_until_its_end() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    let body = rig::chat_of(100_000);
    for version in [Version::H1, Version::H2] {
        let mut conn = envoy.connect(version).await;
        let (sender, slow) = client::slow();
        let answer = tokio::spawn(async move { conn.send(post(slow, Framing::Pieces)).await });
        sender.send(body.slice(..99_990)).await.expect("reads on");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(
            pods.iter().all(|p| p.seen().is_empty()),
            "decided without the last bytes"
        );
        sender.send(body.slice(99_990..)).await.expect("reads on");
        drop(sender);
        assert_eq!(answer.await.expect("sent").status, 200);
        assert!(only(&pods).1.body == body);
    }
}

#[tokio::test]
async fn a_model_that_comes_late_is_waited_for() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let late = |model: &str, bytes: usize| {
        let messages = json!([{ "role": "user", "content": rig::text("late", bytes) }]);
        format!("{{\"messages\": {messages}, \"model\": \"{model}\"}}")
    };
    let mut conn = envoy.connect(Version::H1).await;
    for (model, matches) in [("a", false), ("a", true), ("b", false), ("b", true)] {
        let body = late(model, 800_000);
        let reply = conn
            .send(post(client::full(body.clone()), Framing::Length))
            .await;
        let decision = reply.decision();
        assert_eq!(decision.matched > 0, matches, "{model}: {decision:?}");
        assert!(only(&pods).1.body == body);
    }
    // Later than the filter may hold: routed all the same, and intact.
    for framing in [Framing::Length, Framing::Pieces, Framing::Trailers] {
        for version in [Version::H1, Version::H2] {
            let body = Bytes::from(late("c", 2 * MIB));
            let mut conn = envoy.connect(version).await;
            let reply = conn.send(post(framed(&body, framing), framing)).await;
            assert_eq!(reply.status, 200, "{version:?} {framing:?}");
            assert!(only(&pods).1.body == body, "{version:?} {framing:?}");
        }
    }
}

#[tokio::test]
async fn expect_continue_is_answered() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    let body = rig::chat_of(50_000);
    let mut raw = Raw::open(envoy.address()).await;
    raw.write(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ))
    .await;
    assert_eq!(raw.status(SOON).await, Some(100));
    raw.write(&body).await;
    assert_eq!(raw.status(SOON).await, Some(200));
    assert!(only(&pods).1.body == body);
}

#[tokio::test]
async fn upgrades_and_tunnels_are_not_held() {
    let pods = Stub::three().await;
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 1, |b| b.with_connect()).await;
    for method in ["GET", "POST"] {
        let mut raw = Raw::open(envoy.address()).await;
        raw.write(format!(
            "{method} {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        ))
        .await;
        assert_eq!(
            raw.status(SOON).await,
            Some(101),
            "{method}: {}",
            raw.text()
        );
        raw.received.clear();
        raw.write("ping").await;
        assert!(
            raw.read_until(SOON, |b| b.ends_with(b"ping")).await,
            "{method}: no echo"
        );
        let (_, seen) = only(&pods);
        assert_eq!(seen.method.as_str(), method);
    }
    // The stub knows no CONNECT, so any answer will do, as long as there is one.
    let mut raw = Raw::open(envoy.address()).await;
    raw.write("CONNECT somewhere:80 HTTP/1.1\r\nhost: somewhere:80\r\n\r\n")
        .await;
    assert!(raw.status(SOON).await.is_some(), "CONNECT hangs");
}

#[tokio::test]
async fn a_compressed_body_is_routed_by_load_and_left_alone() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    for encoding in ["gzip", "br", "zstd", "GZIP", "deflate, gzip"] {
        for framing in [Framing::Length, Framing::Pieces, Framing::Trailers] {
            for version in [Version::H1, Version::H2] {
                let what = format!("{encoding} {framing:?} {version:?}");
                // Whether it is really compressed is not for the filter to find out.
                let body: Bytes = (0..MIB + 1).map(|i| (i * 31 % 251) as u8).collect();
                let mut request = post(framed(&body, framing), framing);
                let value = encoding.parse().expect("a value");
                request.headers_mut().insert("content-encoding", value);
                let reply = envoy.connect(version).await.send(request).await;
                let decision = reply.decision();
                assert_eq!(decision.reason, "no_prompt", "{what}");
                assert!(!decision.detail.is_empty(), "{what}: {decision:?}");
                let (pod, seen) = only(&pods);
                assert!(seen.body == body, "{what}: other bytes");
                assert_eq!(decision.pod, PODS[pod], "{what}");
            }
        }
    }
    // Not compressed, and it says so.
    let mut request = post(client::full(rig::chat_of(20_000)), Framing::Length);
    request.headers_mut().insert(
        "content-encoding",
        http::HeaderValue::from_static("identity"),
    );
    let reply = envoy.connect(Version::H1).await.send(request).await;
    assert_eq!(reply.decision().reason, "cold");
}
