//! Which pod a request goes to, and what the filter says about it.

use e2e::client::{self, Conn, Version};
use e2e::decision::{Decision, HEADER};
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use http::Method;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const CHAT: &str = "/v1/chat/completions";

async fn ports() -> ([Stub; 3], [u16; 3]) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    (pods, ports)
}

/// Connections that each worker has accepted.
async fn connections(envoy: &Envoy, concurrency: u32) -> Vec<u64> {
    let listener = envoy.address().to_string().replace(':', "_");
    let mut all = vec![];
    for worker in 0..concurrency {
        let name = format!("listener.{listener}.worker_{worker}.downstream_cx_total");
        all.push(envoy.stat(&name).await);
    }
    all
}

async fn turns_follow_their_prefix(concurrency: u32) {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, concurrency).await;
    let system: Vec<_> = (0..4)
        .map(|i| rig::text(&format!("system {i}"), 1500))
        .collect();
    let mut chats: Vec<_> = (0..12)
        .map(|i| {
            vec![
                ("system", system[i % 4].clone()),
                ("user", rig::text(&format!("chat {i}"), 700)),
            ]
        })
        .collect();
    let mut before: BTreeMap<usize, Decision> = BTreeMap::new();
    for turn in 0..6 {
        for (i, chat) in chats.iter_mut().enumerate() {
            let messages: Vec<_> = chat
                .iter()
                .map(|(role, text)| (*role, text.as_str()))
                .collect();
            let version = [Version::H1, Version::H2][(turn + i) % 2];
            let decision = rig::ask(&envoy, &pods, version, CHAT, &rig::chat(&messages)).await;
            let what = format!("chat {i}, turn {turn}: {decision:?}");
            if let Some(before) = before.get(&i) {
                assert_eq!(decision.pod, before.pod, "{what}");
                assert_eq!(decision.reason, "prefix", "{what}");
                assert!(decision.matched >= before.chunks, "{what} after {before:?}");
            }
            before.insert(i, decision);
            chat.push(("assistant", rig::text(&format!("answer {i} {turn}"), 400)));
            chat.push(("user", rig::text(&format!("question {i} {turn}"), 400)));
        }
    }
    // The same again until every worker has been asked, whoever it was that learned it.
    let messages: Vec<_> = chats[0]
        .iter()
        .map(|(role, text)| (*role, text.as_str()))
        .collect();
    let body = rig::chat(&messages[..messages.len() - 2]);
    let expected = (before[&0].pod.clone(), before[&0].chunks);
    let accepted = connections(&envoy, concurrency).await;
    for _ in 0..400 {
        let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        assert_eq!((decision.pod, decision.matched), expected);
        let now = connections(&envoy, concurrency).await;
        if now.iter().zip(&accepted).all(|(now, before)| now > before) {
            return;
        }
    }
    panic!(
        "a worker never had a connection: {:?}",
        connections(&envoy, concurrency).await
    );
}

#[tokio::test]
async fn turns_follow_their_prefix_with_1_worker() {
    turns_follow_their_prefix(1).await;
}

#[tokio::test]
async fn turns_follow_their_prefix_with_2_workers() {
    turns_follow_their_prefix(2).await;
}

#[tokio::test]
async fn turns_follow_their_prefix_with_4_workers() {
    turns_follow_their_prefix(4).await;
}

#[tokio::test]
async fn prompts_without_a_match_are_spread() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 2).await;
    let mut used = BTreeMap::new();
    for i in 0..60 {
        let body = rig::prompt(&format!("alone {i}"), 1000);
        let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        assert_eq!((decision.reason.as_str(), decision.matched), ("cold", 0));
        *used.entry(decision.pod).or_insert(0) += 1;
    }
    assert_eq!(used.len(), 3, "{used:?}");
    assert!(used.values().all(|n| *n >= 5), "{used:?}");
}

#[tokio::test]
async fn requests_without_a_prompt_are_spread() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 1).await;
    // In flight at once, so that load has something to say.
    let mut waiting = vec![];
    for _ in 0..30 {
        let mut conn = envoy.connect(Version::H1).await;
        let request = client::request(
            Method::GET,
            "/v1/models",
            &[("x-stub", "hang")],
            client::full(""),
        );
        waiting.push(tokio::spawn(async move { conn.try_send(request).await }));
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let counts = || pods.each_ref().map(|p| p.seen().len());
    let arrived = || async { counts().iter().sum::<usize>() == 30 };
    envoy.eventually("all have arrived", arrived).await;
    let counts = counts();
    assert!(
        counts.iter().all(|n| (8..=12).contains(n)),
        "fewest in flight first: {counts:?}"
    );
    waiting.iter().for_each(|w| w.abort());
}

#[tokio::test]
async fn the_response_header_has_three_modes() {
    let (pods, ports) = ports().await;
    for mode in ["off", "pod", "full"] {
        let envoy = rig::envoy_with(ports, 1, |b| {
            b.with_plugin(json!({ "response_header": mode }))
        })
        .await;
        let mut conn = envoy.connect(Version::H1).await;
        for treatment in ["", "claim", "status=404", "status=500"] {
            let body = client::full(rig::prompt(treatment, 1000).to_string());
            let request = client::request(Method::POST, CHAT, &[("x-stub", treatment)], body);
            let reply = conn.send(request).await;
            let (pod, _) = only(&pods);
            if mode == "off" {
                assert!(
                    !reply.headers.contains_key(HEADER),
                    "{treatment}: {reply:?}"
                );
                continue;
            }
            // The pod's own claim is gone: `decision` wants exactly one header.
            let decision = reply.decision();
            assert_eq!(decision.pod, PODS[pod], "{mode} {treatment}");
            let full = decision.chunks >= 0 && decision.matched >= 0 && !decision.reason.is_empty();
            assert_eq!(full, mode == "full", "{mode} {treatment}: {decision:?}");
            assert_eq!(
                decision.chunks >= 0 || decision.matched >= 0,
                full,
                "{mode}: {decision:?}"
            );
        }
        // The access log has it in every mode.
        let line = "pod=\"vllm-";
        let logged = || async { envoy.access_log().matches(line).count() == 4 };
        envoy
            .eventually("four decisions in the access log", logged)
            .await;
        for entry in envoy.access_log().lines() {
            let (_, text) = entry.split_once("router=").expect("filter state");
            let decision = Decision::parse(text).expect("a dictionary");
            assert_eq!(
                (decision.reason.as_str(), decision.matched),
                ("cold", 0),
                "{entry}"
            );
            assert!(decision.chunks > 0, "{entry}");
        }
    }
}

#[tokio::test]
async fn outside_its_match_the_filter_does_nothing() {
    let (pods, ports) = ports().await;
    let scope = json!({ "match": { "hosts": ["llm.example.com"], "path_prefixes": ["/team-a", "/team-b"] } });
    let envoy = rig::envoy_with(ports, 1, |b| b.with_plugin(scope)).await;
    let body = rig::prompt("scope", 1000).to_string();
    for version in [Version::H1, Version::H2] {
        let mut conn = envoy.connect(version).await;
        for (host, path, inside) in [
            ("llm.example.com", "/team-a/v1/chat/completions", true),
            ("LLM.example.com:8080", "/team-b/v1/chat/completions", true),
            ("llm.example.com", "/v1/chat/completions", false),
            ("other.example.com", "/team-a/v1/chat/completions", false),
            (
                "llm.example.com.evil.org",
                "/team-a/v1/chat/completions",
                false,
            ),
        ] {
            let what = format!("{version:?} {host} {path}");
            let headers = [
                ("host", host),
                ("x-vllm-cluster", "vllm-1"),
                ("x-stub", "claim"),
            ];
            let request = client::request(Method::POST, path, &headers, client::full(body.clone()));
            let reply = conn.send(request).await;
            assert_eq!(reply.status, 200, "{what}");
            let (_, seen) = only(&pods);
            assert!(seen.body == body, "{what}");
            if inside {
                assert!(reply.decision().chunks > 0, "{what}");
            } else {
                // Two headers, as the stub sent them.
                let left: Vec<_> = reply.headers.get_all(HEADER).iter().collect();
                assert_eq!(left, ["pod=\"liar\", matched=99, chunks=99"; 2], "{what}");
                assert!(!seen.headers.contains_key("x-vllm-cluster"), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn observing_steers_nothing_and_learns_who_served() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy_with(ports, 2, |b| b.with_plugin(json!({ "mode": "observe" }))).await;
    let body = rig::prompt("observed", 2000);
    let mut served = BTreeSet::new();
    for turn in 0..40 {
        let headers = [("x-vllm-cluster", "vllm-1")];
        let request = client::request(Method::POST, CHAT, &headers, client::full(body.to_string()));
        let reply = envoy.connect(Version::H1).await.send(request).await;
        assert_eq!(reply.status, 200);
        let (pod, seen) = only(&pods);
        assert!(!seen.headers.contains_key("x-vllm-cluster"), "turn {turn}");
        let decision = reply.decision();
        assert_eq!(decision.pod, PODS[pod], "turn {turn}: who served");
        let expected = if served.contains(&pod) {
            decision.chunks
        } else {
            0
        };
        assert_eq!(
            decision.matched, expected,
            "turn {turn}: what {} held",
            decision.pod
        );
        served.insert(pod);
    }
    assert!(served.len() > 1, "steered: {served:?}");
}

#[tokio::test]
async fn metrics_are_there_with_their_labels() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy_with(ports, 2, |b| b.with_plugin(json!({ "pool": "chat.pool" }))).await;
    let body = rig::prompt("metrics", 3000);
    for _ in 0..4 {
        rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    }
    envoy.connect(Version::H1).await.get("/v1/models").await;
    let samples = envoy.prometheus().await;
    let ours: Vec<_> = samples.starting_with("prefix_router_").collect();
    assert!(!ours.is_empty(), "no metrics of the filter");
    for sample in &ours {
        assert!(
            !sample.name.contains('='),
            "a label stayed in the name: {sample:?}"
        );
        assert_eq!(
            sample.labels.get("pool").map(String::as_str),
            Some("chat.pool"),
            "{sample:?}"
        );
    }
    let by_reason =
        |reason: &str| samples.sum("prefix_router_decisions_total", &[("reason", reason)]);
    assert_eq!(by_reason("cold"), Some(1.0));
    assert_eq!(by_reason("prefix"), Some(3.0));
    assert_eq!(by_reason("no_prompt"), Some(1.0));
    let pods: BTreeSet<_> = ours.iter().filter_map(|s| s.labels.get("pod")).collect();
    assert!(
        pods.iter().all(|p| PODS.contains(&p.as_str())) && !pods.is_empty(),
        "{pods:?}"
    );
}

/// The sum over all pods of the gauge of requests in flight.
async fn in_flight(envoy: &Envoy) -> f64 {
    let samples = envoy.prometheus().await;
    samples
        .sum("prefix_router_requests_in_flight", &[])
        .expect("the gauge is there")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_streams_at_once() {
    let (pods, ports) = ports().await;
    let envoy = rig::envoy(ports, 4).await;
    let stream = |mut conn: Conn, i: usize| async move {
        // 40 prompts, each eight times, of many sizes.
        let body = rig::prompt(&format!("stream {}", i % 40), 500 + 3000 * (i % 40));
        let reply = conn.post(CHAT, &body).await;
        assert_eq!(reply.status, 200, "{i}");
        (i % 40, reply.decision())
    };
    for round in 0..2 {
        let mut all = tokio::task::JoinSet::new();
        for i in 0..320 {
            let version = [Version::H1, Version::H2][i / 40 % 2];
            all.spawn(stream(envoy.connect(version).await, i));
        }
        let decisions = all.join_all().await;
        let mut whole = 0;
        let mut homes: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (prompt, decision) in decisions {
            if round == 1 {
                // On a busy machine a pod may have so much to do that another computes it again.
                let is_whole = decision.matched == decision.chunks;
                assert!(
                    is_whole || decision.reason == "load",
                    "{prompt}: {decision:?}"
                );
                whole += usize::from(is_whole);
            }
            homes.entry(prompt).or_default().insert(decision.pod);
        }
        assert_eq!(homes.len(), 40);
        assert!(round == 0 || whole > 200, "{whole} of 320");
    }
    let received: usize = pods.iter().map(|p| p.take().len()).sum();
    assert_eq!(received, 640, "each request once");
    let rest = || async { in_flight(&envoy).await == 0.0 };
    envoy.eventually("nothing in flight at rest", rest).await;
    // The gauge does count: ten that hang.
    let mut waiting = vec![];
    for i in 0..10 {
        let mut conn = envoy.connect(Version::H1).await;
        let body = client::full(rig::prompt(&format!("hanging {i}"), 1000).to_string());
        let request = client::request(Method::POST, CHAT, &[("x-stub", "hang")], body);
        waiting.push(tokio::spawn(async move { conn.try_send(request).await }));
    }
    let counted = || async { in_flight(&envoy).await == 10.0 };
    envoy.eventually("ten in flight", counted).await;
    waiting.iter().for_each(|w| w.abort());
    let rest = || async { in_flight(&envoy).await == 0.0 };
    envoy
        .eventually("nothing in flight after the clients left", rest)
        .await;
}
