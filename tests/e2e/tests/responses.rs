//! The Responses API keeps state in one pod: what is about a response goes to the pod that made it.

use e2e::bootstrap::Bootstrap;
use e2e::client::{self, Reply, Version};
use e2e::envoy::Envoy;
use e2e::rig;
use e2e::stub::VERSIONS;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/responses";

async fn start(
    concurrency: u32,
    change: impl FnOnce(Bootstrap) -> Bootstrap,
) -> ([SimPod; 3], Envoy) {
    let pods = rig::PODS.map(|name| SimPod::start(PodConfig::named(name)).expect("the pod starts"));
    let ports = pods.each_ref().map(|pod| pod.addr.port());
    let envoy = rig::envoy_with(ports, concurrency, change).await;
    (pods, envoy)
}

/// The response that an answer makes, streamed or not.
fn id(reply: &Reply) -> String {
    let text = String::from_utf8_lossy(&reply.body);
    let first = match text.lines().find_map(|line| line.strip_prefix("data: ")) {
        Some(event) => serde_json::from_str::<Value>(event).expect("JSON")["response"].clone(),
        None => reply.json(),
    };
    first["id"].as_str().expect("an id").to_owned()
}

fn pod(reply: &Reply) -> String {
    reply.headers["x-sim-pod"].to_str().expect("ASCII").into()
}

fn body(text: &str, stream: bool, previous: Option<&str>) -> Value {
    json!({ "model": "sim", "input": text, "stream": stream, "previous_response_id": previous })
}

async fn about(envoy: &Envoy, version: Version, method: Method, path: &str) -> Reply {
    let request = client::request(method, path, &[], client::full(""));
    envoy.connect(version).await.send(request).await
}

#[tokio::test]
async fn a_conversation_stays_where_its_responses_are() {
    for concurrency in [1, 2, 4] {
        let (_pods, envoy) = start(concurrency, |b| b).await;
        let mut used = BTreeSet::new();
        for chat in 0..12 {
            let stream = chat % 2 == 0;
            let text = rig::text(&format!("chat {chat}"), 800);
            let version = VERSIONS[chat / 2 % 2];
            let mut conn = envoy.connect(version).await;
            let mut last = conn.post(PATH, &body(&text, stream, None)).await;
            assert_eq!(last.status, 200, "{last:?}");
            let home = pod(&last);
            used.insert(home.clone());
            for turn in 0..4 {
                let id = id(&last);
                let what = format!("chat {chat}, turn {turn}, {id}");
                for (method, path, status) in [
                    (Method::GET, format!("{PATH}/{id}"), 200),
                    (Method::GET, format!("{PATH}/{id}?stream=false"), 200),
                    (Method::POST, format!("{PATH}/{id}/cancel"), 400),
                    (Method::DELETE, format!("{PATH}/{id}"), 405),
                ] {
                    let reply = about(&envoy, version, method, &path).await;
                    assert_eq!(
                        (reply.status.as_u16(), pod(&reply)),
                        (status, home.clone()),
                        "{what}: {path}"
                    );
                    let decision = reply.decision();
                    assert_eq!(
                        (decision.reason.as_str(), decision.detail.as_str()),
                        ("sticky", ""),
                        "{what}"
                    );
                }
                let next = body(&format!("turn {turn}"), stream, Some(&id));
                last = envoy.connect(version).await.post(PATH, &next).await;
                assert_eq!(
                    (last.status.as_u16(), pod(&last)),
                    (200, home.clone()),
                    "{what}"
                );
                assert_eq!(last.decision().reason, "sticky", "{what}");
            }
        }
        assert_eq!(used.len(), 3, "{used:?}");
        let samples = envoy.prometheus().await;
        let sticky = samples.sum("prefix_router_decisions_total", &[("reason", "sticky")]);
        assert_eq!(sticky, Some((12 * 4 * 5) as f64));
    }
}

/// Without the filter the same is lost more often than not.
#[tokio::test]
async fn without_the_filter_it_does_not() {
    let (_pods, envoy) = start(1, Bootstrap::without_filter).await;
    let mut lost = 0;
    for chat in 0..24 {
        let mut conn = envoy.connect(Version::H1).await;
        let made = conn
            .post(PATH, &body(&format!("chat {chat}"), false, None))
            .await;
        let path = format!("{PATH}/{}", id(&made));
        lost += u32::from(conn.get(&path).await.status == 404);
    }
    assert!(lost > 6, "{lost} of 24");
}

/// Nobody else has what it had; the request is answered all the same, as any other.
#[tokio::test]
async fn a_response_of_a_pod_that_is_gone_is_a_404() {
    let (pods, envoy) = start(1, |b| b).await;
    let mut conn = envoy.connect(Version::H1).await;
    let made = conn.post(PATH, &body("hello", false, None)).await;
    let id = id(&made);
    let home = pod(&made);
    let maker = pods.iter().find(|pod| pod.name() == home).expect("a pod");
    maker.stop();
    // Until Envoy has seen its idle connections being reset.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..3 {
        let next = conn.post(PATH, &body("more", false, Some(&id))).await;
        assert_eq!(next.status, 404, "{next:?}");
        assert_ne!(pod(&next), home);
    }
    assert_ne!(
        conn.get(&format!("{PATH}/{id}")).await.decision().reason,
        "sticky"
    );
    let unknown = conn.get(&format!("{PATH}/resp_unknown")).await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.decision().reason, "no_prompt");
}

/// The id is looked for in what passes; nothing waits for it.
#[tokio::test]
async fn a_streamed_answer_comes_as_it_is_made() {
    let slow = |name| PodConfig {
        decode_ms_per_token: 50.0,
        ..PodConfig::named(name)
    };
    let pods = rig::PODS.map(|name| SimPod::start(slow(name)).expect("the pod starts"));
    let envoy = rig::envoy(pods.each_ref().map(|pod| pod.addr.port()), 1).await;
    let mut conn = envoy.connect(Version::H1).await;
    let start = Instant::now();
    let request = client::post(PATH, &body("slowly", true, None));
    let mut answer = conn.start(request).await.expect("an answer").into_body();
    let mut frames = vec![];
    while let Some(frame) = answer.frame().await {
        let data = frame.expect("a frame").into_data().unwrap_or_default();
        frames.push((start.elapsed(), data));
    }
    let [(first, _), .., (last, _)] = &frames[..] else {
        panic!("one piece: {frames:?}")
    };
    assert!(*last - *first > Duration::from_millis(400), "{frames:?}");
}
