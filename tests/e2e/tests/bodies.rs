//! What passes the filter arrives at the pod byte for byte, in every framing and size, and the
//! decision does not depend on how a body was cut.

use bytes::Bytes;
use e2e::client::{self, Body, Conn, Version};
use e2e::envoy::Envoy;
use e2e::raw::Raw;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::{HeaderMap, Method, Request};
use serde_json::json;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const MIB: usize = 1 << 20;
const SOON: Duration = Duration::from_secs(5);

/// A chat request of exactly `bytes` bytes, the model first.
fn chat_of(bytes: usize) -> Bytes {
    let around = |text: &str| {
        format!(r#"{{"model":"sim","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    };
    let text = rig::text(&format!("chat of {bytes}"), bytes - around("").len());
    let body = around(&text);
    assert_eq!(body.len(), bytes);
    body.into()
}

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
            let body = chat_of(size);
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
    let body = chat_of(3 * MIB);
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
    let body = chat_of(100_000);
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
    let body = chat_of(50_000);
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
    let mut request = post(client::full(chat_of(20_000)), Framing::Length);
    request.headers_mut().insert(
        "content-encoding",
        http::HeaderValue::from_static("identity"),
    );
    let reply = envoy.connect(Version::H1).await.send(request).await;
    assert_eq!(reply.decision().reason, "cold");
}

/// Works as before.
async fn alive(envoy: &Envoy, pods: &[Stub], after: &str) {
    for pod in pods {
        pod.take();
    }
    let body = rig::prompt(after, 2000);
    let reply = envoy.connect(Version::H1).await.post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "after {after}");
    let decision = reply.decision();
    assert_eq!(decision.pod, PODS[only(pods).0], "after {after}");
    assert!(decision.chunks > 0, "after {after}: {decision:?}");
}

#[tokio::test]
async fn lengths_that_lie() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    let body = chat_of(5000);
    let text = std::str::from_utf8(&body).expect("ASCII");
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n");
    let lies = [
        (
            "longer than it is",
            format!("{head}content-length: 6000\r\n\r\n{text}"),
        ),
        (
            "shorter than it is",
            format!("{head}content-length: 4000\r\n\r\n{text}"),
        ),
        ("nothing", format!("{head}content-length: 0\r\n\r\n{text}")),
        (
            "negative",
            format!("{head}content-length: -1\r\n\r\n{text}"),
        ),
        (
            "enormous",
            format!("{head}content-length: 99999999999999999999999\r\n\r\n{text}"),
        ),
        (
            "fills 64 bits",
            format!("{head}content-length: 18446744073709551615\r\n\r\n{text}"),
        ),
        (
            "two of them",
            format!("{head}content-length: 5000\r\ncontent-length: 4000\r\n\r\n{text}"),
        ),
        (
            "chunked as well",
            format!("{head}content-length: 5000\r\ntransfer-encoding: chunked\r\n\r\n{text}"),
        ),
        (
            "a chunk longer than it is",
            format!("{head}transfer-encoding: chunked\r\n\r\nffff\r\n{text}"),
        ),
        (
            "no end chunk",
            format!("{head}transfer-encoding: chunked\r\n\r\n1388\r\n{text}\r\n"),
        ),
        (
            "a chunk of 2^64",
            format!("{head}transfer-encoding: chunked\r\n\r\n10000000000000000\r\n{text}"),
        ),
    ];
    for (what, bytes) in lies {
        let mut raw = Raw::open(envoy.address()).await;
        raw.write(bytes).await;
        // Long enough for it to be taken in, then the client goes.
        raw.read_until(Duration::from_millis(200), |_| false).await;
        raw.end().await;
        raw.read_until(Duration::from_millis(200), |_| false).await;
        raw.reset();
        alive(&envoy, &pods, what).await;
    }
    // HTTP/2 with a length that is too small, and one that is too large.
    for length in [4000, 6000] {
        let mut conn = envoy.connect(Version::H2).await;
        let mut request = post(client::pieces(body.clone(), 1000, None), Framing::Pieces);
        request
            .headers_mut()
            .insert("content-length", length.into());
        let _ = tokio::time::timeout(Duration::from_secs(1), conn.try_send(request)).await;
        alive(&envoy, &pods, "a lie in HTTP/2").await;
    }
}

#[tokio::test]
async fn headers_that_are_not_utf8() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    let body = chat_of(3000);
    let send = |headers: &[u8], path: &[u8]| {
        let mut bytes = b"POST ".to_vec();
        bytes.extend(path);
        bytes.extend(b" HTTP/1.1\r\n");
        bytes.extend(headers);
        bytes.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
        bytes.extend(&body);
        bytes
    };
    let odd: [&[u8]; 7] = [
        b"host: a\r\nx-name: caf\xe9\r\n",
        b"host: a\r\ncontent-type: application/json; name=\xff\xfe\r\n",
        b"host: a\r\ncontent-encoding: \xff\r\n",
        b"host: a\r\nx-vllm-cluster: vllm-0\xff\r\n",
        b"host: a\r\nx-prefix-router: \x80\xbf\r\n",
        b"host: caf\xe9\r\n",
        b"host: a\r\nauthorization: Bearer \xc3\x28\xa0\r\nexpect: \xff\r\n",
    ];
    for headers in odd {
        let what = String::from_utf8_lossy(headers).into_owned();
        let mut raw = Raw::open(envoy.address()).await;
        raw.write(send(headers, CHAT.as_bytes())).await;
        let status = raw.status(SOON).await;
        assert!(status.is_some(), "{what}: no answer");
        if status == Some(200) {
            let (_, seen) = only(&pods);
            assert!(seen.body == body, "{what}");
            if what.contains("x-name") {
                assert_eq!(
                    seen.headers["x-name"].as_bytes(),
                    b"caf\xe9",
                    "passed on as it was"
                );
            }
        }
        alive(&envoy, &pods, &what).await;
    }
    let mut raw = Raw::open(envoy.address()).await;
    raw.write(send(b"host: a\r\n", b"/v1/caf\xe9/chat/completions?q=\xff"))
        .await;
    assert!(raw.status(SOON).await.is_some());
    alive(&envoy, &pods, "an odd path").await;
}

/// Whatever the client claims, the filter's choice is what counts, with the shipped step that
/// strips the header before the filter and without it.
async fn nobody_names_a_cluster(stripped_before: bool) {
    let pods = Stub::three().await;
    let envoy = rig::envoy_with(
        pods.each_ref().map(Stub::port),
        2,
        |b| match stripped_before {
            true => b,
            false => b.with_manager("early_header_mutation_extensions", json!([])),
        },
    )
    .await;
    let prompt = rig::prompt("chosen", 3000).to_string();
    let home = envoy.connect(Version::H1).await;
    let home = { home }
        .send(post(client::full(prompt.clone()), Framing::Length))
        .await;
    let home = home.decision().pod;
    only(&pods);
    let bodies = [
        (Method::POST, CHAT, prompt.as_str()),
        (Method::POST, CHAT, "{\"messages\": [{"),
        (Method::POST, CHAT, ""),
        (Method::POST, CHAT, "[1, 2]"),
        (Method::POST, "/v1/audio/transcriptions", "{}"),
        (Method::POST, "/", "x"),
        (Method::GET, "/v1/models", ""),
        (Method::OPTIONS, CHAT, ""),
        (Method::DELETE, "/v1/responses/1", ""),
    ];
    for version in [Version::H1, Version::H2] {
        for (method, path, body) in &bodies {
            for claim in [
                "vllm-0",
                "vllm-1",
                "vllm-2",
                "vllm",
                "vllm-0/only",
                "nowhere",
                "",
            ] {
                let what = format!("{version:?} {method} {path} {body:.10} claims {claim:?}");
                let headers = [("x-vllm-cluster", claim), ("X-VLLM-Cluster", "vllm-1")];
                let body = client::full(body.to_string());
                let request = client::request(method.clone(), path, &headers, body);
                let reply = envoy.connect(version).await.send(request).await;
                assert_eq!(reply.status, 200, "{what}: {reply:?}");
                let (pod, seen) = only(&pods);
                let decision = reply.decision();
                assert_eq!(decision.pod, PODS[pod], "{what}");
                if decision.reason != "no_prompt" {
                    assert_eq!(decision.pod, home, "{what}");
                }
                let named: Vec<_> = seen.headers.get_all("x-vllm-cluster").iter().collect();
                assert!(named.iter().all(|n| *n == PODS[pod]), "{what}: {named:?}");
                assert!(named.len() <= 1, "{what}: {named:?}");
            }
        }
    }
}

#[tokio::test]
async fn nobody_names_a_cluster_as_shipped() {
    nobody_names_a_cluster(true).await;
}

#[tokio::test]
async fn nobody_names_a_cluster_by_the_filter_alone() {
    nobody_names_a_cluster(false).await;
}

#[tokio::test]
async fn hostile_bodies_pass_through() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 1).await;
    let deep = |open: &str, close: &str, n: usize| {
        let (open, close) = (open.repeat(n), close.repeat(n));
        format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":{open}1{close}}}]}}"
        )
    };
    let valid = rig::prompt("cut", 700).to_string();
    let mut bodies: Vec<Vec<u8>> = vec![
        deep("[", "]", 100_000).into(),
        deep("{\"a\":", "}", 100_000).into(),
        "[".repeat(400_000).into(),
        "{\"messages\":".repeat(40_000).into(),
        format!("{{\"model\":\"{}\",\"messages\":[]}}", "m".repeat(100_000)).into(),
        format!(
            "{{\"model\":\"m\",\"messages\":[{}0]}}",
            "{},".repeat(100_000)
        )
        .into(),
        format!("{{\"model\":\"m\",\"prompt\":[{}1]}}", "1,".repeat(200_000)).into(),
        format!(
            "{{\"model\":\"m\",\"prompt\":[{}\"\"]}}",
            "\"a\",".repeat(100_000)
        )
        .into(),
        b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\xc3\x28\"}]}"
            .to_vec(),
        br#"{"model":"m","messages":[{"role":"user","content":"\ud800\ud800 \u0000"}]}"#.to_vec(),
        br#"{"model":1e999,"messages":{"role":null}}"#.to_vec(),
        br#"{"model":"m","model":"n","messages":[],"messages":"x"}"#.to_vec(),
        vec![0; 300_000],
        vec![0xff; 300_000],
        b"\xef\xbb\xbf{}".to_vec(),
    ];
    bodies.extend(
        (0..valid.len())
            .step_by(23)
            .map(|cut| valid.as_bytes()[..cut].to_vec()),
    );
    let paths = [
        CHAT,
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/tokenize",
    ];
    for path in paths {
        let mut conn = envoy.connect(Version::H1).await;
        for (i, body) in bodies.iter().enumerate() {
            let headers = [("content-type", "application/json")];
            let request = client::request(Method::POST, path, &headers, client::full(body.clone()));
            let reply = conn.send(request).await;
            assert_eq!(reply.status, 200, "{path} {i}");
            let (pod, seen) = only(&pods);
            assert!(seen.body == *body, "{path} {i}: other bytes");
            assert_eq!(reply.decision().pod, PODS[pod], "{path} {i}");
        }
    }
    alive(&envoy, &pods, "hostile bodies").await;
}

#[tokio::test]
async fn clients_that_leave_in_the_middle_of_a_body() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let body = chat_of(2 * MIB);
    for version in [Version::H1, Version::H2] {
        for sent in [0, 1, 1000, 300_000, 600_000, 1_500_000] {
            let mut conn: Conn = envoy.connect(version).await;
            let (sender, slow) = client::slow();
            let answer =
                tokio::spawn(async move { conn.try_send(post(slow, Framing::Pieces)).await });
            for at in (0..sent).step_by(50_000) {
                let _ = sender.send(body.slice(at..(at + 50_000).min(sent))).await;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            answer.abort();
        }
    }
    alive(&envoy, &pods, "clients that left").await;
}
