//! The ways to tell Envoy which pod that name it by its address: `override_host` and
//! `stateful_session`, each in its shipped bootstrap.

use e2e::bootstrap::{Bootstrap, Shipped};
use e2e::client::{self, Reply, Version};
use e2e::decision::Decision;
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Seen, Stub, VERSIONS};
use http::Method;
use serde_json::{json, Value};
use std::collections::BTreeMap;

const CHAT: &str = "/v1/chat/completions";
const BY_ADDRESS: [Shipped; 2] = [Shipped::OverrideHost, Shipped::StatefulSession];

async fn start(
    shipped: Shipped,
    concurrency: u32,
    change: impl FnOnce(Bootstrap) -> Bootstrap,
) -> ([Stub; 3], Envoy) {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let envoy = rig::envoy_of(shipped, ports, concurrency, change).await;
    (pods, envoy)
}

async fn send(envoy: &Envoy, version: Version, headers: &[(&str, &str)], body: &Value) -> Reply {
    let body = client::full(body.to_string());
    let request = client::request(Method::POST, CHAT, headers, body);
    envoy.connect(version).await.send(request).await
}

/// Sends; wants 200, the filter's word on who served, and no host named to the client.
async fn served(envoy: &Envoy, pods: &[Stub], shipped: Shipped, body: &Value) -> (Decision, Seen) {
    let reply = send(envoy, Version::H1, &[], body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(!reply.headers.contains_key(shipped.header()), "{reply:?}");
    let (pod, seen) = only(pods);
    let decision = reply.decision();
    assert_eq!(decision.pod, PODS[pod], "{decision:?}");
    (decision, seen)
}

/// The indices of the pods that the filter listed for this request.
fn listed(seen: &Seen, pods: &[Stub]) -> Vec<usize> {
    let list = seen.headers[Shipped::OverrideHost.header()].to_str();
    let place = |address: &str| {
        let is = |pod: &Stub| address == format!("127.0.0.1:{}", pod.port());
        pods.iter().position(is).expect("the address of a pod")
    };
    list.expect("ASCII").split(',').map(place).collect()
}

#[tokio::test]
async fn turns_follow_their_prefix() {
    for shipped in BY_ADDRESS {
        let (pods, envoy) = start(shipped, 2, |b| b).await;
        let mut used = BTreeMap::new();
        for i in 0..24 {
            let (first, second) = (
                rig::text(&format!("chat {i}"), 2000),
                rig::text("more", 600),
            );
            let body = rig::chat(&[("user", &first)]);
            let (before, _) = served(&envoy, &pods, shipped, &body).await;
            assert_eq!(before.hit().0, 0, "{shipped:?}, {before:?}");
            let body = rig::chat(&[("user", &first), ("assistant", "yes"), ("user", &second)]);
            let (after, _) = served(&envoy, &pods, shipped, &body).await;
            assert_eq!(after.pod, before.pod, "{shipped:?}, {after:?}");
            assert!(after.matched >= before.chunks, "{shipped:?}, {after:?}");
            *used.entry(after.pod).or_insert(0) += 1;
        }
        assert_eq!(used.len(), 3, "{shipped:?}: {used:?}");
    }
}

/// With the filter, and with nothing in its place.
#[tokio::test]
async fn a_client_names_no_pod() {
    for shipped in BY_ADDRESS {
        let (pods, envoy) = start(shipped, 1, |b| b).await;
        let body = rig::prompt("forced", 3000);
        let (home, _) = served(&envoy, &pods, shipped, &body).await;
        let (bare_pods, bare) = start(shipped, 1, Bootstrap::without_filter).await;
        let mut bare_used = BTreeMap::new();
        for turn in 0..12 {
            let version = VERSIONS[turn % 2];
            let other = (rig::index(&home.pod) + 1) % 3;
            let named = value(shipped, &pods[other]);
            let reply = send(&envoy, version, &[(shipped.header(), &named)], &body).await;
            assert_eq!(PODS[only(&pods).0], home.pod, "{shipped:?}, {reply:?}");
            assert_eq!(reply.decision().pod, home.pod);

            let named = value(shipped, &bare_pods[0]);
            let reply = send(&bare, version, &[(shipped.header(), &named)], &body).await;
            assert_eq!(reply.status, 200);
            assert!(!reply.headers.contains_key(shipped.header()), "{reply:?}");
            let (pod, seen) = only(&bare_pods);
            assert!(!seen.headers.contains_key(shipped.header()), "{seen:?}");
            *bare_used.entry(pod).or_insert(0) += 1;
        }
        assert!(bare_used.len() > 1, "{shipped:?} obeyed: {bare_used:?}");

        // What has no prompt, too.
        let named = value(shipped, &pods[0]);
        let mut used = BTreeMap::new();
        for version in VERSIONS.into_iter().cycle().take(12) {
            let headers = [(shipped.header(), named.as_str())];
            let request = client::request(Method::GET, "/v1/models", &headers, client::full(""));
            envoy.connect(version).await.send(request).await;
            *used.entry(only(&pods).0).or_insert(0) += 1;
        }
        assert_eq!(used.len(), 3, "{shipped:?} obeyed: {used:?}");
    }
}

/// What names a pod in the header of a mode.
fn value(shipped: Shipped, pod: &Stub) -> String {
    use base64::Engine;
    let address = format!("127.0.0.1:{}", pod.port());
    match shipped {
        Shipped::StatefulSession => base64::engine::general_purpose::STANDARD.encode(address),
        _ => address,
    }
}

#[tokio::test]
async fn a_dead_first_choice_is_answered_by_another_which_gets_the_credit() {
    for shipped in BY_ADDRESS {
        let (mut pods, envoy) = start(shipped, 2, |b| b).await;
        for round in 0..4 {
            let body = rig::prompt(&format!("dead {round}"), 3000);
            let (first, _) = served(&envoy, &pods, shipped, &body).await;
            let home = rig::index(&first.pod);
            pods[home].kill().await;
            let (second, seen) = served(&envoy, &pods, shipped, &body).await;
            assert_ne!(second.pod, first.pod, "{shipped:?}");
            assert_eq!(second.hit(), (0, first.chunks), "{shipped:?}: {second:?}");
            if shipped == Shipped::OverrideHost {
                let ranking = listed(&seen, &pods);
                assert_eq!(ranking[0], home, "{ranking:?}");
                assert_eq!(ranking[1], rig::index(&second.pod), "{ranking:?}");
            }
            // Whoever serves now, it holds what it served before.
            let (third, _) = served(&envoy, &pods, shipped, &body).await;
            let held = if third.pod == second.pod {
                third.chunks
            } else {
                0
            };
            assert_eq!(
                third.matched, held,
                "{shipped:?}: {third:?} after {second:?}"
            );
            // With two of them dead the last one answers, and knows it from then on.
            let next = rig::index(&second.pod);
            pods[next].kill().await;
            let last = PODS[3 - home - next];
            for _ in 0..2 {
                let (third, _) = served(&envoy, &pods, shipped, &body).await;
                assert_eq!(third.pod, last, "{shipped:?}");
            }
            pods[home].revive().await;
            pods[next].revive().await;
        }
        let at_rest = || async {
            let samples = envoy.prometheus().await;
            samples.sum("prefix_router_requests_in_flight", &[]) == Some(0.0)
        };
        envoy.eventually("nothing in flight", at_rest).await;
    }
}

/// The session filter names the host to the client whenever it is not the one that was asked for;
/// the shipped bootstrap takes that out again.
#[tokio::test]
async fn the_session_filter_would_tell_who_served_instead() {
    let shipped = Shipped::StatefulSession;
    let bare = |b: Bootstrap| b.without_http_filter("envoy.filters.http.header_mutation");
    let (mut pods, envoy) = start(shipped, 1, bare).await;
    let body = rig::prompt("told", 2000);
    let reply = send(&envoy, Version::H1, &[], &body).await;
    assert!(!reply.headers.contains_key(shipped.header()), "{reply:?}");
    pods[only(&pods).0].kill().await;
    let reply = send(&envoy, Version::H1, &[], &body).await;
    let served = only(&pods).0;
    let host = value(shipped, &pods[served]);
    assert_eq!(reply.headers[shipped.header()], host.as_str(), "{reply:?}");
    assert_eq!(reply.decision().pod, PODS[served]);
}

/// Cold prompts whose first choice is dead: their credit moves, and none stays behind.
#[tokio::test]
async fn the_credit_of_a_retry_moves() {
    for shipped in BY_ADDRESS {
        let (mut pods, envoy) = start(shipped, 1, |b| b).await;
        pods[1].kill().await;
        for i in 0..40 {
            let body = rig::prompt(&format!("moves {i}"), 2000);
            let (first, _) = served(&envoy, &pods, shipped, &body).await;
            assert_ne!(first.pod, PODS[1]);
            let (second, _) = served(&envoy, &pods, shipped, &body).await;
            assert_eq!(second.pod, first.pod, "{shipped:?} {i}");
            assert_eq!(second.matched, first.chunks, "{shipped:?} {i}");
        }
        let samples = envoy.prometheus().await;
        let moved = samples.sum("prefix_router_moved_credits_total", &[]);
        assert!(moved.is_some_and(|n| n > 0.0), "{shipped:?}: {moved:?}");
        let nothing = || async {
            let dead = [("pod", PODS[1])];
            let samples = envoy.prometheus().await;
            samples.sum("prefix_router_stored_chunks", &dead) == Some(0.0)
        };
        envoy.eventually("no credit on the dead pod", nothing).await;
    }
}

/// A canary takes its share whatever the filter says, and each side keeps to its own pods.
#[tokio::test]
async fn a_split_by_weight_stays_split() {
    let split = |b: Bootstrap| b.with_split(2, [60, 40], "canary");
    let (pods, envoy) = start(Shipped::OverrideHost, 2, split).await;
    let bodies: Vec<_> = (0..10)
        .map(|i| rig::prompt(&format!("split {i}"), 2000))
        .collect();
    let (mut to_canary, mut total) = (0, 0);
    // What each pod has served of each prompt.
    let mut held = BTreeMap::new();
    for round in 0..20 {
        for (i, body) in bodies.iter().enumerate() {
            let (decision, seen) = served(&envoy, &pods, Shipped::OverrideHost, body).await;
            let pod = rig::index(&decision.pod);
            let before = held.insert((i, pod), decision.chunks).unwrap_or(0);
            assert_eq!(decision.matched, before, "round {round}, prompt {i}");
            let ranking = listed(&seen, &pods);
            total += 1;
            if pod == 2 {
                to_canary += 1;
            } else {
                // The better of the two that are on this side.
                let best = ranking.iter().find(|pod| **pod < 2);
                assert_eq!(best, Some(&pod), "round {round}, prompt {i}: {ranking:?}");
            }
        }
    }
    assert_eq!(total, 200);
    assert!((55..=105).contains(&to_canary), "{to_canary} of {total}");
    // Once known on both sides, a prompt has one pod on each.
    for i in 0..bodies.len() {
        let stable = (0..2).filter(|pod| held.contains_key(&(i, *pod))).count();
        assert_eq!(stable, 1, "prompt {i}: {held:?}");
    }
}

/// The same with an instance of the filter for each side: each knows its own pods only, so that
/// its first choice is always one that the cluster has.
#[tokio::test]
async fn each_side_of_a_split_is_a_pool_of_its_own() {
    for shipped in BY_ADDRESS {
        let split = |mut b: Bootstrap| {
            let pods = b.plugin()["pods"].clone();
            b.with_split(2, [60, 40], "canary")
                .with_plugin(json!({
                    "pods": [pods[0], pods[1]], "match": { "clusters": ["vllm"] },
                }))
                .with_second_filter(json!({
                    "pods": [pods[2]], "match": { "clusters": ["canary"] }, "pool": "canary",
                }))
        };
        let (pods, envoy) = start(shipped, 2, split).await;
        let mut to_canary = 0;
        let mut home = BTreeMap::new();
        for round in 0..20 {
            for i in 0..8 {
                let body = rig::prompt(&format!("sides {i}"), 2000);
                let (decision, _) = served(&envoy, &pods, shipped, &body).await;
                let canary = decision.pod == PODS[2];
                to_canary += u32::from(canary);
                let what = format!("{shipped:?}, round {round}, prompt {i}: {decision:?}");
                match home.insert((i, canary), decision.pod.clone()) {
                    Some(before) => {
                        assert_eq!(decision.pod, before, "{what}");
                        assert_eq!(decision.matched, decision.chunks, "{what}");
                    }
                    None => assert_eq!(decision.matched, 0, "{what}"),
                }
            }
        }
        assert!((40..=88).contains(&to_canary), "{to_canary} of 160");
        let mut used: Vec<_> = home.into_values().collect();
        used.sort();
        used.dedup();
        assert_eq!(used, PODS, "{shipped:?}");
        let samples = envoy.prometheus().await;
        for (pool, expected) in [("default", 160 - to_canary), ("canary", to_canary)] {
            let decided = samples.sum("prefix_router_decisions_total", &[("pool", pool)]);
            assert_eq!(decided, Some(f64::from(expected)), "{shipped:?} {pool}");
        }
        assert_eq!(samples.sum("prefix_router_moved_credits_total", &[]), None);
    }
}
