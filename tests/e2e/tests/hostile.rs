//! Requests that mean no good: lies about lengths, odd headers, broken bodies, claimed clusters,
//! clients that leave.

use e2e::client::{self, Body, Conn, Version};
use e2e::envoy::Envoy;
use e2e::raw::Raw;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::{Method, Request};
use serde_json::json;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(5);

fn post(body: Body) -> Request<Body> {
    client::request(
        Method::POST,
        CHAT,
        &[("content-type", "application/json")],
        body,
    )
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
    let body = rig::chat_of(5000);
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
        let mut request = post(client::pieces(body.clone(), 1000, None));
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
    let body = rig::chat_of(3000);
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
    let home = { home }.send(post(client::full(prompt.clone()))).await;
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
    let body = rig::chat_of(2 << 20);
    for version in [Version::H1, Version::H2] {
        for sent in [0, 1, 1000, 300_000, 600_000, 1_500_000] {
            let mut conn: Conn = envoy.connect(version).await;
            let (sender, slow) = client::slow();
            let answer = tokio::spawn(async move { conn.try_send(post(slow)).await });
            for at in (0..sent).step_by(50_000) {
                let _ = sender.send(body.slice(at..(at + 50_000).min(sent))).await;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            answer.abort();
        }
    }
    alive(&envoy, &pods, "clients that left").await;
}
