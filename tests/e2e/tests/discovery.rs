//! Pods that are read from Envoy's admin listener: they come and go, and Envoy may not say.

use e2e::bootstrap::{Bootstrap, Shipped};
use e2e::client::{Reply, Version};
use e2e::decision::Decision;
use e2e::envoy::{Envoy, Options};
use e2e::hosts::Hosts;
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const PODS_FOUND: &str = "prefix_router_discovered_pods";

fn every_100_ms(cluster: &str) -> Value {
    json!({ "cluster": cluster, "poll_interval_ms": 100 })
}

async fn gauge(envoy: &Envoy, name: &str) -> f64 {
    envoy.prometheus().await.sum(name, &[]).unwrap_or(-1.0)
}

async fn until_found(envoy: &Envoy, pods: usize) {
    envoy
        .eventually("the pods are found", || async {
            gauge(envoy, PODS_FOUND).await == pods as f64
        })
        .await;
    // By now every worker has ticked since.
    tokio::time::sleep(Duration::from_millis(250)).await;
}

async fn post(envoy: &Envoy, body: &Value) -> Reply {
    envoy.connect(Version::H1).await.post(CHAT, body).await
}

async fn decide(envoy: &Envoy, body: &Value) -> Decision {
    let reply = post(envoy, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.decision()
}

/// Envoy with the hosts of `hosts` behind `override_host`.
async fn with_hosts(hosts: &Hosts, keys: Value, concurrency: u32) -> (Envoy, Bootstrap) {
    let options = Options {
        dynamic: true,
        ..Options::new(concurrency)
    };
    let bootstrap = Bootstrap::of(Shipped::OverrideHost)
        .with_ports(&options, [9, 9, 9])
        .with_pool_from(&hosts.file())
        .with_discovery(every_100_ms("vllm"))
        .with_plugin(keys);
    let envoy = Envoy::start(&bootstrap, options).await;
    (envoy, bootstrap)
}

fn name(pod: &Stub) -> String {
    format!("127.0.0.1:{}", pod.port())
}

#[tokio::test]
async fn the_clusters_of_the_shipped_bootstrap_are_pods() {
    let pods = Stub::three().await;
    let change = |bootstrap: Bootstrap| bootstrap.with_discovery(every_100_ms("vllm-*"));
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 2, change).await;
    until_found(&envoy, 3).await;
    envoy
        .eventually("their health is known", || async {
            gauge(&envoy, "prefix_router_pod_healthy").await == 3.0
        })
        .await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    let mut seen = BTreeSet::new();
    for i in 0..24 {
        let body = rig::prompt(&format!("discovered {i}"), 3000);
        let first = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        let again = rig::ask(&envoy, &pods, Version::H2, CHAT, &body).await;
        assert_eq!(
            (again.pod.clone(), again.matched),
            (first.pod, first.chunks)
        );
        seen.insert(again.pod);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    let samples = envoy.prometheus().await;
    for pod in PODS {
        let healthy = samples.sum("prefix_router_pod_healthy", &[("pod", pod)]);
        assert_eq!(healthy, Some(1.0), "{pod}");
    }
    assert_eq!(samples.sum("prefix_router_failed_polls_total", &[]), None);
    let age = samples.sum("prefix_router_discovery_age_seconds", &[]);
    assert!(age.is_some_and(|age| age <= 1.0), "{age:?}");
}

#[tokio::test]
async fn no_pods_at_all_is_the_fallback_route() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let change = |bootstrap: Bootstrap| bootstrap.with_discovery(every_100_ms("nobody-*"));
    let envoy = rig::envoy_with(ports, 1, change).await;
    until_found(&envoy, 0).await;
    let decision = decide(&envoy, &rig::prompt("alone", 2000)).await;
    let (pod, seen) = only(&pods);
    let served = (decision.reason.as_str(), decision.pod);
    assert_eq!(served, ("no_pods", name(&pods[pod])));
    assert!(!seen.headers.contains_key("x-vllm-cluster"));
}

#[tokio::test]
async fn hosts_come_and_go_while_requests_flow() {
    let pods = [
        Stub::start().await,
        Stub::start().await,
        Stub::start().await,
    ];
    let [a, b, c] = pods.each_ref().map(|pod| (pod.port(), name(pod)));
    let mut hosts = Hosts::new(&[a.0, b.0]);
    let (envoy, _) = with_hosts(&hosts, json!({ "policy": { "slow_start_ms": 0 } }), 2).await;
    until_found(&envoy, 2).await;
    let envoy = Arc::new(envoy);
    let ends = Arc::new(AtomicBool::new(false));
    let traffic = {
        let (envoy, ends) = (envoy.clone(), ends.clone());
        tokio::spawn(async move {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) {
                let body = rig::prompt(&format!("flow {sent}"), 1000);
                let reply = post(&envoy, &body).await;
                assert_eq!(reply.status, 200, "{reply:?}");
                sent += 1;
            }
            sent
        })
    };
    let body = rig::prompt("of a", 3000);
    let mut at_a = decide(&envoy, &body).await;
    let mut seed = 0;
    while at_a.pod != a.1 {
        seed += 1;
        at_a = decide(&envoy, &rig::prompt(&format!("of a {seed}"), 3000)).await;
    }
    let body = match seed {
        0 => body,
        _ => rig::prompt(&format!("of a {seed}"), 3000),
    };
    assert_eq!(decide(&envoy, &body).await.matched, at_a.chunks);

    hosts.set(&[b.0, c.0]);
    envoy
        .eventually("c gets requests and a none", || async {
            pods.iter().for_each(|pod| drop(pod.take()));
            tokio::time::sleep(Duration::from_millis(300)).await;
            let counts = pods.each_ref().map(|pod| pod.take().len());
            counts[0] == 0 && counts[2] > 0
        })
        .await;
    let elsewhere = decide(&envoy, &body).await;
    assert!(
        elsewhere.pod != a.1 && elsewhere.matched == 0,
        "{elsewhere:?}"
    );

    // It was away: another process, for all that is known.
    hosts.set(&[a.0]);
    until_found(&envoy, 1).await;
    let back = decide(&envoy, &body).await;
    assert_eq!((back.pod, back.matched), (a.1.clone(), 0));

    // A host that drains or is said to be unhealthy is not chosen, whatever it holds.
    hosts.set_health(&[(a.0, "DRAINING"), (b.0, "UNHEALTHY"), (c.0, "HEALTHY")]);
    until_found(&envoy, 3).await;
    envoy
        .eventually("its health is known", || async {
            let samples = envoy.prometheus().await;
            let healthy = |pod: &str| samples.sum("prefix_router_pod_healthy", &[("pod", pod)]);
            [&a.1, &b.1, &c.1].map(|pod| healthy(pod)) == [Some(0.0), Some(0.0), Some(1.0)]
        })
        .await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    for i in 0..8 {
        assert_eq!(
            decide(&envoy, &rig::prompt(&format!("well {i}"), 1000))
                .await
                .pod,
            c.1
        );
    }
    assert_eq!(decide(&envoy, &body).await.pod, c.1);

    ends.store(true, Ordering::Relaxed);
    let sent = traffic.await.expect("no request failed");
    assert!(sent > 100, "{sent} requests");
}

/// Ejected for 5 s, and then for 10 s more; meanwhile the control plane finds it unhealthy, and
/// then healthy again.
#[tokio::test]
async fn a_pod_that_was_found_ill_and_is_no_more_is_tried_before_its_ejection_ends() {
    let mut pods = [Stub::start().await, Stub::start().await];
    let [a, b] = pods.each_ref().map(Stub::port);
    let mut hosts = Hosts::new(&[a, b]);
    let (envoy, _) = with_hosts(&hosts, json!({ "policy": { "slow_start_ms": 0 } }), 2).await;
    until_found(&envoy, 2).await;
    pods[0].kill().await;
    let start = Instant::now();
    let mut serial = 0;
    let mut served = async |until: Duration, by: Option<&str>| {
        while start.elapsed() < until {
            serial += 1;
            let body = rig::prompt(&format!("eject {serial}"), 1000);
            let pod = decide(&envoy, &body).await.pod;
            if by.is_some_and(|by| by == pod) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        start.elapsed()
    };
    served(Duration::from_millis(6000), None).await;
    hosts.set_health(&[(a, "UNHEALTHY"), (b, "HEALTHY")]);
    served(Duration::from_millis(6500), None).await;
    pods[0].revive().await;
    hosts.set(&[a, b]);
    let took = served(Duration::from_secs(13), Some(&name(&pods[0]))).await;
    assert!(took < Duration::from_secs(12), "served after {took:?}");
}

#[tokio::test]
async fn the_next_vm_goes_on_polling_when_the_holder_of_the_lease_is_gone() {
    let pods = [Stub::start().await, Stub::start().await];
    let mut hosts = Hosts::new(&[pods[0].port()]);
    let (mut envoy, bootstrap) = with_hosts(&hosts, json!({}), 2).await;
    until_found(&envoy, 1).await;
    // Another VM on every thread; those that hold the lease now are gone.
    envoy.update(&bootstrap.with_new_vm("second")).await;
    let decision = decide(&envoy, &rig::prompt("at once", 1000)).await;
    assert_eq!(
        decision.pod,
        name(&pods[0]),
        "the list is there before any poll"
    );
    hosts.set(&[pods[0].port(), pods[1].port()]);
    until_found(&envoy, 2).await;
    let age = gauge(&envoy, "prefix_router_discovery_age_seconds").await;
    assert!((0.0..=1.0).contains(&age), "{age} s");
}

#[tokio::test]
async fn without_the_admin_cluster_pods_of_the_configuration_serve_and_one_line_says_so() {
    let pods = Stub::three().await;
    let discovery =
        json!({ "cluster": "vllm-*", "admin_cluster": "nowhere", "poll_interval_ms": 100 });
    // The second calls a cluster without any host: it fails inside of the call.
    let scrape = json!({ "poll_interval_ms": 100, "cluster": "empty" });
    let empty = json!({ "name": "empty", "type": "STATIC", "connect_timeout": "1s" });
    let change = |bootstrap: Bootstrap| {
        bootstrap
            .with_plugin(json!({ "discovery": discovery, "metrics_scrape": scrape }))
            .with_cluster(empty)
    };
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 2, change).await;
    envoy
        .eventually("several polls fail", || async {
            gauge(&envoy, "prefix_router_failed_polls_total").await >= 3.0
        })
        .await;
    let body = rig::prompt("static", 2000);
    let first = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    let again = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    assert_eq!((again.pod, again.matched), (first.pod, first.chunks));
    let log = envoy.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("nowhere"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

/// Beside an Envoy whose filter has only its own requests to go by.
#[tokio::test]
async fn a_pod_that_envoy_sees_again_is_tried_earlier() {
    let mut pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let checked = |bootstrap: Bootstrap| {
        let checked = |name: &str| name == "vllm" || name.ends_with("/only");
        bootstrap.with_clusters(checked, |cluster| {
            let check = &mut cluster["health_checks"][0];
            check["unhealthy_threshold"] = json!(1);
            for interval in ["interval", "unhealthy_interval", "no_traffic_interval"] {
                check[interval] = json!("0.2s");
            }
        })
    };
    let discovers = |b: Bootstrap| checked(b).with_discovery(every_100_ms("vllm-*"));
    let told = rig::envoy_with(ports, 2, discovers).await;
    let alone = rig::envoy_with(ports, 2, checked).await;
    until_found(&told, 3).await;
    // What would go there fails, at both, before Envoy has checked.
    let cold: Vec<_> = (0..12)
        .map(|i| rig::prompt(&format!("cold {i}"), 3000))
        .collect();
    pods[0].kill().await;
    for body in &cold {
        decide(&told, body).await;
        decide(&alone, body).await;
    }
    for envoy in [&told, &alone] {
        let unfit = || async { gauge(envoy, "prefix_router_pod_fit").await == 2.0 };
        envoy.eventually("the pod is ejected", unfit).await;
    }
    let unhealthy = || async { gauge(&told, "prefix_router_pod_healthy").await == 2.0 };
    told.eventually("Envoy has noticed", unhealthy).await;
    pods[0].revive().await;
    let mut back = Vec::new();
    for i in 0.. {
        assert!(i < 300, "never: {back:?}");
        for (name, envoy) in [("told", &told), ("alone", &alone)] {
            let body = rig::prompt(&format!("later {i}"), 3000);
            if decide(envoy, &body).await.pod == PODS[0] && !back.contains(&name) {
                back.push(name);
            }
        }
        if back.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(back, ["told", "alone"]);
}
