//! The string server's HTTP API on its own listener, beside the traffic of the same Envoy.

use e2e::bootstrap::Bootstrap;
use e2e::client::{self, full, pieces, request, Conn, Reply, Version};
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::Stub;
use http::Method;
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";
const NOTIFY: &str = "/prefix-router/notify";

async fn start(concurrency: u32, keys: Value) -> ([Stub; 3], Envoy) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let change = |bootstrap: Bootstrap| bootstrap.with_plugin(keys);
    let envoy = rig::envoy_with(ports, concurrency, change).await;
    (pods, envoy)
}

async fn api(envoy: &Envoy) -> Conn {
    Conn::open(envoy.api_address(), Version::H1).await
}

/// A call over a connection of its own, so that any worker may get it.
async fn call(envoy: &Envoy, resource: &str, body: &Value) -> Value {
    let path = format!("/prefix-router/{resource}");
    let reply = api(envoy).await.post(&path, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/json");
    reply.json()
}

fn refused(reply: &Reply, status: u16, param: Value) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(
        reply.headers["content-type"], "application/json",
        "{reply:?}"
    );
    let error = &reply.json()["error"];
    assert_eq!(error["param"], param, "{error}");
    assert!(!error["message"].as_str().expect("a message").is_empty());
}

#[tokio::test]
async fn the_api_and_the_filter_share_one_table() {
    for concurrency in [1, 4] {
        let (pods, envoy) = start(concurrency, json!({})).await;
        let body = rig::prompt("told by another router", 4000);
        let told = json!({"path": CHAT, "body": body});
        let notify = json!({"request": told, "server_id": "vllm-2", "t": 1.5});
        let chunks = call(&envoy, "notify", &notify).await["stored_chunks"].clone();
        assert!(chunks.as_u64().expect("a number") >= 15);

        let explained = call(&envoy, "explain", &json!({"request": told})).await;
        assert_eq!(explained["reason"], "prefix");
        assert_eq!(explained["ranking"][0], "vllm-2");
        let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        assert_eq!(decision.pod, "vllm-2", "{decision:?}");
        assert_eq!(json!(decision.matched), chunks);
        assert_eq!(explained["matched"]["vllm-2"], chunks);

        let body = rig::prompt("seen by the filter", 4000);
        let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        let query = json!({"request": {"path": CHAT, "body": body}, "server_ids": PODS});
        for _ in 0..4 {
            let answer = call(&envoy, "query", &query).await;
            assert_eq!(answer["server_id"], decision.pod.as_str());
            assert_eq!(answer["matched_chunks"], decision.chunks);
            assert_eq!(answer["chunks"], decision.chunks);
        }
    }
}

#[tokio::test]
async fn answers_are_what_the_contract_says() {
    let keys = json!({ "chunk_bytes": 16 });
    let (_pods, envoy) = start(2, keys).await;
    let text = "0123456789abcdef".repeat(40);
    let ids = json!([7, "vllm-1", "vllm-0", "vllm-1"]);
    let answer = call(
        &envoy,
        "query",
        &json!({"request": text, "server_ids": ids}),
    )
    .await;
    let scores = json!({"7": 0, "vllm-1": 0, "vllm-0": 0});
    let want = json!({"server_id": 7, "matched_chunks": 0, "chunks": 40, "scores": scores});
    assert_eq!(answer, want);
    let notify = json!({"request": text, "server_id": "vllm-0"});
    let stored = call(&envoy, "notify", &notify).await;
    assert_eq!(stored, json!({"stored_chunks": 40, "evicted_chunks": 0}));
    let answer = call(
        &envoy,
        "query",
        &json!({"request": text, "server_ids": ids}),
    )
    .await;
    let scores = json!({"7": 0, "vllm-1": 0, "vllm-0": 40});
    let want = json!({"server_id": "vllm-0", "matched_chunks": 40, "chunks": 40, "scores": scores});
    assert_eq!(answer, want);
}

#[tokio::test]
async fn bad_calls_have_json_errors() {
    let (_pods, envoy) = start(1, json!({})).await;
    let query = "/prefix-router/query";
    // Envoy closes an HTTP/1 connection with a 400.
    let post = |path: &'static str, body: String| {
        let envoy = &envoy;
        async move {
            let call = request(Method::POST, path, &[], full(body));
            api(envoy).await.send(call).await
        }
    };
    let mut conn = api(&envoy).await;
    refused(&conn.get("/prefix-router/nothing").await, 404, Value::Null);
    refused(&conn.get("/elsewhere").await, 404, Value::Null);
    let reply = conn.get(query).await;
    assert_eq!(reply.headers["allow"], "POST");
    refused(&reply, 405, Value::Null);
    refused(&post(query, "".into()).await, 400, Value::Null);
    refused(&post(query, "{".into()).await, 400, Value::Null);
    let bad = [
        (
            query,
            json!({"request": "x", "server_ids": []}),
            "server_ids",
        ),
        (
            NOTIFY,
            json!({"request": "x", "server_id": "vllm-9"}),
            "server_id",
        ),
        (
            NOTIFY,
            json!({"request": "x", "server_id": "vllm-1", "t": 1e12}),
            "t",
        ),
    ];
    for (path, body, param) in bad {
        refused(&post(path, body.to_string()).await, 400, json!(param));
    }
}

#[tokio::test]
async fn only_an_instance_with_api_answers() {
    let (pods, envoy) = start(1, json!({})).await;
    let body = json!({"request": "x", "server_ids": PODS});
    let mut conn = envoy.connect(Version::H1).await;
    let reply = conn.post("/prefix-router/query", &body).await;
    let (_, seen) = e2e::stub::only(&pods);
    assert_eq!(seen.path, "/prefix-router/query", "{reply:?}");
}

/// A text of this many bytes that no chunk of shares its place with another.
fn long(bytes: usize) -> Value {
    json!({"request": rig::text("long", bytes), "server_id": "vllm-0", "server_ids": PODS})
}

#[tokio::test]
async fn bodies_up_to_16_mib_are_taken_in_every_framing() {
    let keys = json!({"max_capacity_chunks": 65536, "capacity_chunks": 65536, "max_pods": 8});
    let (_pods, envoy) = start(2, keys).await;
    const MOST: usize = 16 << 20;
    let around = long(0).to_string().len();
    let body = long(MOST - around).to_string();
    assert_eq!(body.len(), MOST);
    let chunks = (MOST - around) / 256;
    let mut told = 0;
    for version in [Version::H1, Version::H2] {
        for trailers in [None, Some(http::HeaderMap::new())] {
            for path in ["/prefix-router/notify", "/prefix-router/query"] {
                let body = match &trailers {
                    None => full(body.clone()),
                    Some(trailers) => pieces(body.clone(), 100_000, Some(trailers.clone())),
                };
                let mut conn = Conn::open(envoy.api_address(), version).await;
                let reply = conn.send(request(Method::POST, path, &[], body)).await;
                assert_eq!(reply.status, 200, "{version:?} {reply:?}");
                let answer = reply.json();
                let field = ["stored_chunks", "matched_chunks"][told % 2];
                told += 1;
                assert_eq!(answer[field], chunks, "{version:?} {answer}");
            }
        }
        let mut conn = Conn::open(envoy.api_address(), version).await;
        let over = long(MOST + 1 - around).to_string();
        let reply = conn
            .send(request(
                Method::POST,
                "/prefix-router/notify",
                &[],
                full(over),
            ))
            .await;
        refused(&reply, 413, Value::Null);
    }
    let (sender, body) = client::slow();
    let mut conn = api(&envoy).await;
    let sending = tokio::spawn(async move {
        for piece in [
            r#"{"request": "sl"#,
            r#"owly", "server_ids""#,
            r#": ["vllm-0"]}"#,
        ] {
            sender.send(piece.into()).await.expect("taken");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let reply = conn
        .send(request(Method::POST, "/prefix-router/query", &[], body))
        .await;
    assert_eq!(reply.json()["server_id"], "vllm-0");
    sending.await.expect("sent");
}
