//! What the pods say of themselves: restarts, models, the size of their caches, load of others.

use e2e::bootstrap::Bootstrap;
use e2e::client::{Conn, Version};
use e2e::envoy::{free_port, Envoy};
use e2e::rig::{self, PODS};
use serde_json::json;
use sim_vllm::{Fault, PodConfig, SimPod};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

fn pods(change: impl Fn(usize, &mut PodConfig)) -> [SimPod; 3] {
    [0, 1, 2].map(|i| {
        let mut config = PodConfig::named(PODS[i]);
        change(i, &mut config);
        SimPod::start(config).expect("the pod starts")
    })
}

async fn envoy(pods: &[SimPod; 3], keys: serde_json::Value) -> Envoy {
    let change = |bootstrap: Bootstrap| {
        bootstrap
            .with_plugin(json!({ "metrics_scrape": { "poll_interval_ms": 100 } }))
            .with_plugin(keys)
    };
    rig::envoy_with(pods.each_ref().map(|pod| pod.addr.port()), 2, change).await
}

async fn gauge(envoy: &Envoy, name: &str, pod: &str) -> Option<f64> {
    envoy.prometheus().await.sum(name, &[("pod", pod)])
}

/// Every pod was read, and every worker knows.
async fn scraped(envoy: &Envoy, pods: &[SimPod; 3]) {
    let read =
        |path: &'static str| move |pod: &SimPod| pod.received().iter().any(|r| r.path == path);
    envoy
        .eventually("every pod is asked", || async {
            pods.iter().all(read("/metrics")) && pods.iter().all(read("/v1/models"))
        })
        .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
}

#[tokio::test]
async fn a_pod_that_restarted_at_the_same_address_has_no_credit() {
    let pods = pods(|_, _| {});
    let envoy = envoy(&pods, json!({})).await;
    scraped(&envoy, &pods).await;
    let body = rig::prompt("before the restart", 4000);
    let mut conn = envoy.connect(Version::H1).await;
    let first = conn.post(CHAT, &body).await.decision();
    let again = conn.post(CHAT, &body).await.decision();
    assert_eq!(
        (again.pod.as_str(), again.matched),
        (first.pod.as_str(), first.chunks)
    );
    pods[rig::index(&first.pod)].restart();
    let forgotten = format!("pod {} has restarted", first.pod);
    envoy
        .eventually("the restart is seen", || async {
            envoy.log().contains(&forgotten)
        })
        .await;
    let after = conn.post(CHAT, &body).await.decision();
    assert_eq!(after.matched, 0, "{after:?}");
}

/// Fresh prompts one after the other, all answered, until `done` says so of who served.
async fn traffic(envoy: &Envoy, mut done: impl FnMut(&str) -> bool) {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let mut conn = envoy.connect(Version::H1).await;
    loop {
        let seed = format!("traffic {}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let reply = conn.post(CHAT, &rig::prompt(&seed, 1000)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        if done(&reply.decision().pod) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Down for 7 s it is ejected for 5 s, and then for 10 s more.
#[tokio::test]
async fn a_pod_whose_metrics_answer_again_is_tried_before_its_ejection_ends() {
    let pods = pods(|_, _| {});
    let envoy = envoy(&pods, json!({})).await;
    scraped(&envoy, &pods).await;
    pods[0].set_fault(Fault {
        refuse_ms: Some(7000),
        restart: true,
        ..Fault::default()
    });
    let start = Instant::now();
    traffic(&envoy, |_| start.elapsed() > Duration::from_secs(6)).await;
    traffic(&envoy, |pod| pod == PODS[0]).await;
    let took = start.elapsed();
    let times = Duration::from_secs(7)..Duration::from_secs(12);
    assert!(times.contains(&took), "served after {took:?}");
}

/// Its metrics can be read, but no request gets through to it.
#[tokio::test]
async fn a_pod_that_answers_all_but_requests_is_hardly_tried_more_often() {
    let pods = pods(|_, _| {});
    let nobody = free_port();
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": nobody } });
    let dead = json!({
        "name": "vllm-0/dead",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": "vllm-0/dead",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
        },
    });
    let change = |bootstrap: Bootstrap| {
        bootstrap
            .with_plugin(json!({ "metrics_scrape": { "poll_interval_ms": 100 } }))
            .with_cluster(dead)
            // Nor through the pool, where the next attempt goes.
            .with_clusters(
                |name| name == "vllm",
                |cluster| {
                    let hosts = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
                    hosts.as_array_mut().expect("hosts").remove(0);
                },
            )
            .with_clusters(
                |name| name == PODS[0],
                |cluster| {
                    let typed = &mut cluster["cluster_type"]["typed_config"];
                    typed["clusters"] = json!(["vllm-0/dead", "vllm"]);
                },
            )
    };
    let envoy = rig::envoy_with(pods.each_ref().map(|pod| pod.addr.port()), 2, change).await;
    scraped(&envoy, &pods).await;
    let start = Instant::now();
    // Who met the dead cluster first was answered at another attempt.
    let tried = || {
        let log = envoy.access_log();
        log.lines()
            .filter(|line| !line.contains(" attempts=1 "))
            .count()
    };
    // Ejected for 5 s, and tried after 1.5 s; then for 10 s, and tried after 6.5 s.
    for until_s in [4, 7] {
        traffic(&envoy, |_| start.elapsed() > Duration::from_secs(until_s)).await;
        // The log is written every 50 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(tried(), 2, "after {until_s} s");
    }
}

#[tokio::test]
async fn requests_go_to_pods_that_list_their_model() {
    let pods = pods(|i, config| config.models = vec![format!("model-{}", i % 2)]);
    let envoy = envoy(&pods, json!({})).await;
    scraped(&envoy, &pods).await;
    let mut seen = [0; 3];
    for i in 0..30 {
        let mut body = rig::prompt(&format!("modelled {i}"), 1000);
        body["model"] = format!("model-{}", i % 2).into();
        let reply = envoy.connect(Version::H1).await.post(CHAT, &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let pod = rig::index(&reply.decision().pod);
        assert_eq!(pod % 2, i % 2);
        seen[pod] += 1;
    }
    assert_eq!(seen[1], 15, "{seen:?}");
    assert!(seen[0] > 0 && seen[2] > 0, "{seen:?}");
    let mut body = rig::prompt("nobody serves this", 1000);
    body["model"] = "model-9".into();
    let reply = envoy.connect(Version::H1).await.post(CHAT, &body).await;
    assert_eq!(reply.status, 404, "vLLM's own answer: {reply:?}");
}

#[tokio::test]
async fn an_automatic_capacity_is_that_of_the_pods_cache() {
    let pods = pods(|i, config| config.num_gpu_blocks = 1000 * (i + 1));
    let envoy = envoy(&pods, json!({ "capacity_chunks": "auto" })).await;
    for (i, pod) in PODS.iter().enumerate() {
        let chunks = (1000 * (i + 1) * 16 * 4 / 256) as f64;
        envoy
            .eventually("the capacity is known", || async {
                gauge(&envoy, "prefix_router_capacity_chunks", pod).await == Some(chunks)
            })
            .await;
    }
}

#[tokio::test]
async fn requests_that_others_sent_count_as_load() {
    let pods = pods(|_, config| config.decode_ms_per_token = 20.0);
    let envoy = envoy(&pods, json!({})).await;
    scraped(&envoy, &pods).await;
    // Past this gateway, 400 tokens of 20 ms each.
    let mut past = vec![];
    for i in 0..20 {
        let mut body = rig::prompt(&format!("past the gateway {i}"), 1000);
        body["max_tokens"] = 400.into();
        body["ignore_eos"] = true.into();
        let mut conn = Conn::open(pods[0].addr, Version::H1).await;
        past.push(tokio::spawn(
            async move { conn.post(CHAT, &body).await.status },
        ));
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut seen = [0; 3];
    for i in 0..12 {
        let mut body = rig::prompt(&format!("beside {i}"), 300);
        body["max_tokens"] = 1.into();
        let reply = envoy.connect(Version::H1).await.post(CHAT, &body).await;
        seen[rig::index(&reply.decision().pod)] += 1;
    }
    assert_eq!(seen[0], 0, "20 requests are there already: {seen:?}");
    past.iter().for_each(|task| task.abort());
}
