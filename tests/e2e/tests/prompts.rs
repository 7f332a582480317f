//! What a prompt is: every endpoint, what keeps prompts apart, what changes nothing, and what
//! carries no prompt at all.

use e2e::client::{self, Version};
use e2e::decision::Decision;
use e2e::rig::{self, ask, PODS};
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";

async fn ports() -> ([Stub; 3], [u16; 3]) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    (pods, ports)
}

#[tokio::test]
async fn a_prompt_shorter_than_a_chunk_is_cold() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 1).await;
    for _ in 0..2 {
        let decision = ask(&envoy, &pods, Version::H1, CHAT, &rig::prompt("short", 20)).await;
        assert_eq!((decision.reason.as_str(), decision.hit()), ("cold", (0, 0)));
    }
}

#[tokio::test]
async fn identity_keeps_prompts_apart() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 2).await;
    let base = rig::prompt("identity", 2000);
    let first = ask(&envoy, &pods, Version::H1, CHAT, &base).await;
    assert_eq!((first.reason.as_str(), first.matched), ("cold", 0));
    let tool = |name: &str| json!([{ "type": "function", "function": { "name": name, "parameters": {} } }]);
    let others = json!({
        "model": ["another", "sim-lora"],
        "cache_salt": ["tenant a", "tenant b"],
        "tools": [tool("look_up"), tool("look_down"), tool("look_up").as_array().map(|t| [t.clone(), t.clone()].concat())],
        "tool_choice": ["none", "required", { "type": "function", "function": { "name": "look_up" } }],
        "chat_template": ["{{ messages }}", "{{ messages }} "],
        "chat_template_kwargs": [{ "enable_thinking": false }, { "enable_thinking": true }],
        "reasoning_effort": ["low", "high"],
        "documents": [[{ "title": "a", "text": "b" }], [{ "title": "ab", "text": "" }]],
        "mm_processor_kwargs": [{ "num_crops": 4 }, { "num_crops": 5 }],
        "add_special_tokens": [true, false],
        "truncate_prompt_tokens": [100, 200],
    });
    for (key, values) in others.as_object().expect("an object") {
        for value in values.as_array().expect("an array") {
            let mut body = base.clone();
            body[key] = value.clone();
            let what = format!("{key}: {value}");
            let cold = ask(&envoy, &pods, Version::H1, CHAT, &body).await;
            assert_eq!((cold.reason.as_str(), cold.matched), ("cold", 0), "{what}");
            let again = ask(&envoy, &pods, Version::H2, CHAT, &body).await;
            assert_eq!(
                (again.reason.as_str(), again.matched),
                ("prefix", again.chunks),
                "{what}"
            );
            assert_eq!(again.pod, cold.pod, "{what}");
        }
    }
    let again = ask(&envoy, &pods, Version::H1, CHAT, &base).await;
    assert_eq!((again.pod, again.matched), (first.pod, first.chunks));
}

#[tokio::test]
async fn spelling_and_sampling_change_nothing() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 2).await;
    let text = format!("Grüße \"an\" alle \\ {}", rig::text("spelling", 2000));
    let body = json!({ "model": "sim", "messages": [{ "role": "user", "content": text }] });
    let first = ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    assert_eq!(first.reason, "cold");
    let with = |key: &str, value: Value| {
        let mut body = body.clone();
        body[key] = value;
        body.to_string()
    };
    let parts = |part: Value| {
        json!({ "model": "sim", "messages": [{ "role": "user", "content": [part] }] }).to_string()
    };
    let escaped: String = text
        .chars()
        .map(|c| format!("\\u{:04x}", c as u32))
        .collect();
    let content = json!(text).to_string();
    let spellings = [
        with("temperature", json!(0.5)),
        with("max_tokens", json!(77)),
        with("stream", json!(true)),
        with("user", json!("somebody")),
        with("seed", json!(1)),
        serde_json::to_string_pretty(&body).expect("JSON"),
        format!("{{\"messages\":[{{\"content\":{content},\"role\":\"user\"}}],\"model\":\"sim\"}}"),
        format!("{{\"messages\":[{{\"content\":\"{escaped}\",\"role\":\"user\"}}],\"model\":\"\\u0073im\"}}"),
        format!("\n\t {{ \"model\" : \"sim\" , \"messages\" : [ {{ \"role\" : \"user\", \"content\" : {content} }} ] }}\r\n"),
        parts(json!({ "type": "text", "text": text })),
        parts(json!({ "text": text, "type": "text", "cache_control": { "type": "ephemeral" } })),
    ];
    for spelling in spellings {
        let request = client::request(Method::POST, CHAT, &[], client::full(spelling.clone()));
        let reply = envoy.connect(Version::H1).await.send(request).await;
        assert_eq!(only(&pods).1.body, spelling, "other bytes");
        let decision = reply.decision();
        assert_eq!(decision.pod, first.pod, "{spelling:.90}");
        assert_eq!(
            decision.hit(),
            (first.chunks, first.chunks),
            "{spelling:.90}"
        );
    }
}

#[tokio::test]
async fn every_endpoint_is_understood() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 2).await;
    let mut serial = 0;
    let mut text = |bytes| {
        serial += 1;
        rig::text(&format!("endpoint {serial}"), bytes)
    };
    let ids = |start: u32, n: u32| (start..start + n).collect::<Vec<_>>();
    let bodies = [
        (
            CHAT,
            json!({ "messages": [{ "role": "system", "content": text(900) }, { "role": "user", "content": text(900) }] }),
        ),
        ("/v1/completions", json!({ "prompt": text(2000) })),
        (
            "/v1/completions",
            json!({ "prompt": [text(1000), text(2000), text(700)] }),
        ),
        ("/v1/completions", json!({ "prompt": ids(1000, 900) })),
        (
            "/v1/completions",
            json!({ "prompt": [ids(5000, 600), ids(7000, 500)] }),
        ),
        (
            "/v1/responses",
            json!({ "instructions": text(600), "input": text(900) }),
        ),
        (
            "/v1/responses",
            json!({ "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": text(900) }] },
            { "type": "function_call", "name": "f", "arguments": "{}", "call_id": "1" },
            { "type": "function_call_output", "call_id": "1", "output": text(600) },
        ] }),
        ),
        (
            "/v1/messages",
            json!({ "system": text(800), "max_tokens": 4, "messages": [{ "role": "user", "content": text(900) }] }),
        ),
        (
            "/v1/messages",
            json!({ "system": [{ "type": "text", "text": text(800) }], "max_tokens": 4, "messages": [
            { "role": "user", "content": [{ "type": "text", "text": text(900) }] },
        ] }),
        ),
        ("/v1/embeddings", json!({ "input": text(2000) })),
        (
            "/v1/embeddings",
            json!({ "input": [text(1000), text(1000)] }),
        ),
    ];
    let spellings = |path: &str| {
        [
            path.to_string(),
            format!("/team-a{path}"),
            format!("{path}/"),
            format!("{path}?api-version=1"),
            path.replace('/', "//"),
        ]
    };
    for (path, mut body) in bodies {
        body["model"] = json!("sim");
        let mut first: Option<Decision> = None;
        for spelling in spellings(path) {
            let decision = ask(&envoy, &pods, Version::H1, &spelling, &body).await;
            let what = format!("{spelling} {:.60} {decision:?}", body.to_string());
            match &first {
                None => {
                    assert_eq!(
                        (decision.reason.as_str(), decision.matched),
                        ("cold", 0),
                        "{what}"
                    );
                    assert!(decision.chunks >= 5, "{what}");
                    first = Some(decision);
                }
                Some(first) => {
                    assert_eq!(decision.pod, first.pod, "{what}");
                    assert_eq!(decision.reason, "prefix", "{what}");
                    assert_eq!(decision.hit(), (first.chunks, first.chunks), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn counting_tokens_asks_and_teaches_nothing() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 1).await;
    let messages = json!([{ "role": "user", "content": rig::text("counted", 2000) }]);
    let body = json!({ "model": "sim", "messages": messages });
    for (counting, serving) in [
        ("/tokenize", CHAT),
        ("/v1/messages/count_tokens", "/v1/messages"),
    ] {
        let mut body = body.clone();
        body["model"] = json!(counting);
        for _ in 0..3 {
            let decision = ask(&envoy, &pods, Version::H1, counting, &body).await;
            assert_eq!(
                (decision.reason.as_str(), decision.matched),
                ("cold", 0),
                "{counting}"
            );
            assert!(decision.chunks > 0, "{counting}");
        }
        let served = ask(&envoy, &pods, Version::H1, serving, &body).await;
        assert_eq!(served.matched, 0, "{serving}");
        let counted = ask(&envoy, &pods, Version::H1, counting, &body).await;
        assert_eq!(
            (counted.pod, counted.matched),
            (served.pod, served.chunks),
            "{counting}"
        );
    }
}

#[tokio::test]
async fn what_carries_no_prompt_is_routed_by_load() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 1).await;
    let chat = rig::prompt("no prompt", 1000).to_string();
    let requests = [
        (Method::GET, "/v1/models", ""),
        (Method::GET, CHAT, ""),
        (Method::HEAD, "/v1/models", ""),
        (Method::DELETE, "/v1/responses/resp_1", ""),
        (Method::PUT, CHAT, chat.as_str()),
        (
            Method::POST,
            "/v1/load_lora_adapter",
            "{\"lora_name\": \"a\"}",
        ),
        (Method::POST, "/v1/audio/transcriptions", chat.as_str()),
        (Method::POST, "/v1/chat/completions/x", chat.as_str()),
        (Method::POST, "/chat/completion", chat.as_str()),
        (Method::POST, CHAT, ""),
        (Method::POST, CHAT, "not JSON"),
        (Method::POST, CHAT, "{\"messages\": 5}"),
        (Method::POST, CHAT, "{\"model\": \"m\"}"),
        (Method::POST, CHAT, "null"),
    ];
    for version in [Version::H1, Version::H2] {
        let mut conn = envoy.connect(version).await;
        for (method, path, body) in &requests {
            let what = format!("{version:?} {method} {path} {body:.20}");
            let body_sent = client::full(body.to_string());
            let reply = conn
                .send(client::request(method.clone(), path, &[], body_sent))
                .await;
            assert_eq!(reply.status, 200, "{what}");
            let (pod, seen) = only(&pods);
            assert_eq!(seen.body, *body, "{what}");
            let decision = reply.decision();
            assert_eq!(
                (decision.pod.as_str(), decision.reason.as_str()),
                (PODS[pod], "no_prompt"),
                "{what}"
            );
            assert!(!decision.detail.is_empty(), "{what}: {decision:?}");
        }
    }
}
