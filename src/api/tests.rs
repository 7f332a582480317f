//! Calls against a table in memory.

use super::exchange::Exchange;
use super::{Response, MAX_BODY_BYTES};
use crate::config::Config;
use crate::metrics::Silent;
use crate::pods::load::LoadBoard;
use crate::router::{Env, Router};
use crate::sticky::ResponseKey;
use crate::store::MemoryStore;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::rc::Rc;

const NOW: f64 = 1_700_000_000.0;

struct Server {
    store: MemoryStore,
    router: Router,
}

fn push(call: &mut Exchange, piece: &[u8]) -> Option<Response> {
    call.push(piece.len(), &|start, most| {
        Some(piece.iter().copied().skip(start).take(most).collect())
    })
}

impl Server {
    fn new(more: Value) -> Self {
        let mut config = json!({
            "pods": [{"name": "a"}, {"name": "b"}, {"name": "1"}],
            "chunk_bytes": 16, "capacity_chunks": 1024, "api": {}
        });
        let keys = config.as_object_mut().unwrap();
        keys.extend(more.as_object().unwrap().clone());
        keys.retain(|_, value| !value.is_null());
        let config = Config::parse(config.to_string().as_bytes()).unwrap();
        Server {
            store: MemoryStore::default(),
            router: Router::new(config, Rc::new(LoadBoard::new("default", 1)), true),
        }
    }

    fn env(&self) -> Env<'_> {
        Env::new(&self.store, &Silent, &|| 1000)
    }

    /// All of shared data.
    fn written(&self) -> String {
        format!("{:?}", self.store)
    }

    fn send(&self, method: &str, path: &str, pieces: &[&[u8]]) -> Option<Response> {
        let headers = BTreeMap::from([(":method", method), (":path", path)]);
        let header = |name: &str| Some(headers.get(name)?.as_bytes().to_vec());
        let (mut call, refused) = Exchange::begin(&self.router, &header)?;
        if refused.is_some() {
            return refused;
        }
        for piece in pieces {
            if let Some(response) = push(&mut call, piece) {
                assert_eq!(call.end(&self.router, &self.env(), NOW), None);
                return Some(response);
            }
        }
        call.end(&self.router, &self.env(), NOW)
    }

    fn call(&self, resource: &str, body: &Value) -> (u16, Value) {
        let path = format!("/prefix-router/{resource}");
        let text = body.to_string();
        let response = self.send("POST", &path, &[text.as_bytes()]).unwrap();
        (
            response.status,
            serde_json::from_str(&response.body).unwrap(),
        )
    }

    fn ok(&self, resource: &str, body: Value) -> Value {
        let (status, answer) = self.call(resource, &body);
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    }
}

#[test]
fn a_query_names_the_longest_and_the_first_of_equals() {
    let server = Server::new(json!({}));
    let text = "0123456789abcdef".repeat(3);
    let ids = json!(["nobody", "a", 1, "1", "b"]);
    let query = |request: &str| server.ok("query", json!({"request": request, "server_ids": ids}));
    assert_eq!(
        query(&text),
        json!({"server_id": "nobody", "matched_chunks": 0, "chunks": 3,
               "scores": {"nobody": 0, "a": 0, "1": 0, "b": 0}})
    );
    let stored = server.ok("notify", json!({"request": text, "server_id": 1, "t": 1.5}));
    assert_eq!(stored, json!({"stored_chunks": 3, "evicted_chunks": 0}));
    let answer = query(&(text + "tail"));
    assert_eq!(answer["server_id"], json!(1), "as it was given");
    assert_eq!(answer["matched_chunks"], 3);
    assert_eq!(answer["scores"]["1"], 3);
}

#[test]
fn a_request_is_hashed_as_its_endpoint_would_be() {
    let server = Server::new(json!({}));
    let text = "x".repeat(160);
    let body = json!({"model": "m", "prompt": [text, "y".repeat(32)]});
    let request = json!({"path": "/v1/completions", "body": body});
    let stored = server.ok("notify", json!({"request": request, "server_id": "b"}));
    assert_eq!(stored["stored_chunks"], 12, "prompts are added up");
    let ids = json!(["a", "b"]);
    let answer = server.ok(
        "query",
        json!({"request": text, "model": "m", "server_ids": ids}),
    );
    assert_eq!(
        (&answer["server_id"], &answer["matched_chunks"]),
        (&json!("b"), &json!(10))
    );
    let answer = server.ok("query", json!({"request": text, "server_ids": ids}));
    assert_eq!(answer["matched_chunks"], 0, "another model");
    let counted = json!({"path": "/tokenize", "body": {"model": "m", "prompt": "z".repeat(64)}});
    let stored = server.ok("notify", json!({"request": counted, "server_id": "b"}));
    assert_eq!(stored["stored_chunks"], 0, "counting tokens fills no cache");
}

#[test]
fn what_a_notify_pushes_out_is_counted() {
    let server = Server::new(json!({"capacity_chunks": 64, "max_capacity_chunks": 64}));
    let notify = |seed: &str| {
        let text = format!("{seed:016}").repeat(32);
        server.ok("notify", json!({"request": text, "server_id": "a"}))
    };
    assert_eq!(notify("1")["evicted_chunks"], 0);
    assert_eq!(notify("2")["evicted_chunks"], 0);
    let third = notify("3");
    assert_eq!(third["stored_chunks"], 32);
    assert!((32..=36).contains(&third["evicted_chunks"].as_u64().unwrap()));
}

#[test]
fn bad_calls_are_refused_by_name_and_change_nothing() {
    let server = Server::new(json!({}));
    server.router.members(&server.env());
    let before = server.written();
    let text = "x".repeat(64);
    let ids = json!(["a"]);
    let cases = [
        ("query", json!([]), None),
        ("query", json!({"server_ids": ids}), Some("request")),
        (
            "query",
            json!({"request": null, "server_ids": ids}),
            Some("request"),
        ),
        (
            "query",
            json!({"request": 5, "server_ids": ids}),
            Some("request"),
        ),
        ("query", json!({"request": text}), Some("server_ids")),
        (
            "query",
            json!({"request": text, "server_ids": []}),
            Some("server_ids"),
        ),
        (
            "query",
            json!({"request": text, "server_ids": "a"}),
            Some("server_ids"),
        ),
        (
            "query",
            json!({"request": text, "server_ids": ["a", 1.5]}),
            Some("server_ids"),
        ),
        (
            "query",
            json!({"request": text, "server_ids": [null]}),
            Some("server_ids"),
        ),
        (
            "query",
            json!({"request": text, "server_ids": vec![1; 1025]}),
            Some("server_ids"),
        ),
        (
            "query",
            json!({"request": text, "model": 1, "server_ids": ids}),
            Some("model"),
        ),
        (
            "query",
            json!({"request": {"body": {}}, "server_ids": ids}),
            Some("request.path"),
        ),
        (
            "query",
            json!({"request": {"path": "/v1/models", "body": {}}, "server_ids": ids}),
            Some("request.path"),
        ),
        (
            "query",
            json!({"request": {"path": "/v1/completions"}, "server_ids": ids}),
            Some("request.body"),
        ),
        (
            "query",
            json!({"request": {"path": "/v1/completions", "body": {}}, "server_ids": ids}),
            Some("request.body"),
        ),
        (
            "query",
            json!({"request": {"path": "/v1/completions", "body": "x"}, "server_ids": ids}),
            Some("request.body"),
        ),
        ("notify", json!({"request": text}), Some("server_id")),
        (
            "notify",
            json!({"request": text, "server_id": "nobody"}),
            Some("server_id"),
        ),
        (
            "notify",
            json!({"request": text, "server_id": 7}),
            Some("server_id"),
        ),
        (
            "notify",
            json!({"request": text, "server_id": ["a"]}),
            Some("server_id"),
        ),
        (
            "notify",
            json!({"request": text, "server_id": "a", "t": "1"}),
            Some("t"),
        ),
        (
            "notify",
            json!({"request": text, "server_id": "a", "t": true}),
            Some("t"),
        ),
        (
            "notify",
            json!({"request": text, "server_id": "a", "t": NOW + 86_401.0}),
            Some("t"),
        ),
        ("explain", json!({}), Some("request")),
    ];
    for (resource, body, param) in cases {
        let (status, answer) = server.call(resource, &body);
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    for body in ["", "{", "\u{0}", "{\"request\": \"x\"} {}"] {
        let response = server.send("POST", "/prefix-router/notify", &[body.as_bytes()]);
        assert_eq!(response.unwrap().status, 400, "{body:?}");
    }
    let latin1: &[u8] = b"{\"request\": \"\xE9\", \"server_id\": \"a\"}";
    let response = server.send("POST", "/prefix-router/notify", &[latin1]);
    assert_eq!(response.unwrap().status, 400);
    assert_eq!(server.written(), before);
    let good = json!({"request": text, "server_id": "a", "t": NOW + 86_400.0});
    assert_eq!(server.ok("notify", good)["stored_chunks"], 4);
}

#[test]
fn only_resources_under_the_prefix_are_answered() {
    let server = Server::new(json!({}));
    let status = |method: &str, path: &str| Some(server.send(method, path, &[])?.status);
    assert_eq!(status("POST", "/v1/completions"), None);
    assert_eq!(status("POST", "/prefix-router2/query"), None);
    assert_eq!(status("POST", "/prefix-router"), Some(404));
    assert_eq!(status("GET", "/prefix-router/queries"), Some(404));
    assert_eq!(status("GET", "/prefix-router/query?x=1"), Some(405));
    assert_eq!(status("POST", "/prefix-router/query?x=1"), Some(400));
    let none = Server::new(json!({"api": null}));
    assert_eq!(none.send("POST", "/prefix-router/query", &[]), None);
}

#[test]
fn a_long_body_is_refused_at_its_end_and_an_endless_one_before() {
    let server = Server::new(json!({}));
    let path = "/prefix-router/query";
    let mut body = json!({"request": "x", "server_ids": ["a"]})
        .to_string()
        .into_bytes();
    body.resize(MAX_BODY_BYTES, b' ');
    assert_eq!(server.send("POST", path, &[&body]).unwrap().status, 200);
    let response = server.send("POST", path, &[&body, b" "]).unwrap();
    assert_eq!(response.status, 413);
    let error: Value = serde_json::from_str(&response.body).unwrap();
    assert!(error["error"]["message"].is_string());
    let endless = vec![body.as_slice(); 100];
    assert_eq!(server.send("POST", path, &endless).unwrap().status, 413);
    assert_eq!(server.send("POST", path, &[&body]).unwrap().status, 200);
}

#[test]
fn bodies_that_wait_share_a_bound() {
    let server = Server::new(json!({}));
    let header = |name: &str| match name {
        ":method" => Some(b"POST".to_vec()),
        ":path" => Some(b"/prefix-router/query".to_vec()),
        _ => None,
    };
    let begin = || Exchange::begin(&server.router, &header).unwrap().0;
    let piece = vec![b' '; MAX_BODY_BYTES];
    let mut calls: Vec<_> = (0..5).map(|_| begin()).collect();
    for call in &mut calls {
        assert_eq!(push(call, &piece), None);
    }
    let mut statuses = Vec::new();
    for call in &mut calls {
        let response = call.end(&server.router, &server.env(), NOW);
        statuses.push(response.unwrap().status);
    }
    assert_eq!(statuses, [400, 400, 400, 400, 413]);
    let mut again = begin();
    assert_eq!(push(&mut again, &piece), None);
    let response = again.end(&server.router, &server.env(), NOW);
    assert_eq!(response.unwrap().status, 400, "the others are gone");
}

#[test]
fn explain_knows_who_made_a_response() {
    let server = Server::new(json!({}));
    let about = ResponseKey::of(b"resp_1");
    let members = server.router.members(&server.env());
    server.router.made(&server.env(), about, &members[2]);
    let before = server.written();
    let body = json!({"model": "m", "input": "x".repeat(64), "previous_response_id": "resp_1"});
    for (path, body) in [
        ("/v1/responses", body),
        ("/v1/responses/resp_1", Value::Null),
    ] {
        let call = json!({"request": {"path": path, "body": body}});
        let answer = server.ok("explain", call);
        assert_eq!(answer["reason"], "sticky", "{path}: {answer}");
        assert_eq!(answer["detail"], Value::Null, "{path}");
        assert_eq!(answer["ranking"][0], "1", "{path}");
    }
    assert_eq!(server.written(), before);
}

#[test]
fn of_very_many_prompts_the_first_are_looked_up_stored_and_counted() {
    let server = Server::new(json!({"capacity_chunks": 4096, "max_capacity_chunks": 4096}));
    let prompts: Vec<_> = (0..300)
        .map(|i| format!("{i:04}{}", "x".repeat(60)))
        .collect();
    let request = json!({"path": "/v1/completions", "body": {"model": "m", "prompt": prompts}});
    let mut notify = json!({"request": request, "server_id": "a"});
    let chunks = json!(256 * 4);
    let answer = server.ok("notify", notify.clone());
    assert_eq!(answer["stored_chunks"], chunks);
    notify["server_ids"] = json!(["a"]);
    let answer = server.ok("query", notify);
    assert_eq!(
        (&answer["matched_chunks"], &answer["chunks"]),
        (&chunks, &chunks)
    );
    let last = json!({"model": "m", "prompt": prompts[299]});
    let query = json!({"request": {"path": "/v1/completions", "body": last}, "server_ids": ["a"]});
    assert_eq!(server.ok("query", query)["matched_chunks"], 0);
}

#[test]
fn explain_says_what_would_happen_and_changes_nothing() {
    let server = Server::new(json!({"match_bytes": 1024, "hold_bytes": 2048}));
    let text = "x".repeat(160);
    let request = |path: &str, body: Value| json!({"request": {"path": path, "body": body}});
    let body = json!({"model": "m", "prompt": text});
    let mut notify = request("/v1/completions", body.clone());
    notify["server_id"] = json!("b");
    server.ok("notify", notify);
    let before = server.written();
    let answer = server.ok("explain", request("/v1/completions", body));
    assert_eq!(
        (&answer["prompts"], &answer["chunks"]),
        (&json!(1), &json!(10))
    );
    assert_eq!(answer["matched"], json!({"a": 0, "b": 10, "1": 0}));
    assert_eq!(answer["ranking"][0], "b");
    assert_eq!(
        answer["costs"]["a"],
        json!({"in_flight": 0, "backlog_tokens": 0, "uncached_tokens": 40})
    );
    assert_eq!(
        (&answer["reason"], &answer["detail"]),
        (&json!("prefix"), &Value::Null)
    );
    assert_eq!(answer["identity"].as_str().unwrap().len(), 16);
    let raw = server.ok("explain", json!({"request": text, "model": "m"}));
    assert_eq!(raw, answer, "the same prompt as a text");

    let long = json!({"model": "m", "prompt": "x".repeat(5000)});
    let answer = server.ok("explain", request("/v1/completions", long));
    assert!(answer["chunks"].as_u64().unwrap() <= 1024 / 16, "{answer}");
    let late = json!({"prompt": "x".repeat(5000), "z": "m"});
    let answer = server.ok("explain", request("/v1/completions", late));
    assert_eq!(answer["detail"], "no_model");
    let first = server.ok("explain", request("/v1/models", json!({})));
    assert_eq!(
        (&first["reason"], &first["detail"]),
        (&json!("no_prompt"), &json!("endpoint"))
    );
    assert_eq!(first["identity"], Value::Null);
    for _ in 0..5 {
        assert_eq!(
            server.ok("explain", request("/v1/models", json!({}))),
            first
        );
    }
    assert_eq!(server.written(), before);
}
