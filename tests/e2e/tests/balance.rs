//! The policy `balanced` with pods that take their time, and pods that go and come.

use e2e::client::{Reply, Version};
use e2e::decision::Decision;
use e2e::envoy::Envoy;
use e2e::rig;
use futures_util::stream::{self, StreamExt};
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const CHAT: &str = "/v1/chat/completions";

/// Pods of a small GPU: 20,000 tokens of prefill per second, 500 of decode per request.
fn pods(n: usize) -> Vec<SimPod> {
    let pod = |i: usize| PodConfig {
        prefill_tokens_per_s: 20_000.0,
        decode_ms_per_token: 2.0,
        ..PodConfig::named(format!("vllm-{i}"))
    };
    let pods = (0..n).map(|i| SimPod::start(pod(i)).expect("the pod starts"));
    pods.collect()
}

async fn envoy(pods: &[SimPod], concurrency: u32, plugin: Value) -> Envoy {
    let ports: Vec<u16> = pods.iter().map(|pod| pod.addr.port()).collect();
    let (first, more) = ports.split_first_chunk::<3>().expect("three pods at least");
    rig::envoy_with(*first, concurrency, |bootstrap| {
        bootstrap.with_more_pods(more).with_plugin(plugin)
    })
    .await
}

async fn send(envoy: &Envoy, body: &Value) -> Reply {
    let reply = envoy.connect(Version::H1).await.post(CHAT, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply
}

/// Sends all, so many at a time, in order; returns what was decided.
async fn send_all(envoy: &Envoy, at_once: usize, bodies: &[Value]) -> Vec<Reply> {
    let sent = stream::iter(bodies).map(|body| send(envoy, body));
    sent.buffered(at_once).collect().await
}

fn by_pod<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for decision in decisions {
        *count.entry(decision.pod.clone()).or_default() += 1;
    }
    count
}

fn decisions(replies: &[Reply]) -> Vec<Decision> {
    replies.iter().map(Reply::decision).collect()
}

#[tokio::test]
async fn users_of_one_system_prompt_are_spread_and_find_it() {
    let pods = pods(4);
    let envoy = envoy(&pods, 2, json!({})).await;
    let system = rig::text("the shared system prompt", 8192);
    let bodies: Vec<_> = (0..200)
        .map(|i| {
            rig::chat(&[
                ("system", &system),
                ("user", &rig::text(&format!("user {i}"), 300)),
            ])
        })
        .collect();
    let replies = send_all(&envoy, 48, &bodies).await;
    let decisions = decisions(&replies);
    let spread = by_pod(&decisions);
    let most = *spread.values().max().expect("some");
    assert!(most * 4 <= 200 * 16 / 10, "{spread:?}");
    // Once a pod has seen it: all of its requests but the first.
    let mut seen = BTreeMap::new();
    let (mut later, mut hits) = (0, 0);
    for decision in &decisions {
        if seen.insert(&decision.pod, ()).is_some() {
            later += 1;
            hits += usize::from(decision.matched * 256 >= 8192);
        }
    }
    assert!(hits * 10 > later * 9, "{hits} of {later}, {spread:?}");
    let cached = replies
        .iter()
        .filter(|r| r.cached_tokens() * 4 >= 8000)
        .count();
    assert!(
        cached * 10 > later * 9,
        "{cached} of {later} in the pods' own words"
    );
}

#[tokio::test]
async fn cold_prompts_are_even() {
    let pods = pods(4);
    let envoy = envoy(&pods, 4, json!({})).await;
    let bodies: Vec<_> = (0..400)
        .map(|i| rig::prompt(&format!("cold {i}"), 2000))
        .collect();
    let spread = by_pod(&decisions(&send_all(&envoy, 16, &bodies).await));
    let most = *spread.values().max().expect("some");
    assert!(most * 4 * 10 <= 400 * 13, "{spread:?}");
}

#[tokio::test]
async fn a_cold_burst_stays_together_up_to_its_cost_and_then_spills() {
    let pods = pods(4);
    let envoy = envoy(&pods, 4, json!({})).await;
    // 10,000 tokens, half a second of prefill.
    let burst = |seed: &str, n: usize| vec![rig::prompt(seed, 40_000); n];
    let few = by_pod(&decisions(&send_all(&envoy, 8, &burst("few", 8)).await));
    assert_eq!(few.len(), 1, "{few:?}");
    let many = by_pod(&decisions(
        &send_all(&envoy, 300, &burst("many", 300)).await,
    ));
    assert!(many.len() > 1, "{many:?}");
    let most = *many.values().max().expect("some");
    assert!(most > 75, "not just spread: {many:?}");
}

#[tokio::test]
async fn gateways_that_share_nothing_agree_on_cold_prompts() {
    let pods = pods(4);
    let (here, there) = (
        envoy(&pods, 2, json!({})).await,
        envoy(&pods, 1, json!({})).await,
    );
    let mut agreed = 0;
    for i in 0..100 {
        let body = rig::prompt(&format!("anywhere {i}"), 3000);
        let pods = [
            send(&here, &body).await.decision(),
            send(&there, &body).await.decision(),
        ];
        agreed += usize::from(pods[0].pod == pods[1].pod);
    }
    assert!(agreed >= 90, "{agreed} of 100");
}

/// A gauge of a pod.
async fn gauge(envoy: &Envoy, name: &str, pod: &str) -> f64 {
    let name = format!("prefix_router_{name}");
    let samples = envoy.prometheus().await;
    samples.sum(&name, &[("pod", pod)]).unwrap_or(f64::NAN)
}

#[tokio::test]
async fn a_pod_that_cannot_be_reached_is_left_alone_forgotten_and_eased_in_again() {
    let pods = pods(3);
    let keys = json!({ "policy": { "name": "balanced", "slow_start_ms": 20_000 } });
    let envoy = envoy(&pods, 2, keys).await;
    let bodies: Vec<_> = (0..60)
        .map(|i| rig::prompt(&format!("lost {i}"), 3000))
        .collect();
    let before = decisions(&send_all(&envoy, 4, &bodies).await);
    let dead = before[0].pod.clone();
    let index = rig::index(&dead);
    pods[index].stop();
    let died = Instant::now();
    // What is on its way on a connection when that ends may have been worked on: it is not sent
    // again. Here nothing is.
    tokio::time::sleep(Duration::from_millis(300)).await;
    // One failure is enough for both workers: from then on Envoy has nothing to try again.
    let again = decisions(&send_all(&envoy, 1, &bodies).await);
    assert!(again.iter().all(|decision| decision.pod != dead));
    let log = envoy.access_log();
    let (_, since) = log.split_at(log.len() / 2);
    let retried = since
        .lines()
        .filter(|line| line.contains("attempts=2"))
        .count();
    assert!(
        retried <= 1 + died.elapsed().as_secs() as usize / 5,
        "{retried} found it dead"
    );
    assert_eq!(gauge(&envoy, "pod_fit", &dead).await, 0.0);
    envoy
        .within(MINUTE, "the dead pod is forgotten", || async {
            // Real traffic is what tries it again.
            send(&envoy, &bodies[0]).await;
            gauge(&envoy, "stored_chunks", &dead).await == 0.0
        })
        .await;
    assert!(died.elapsed() > Duration::from_secs(10), "not before 10 s");
    pods[index].start_again().expect("the port is free");
    let fresh = |round: u32| {
        (0..30)
            .map(|i| rig::prompt(&format!("fresh {round} {i}"), 3000))
            .collect::<Vec<_>>()
    };
    let mut rounds = 0;
    envoy
        .within(MINUTE, "it is tried again", || {
            rounds += 1;
            let fresh = fresh(rounds);
            let (envoy, dead) = (&envoy, &dead);
            async move {
                send_all(envoy, 4, &fresh).await;
                gauge(envoy, "pod_fit", dead).await == 1.0
            }
        })
        .await;
    let eased = by_pod(&decisions(&send_all(&envoy, 1, &fresh(1000)).await));
    assert!(
        eased.get(&dead).copied().unwrap_or(0) <= 5,
        "a sixth at most: {eased:?}"
    );
}

#[tokio::test]
async fn at_rest_every_count_is_0_however_requests_ended() {
    let pods = pods(3);
    let envoy = envoy(&pods, 4, json!({})).await;
    let bodies: Vec<_> = (0..60)
        .map(|i| rig::prompt(&format!("leaves {i}"), 12_000))
        .collect();
    // Clients that leave at every point of a request's life: before the decision, in the queue,
    // between first byte and end.
    let leave = |(i, body): (usize, &Value)| {
        let (envoy, body) = (&envoy, body.clone());
        async move {
            let mut connection = envoy.connect([Version::H1, Version::H2][i % 2]).await;
            let patience = Duration::from_millis(3 * i as u64);
            let _ = tokio::time::timeout(patience, connection.post(CHAT, &body)).await;
        }
    };
    stream::iter(bodies.iter().enumerate())
        .map(leave)
        .buffered(20)
        .collect::<Vec<_>>()
        .await;
    pods[1].stop();
    tokio::time::sleep(Duration::from_millis(300)).await;
    send_all(&envoy, 20, &bodies).await;
    envoy
        .eventually("nothing is counted", || async {
            let samples = envoy.prometheus().await;
            let sum = |name: &str| samples.sum(&format!("prefix_router_{name}"), &[]);
            sum("requests_in_flight") == Some(0.0) && sum("backlog_tokens") == Some(0.0)
        })
        .await;
}
