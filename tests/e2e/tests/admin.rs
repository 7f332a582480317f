//! An admin listener that is slow, down, answers junk, or lists thousands of clusters: the last
//! good list stays, and shows its age.

use bytes::Bytes;
use e2e::bootstrap::Bootstrap;
use e2e::client::Version;
use e2e::envoy::{free_port, Envoy};
use e2e::rig::{self, PODS};
use e2e::stub::Stub;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{json, Value};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const CHAT: &str = "/v1/chat/completions";

#[derive(Clone)]
enum Manner {
    Says(u16, Bytes),
    Hangs,
}

/// What stands in for Envoy's admin listener.
struct Admin {
    port: u16,
    manner: Arc<Mutex<Manner>>,
    asked: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Admin {
    async fn start(manner: Manner) -> Self {
        let port = free_port();
        let manner = Arc::new(Mutex::new(manner));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.expect("a free port");
        let (m, a) = (manner.clone(), asked.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (manner, asked) = (m.clone(), a.clone());
                let serve = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let path = request.uri().to_string();
                    asked.lock().expect("log").push(path);
                    let manner = manner.lock().expect("manner").clone();
                    async move {
                        match manner {
                            Manner::Hangs => std::future::pending().await,
                            Manner::Says(status, body) => {
                                let mut answer = http::Response::new(Full::new(body));
                                *answer.status_mut() = status.try_into().expect("a status");
                                Ok::<_, Infallible>(answer)
                            }
                        }
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                connections.spawn(async move {
                    let _ = server.serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        Self {
            port,
            manner,
            asked,
            task,
        }
    }

    fn set(&self, manner: Manner) {
        *self.manner.lock().expect("manner") = manner;
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("log").len()
    }

    /// As a cluster of Envoy.
    fn cluster(&self) -> Value {
        let address = json!({ "address": "127.0.0.1", "port_value": self.port });
        let endpoint = json!({ "endpoint": { "address": { "socket_address": address } } });
        json!({
            "name": "admin", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": { "cluster_name": "admin", "endpoints": [{ "lb_endpoints": [endpoint] }] },
        })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The dump of an Envoy with `others` clusters beside those of the pods.
fn dump(ports: [u16; 3], others: usize) -> Bytes {
    let host = |port: u16| {
        let stat = |name| json!({ "name": name, "value": "7", "type": "GAUGE" });
        let stats = ["cx_active", "cx_total", "rq_active", "rq_error", "rq_total"].map(stat);
        json!({
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
            "stats": stats,
            "health_status": { "eds_health_status": "HEALTHY" },
            "weight": 1, "locality": {},
        })
    };
    let cluster = |name: String, hosts: Vec<Value>| json!({ "name": name, "host_statuses": hosts, "observability_name": name });
    let mut all: Vec<Value> = (0..others)
        .map(|n| cluster(format!("outbound|80||svc-{n}.ns"), vec![host(80), host(81)]))
        .collect();
    for (name, port) in PODS.iter().zip(ports) {
        let middle = all.len() / 2;
        all.insert(middle, cluster(format!("{name}/only"), vec![host(port)]));
        all.push(json!({ "name": name }));
    }
    let all = json!({ "cluster_statuses": all });
    serde_json::to_vec_pretty(&all).expect("JSON").into()
}

async fn start(admin: &Admin, ports: [u16; 3]) -> Envoy {
    let discovery =
        json!({ "cluster": "vllm-*", "admin_cluster": "admin", "poll_interval_ms": 100 });
    let cluster = admin.cluster();
    rig::envoy_with(ports, 2, |bootstrap: Bootstrap| {
        bootstrap.with_discovery(discovery).with_cluster(cluster)
    })
    .await
}

async fn sample(envoy: &Envoy, name: &str) -> f64 {
    envoy.prometheus().await.sum(name, &[]).unwrap_or(0.0)
}

async fn found(envoy: &Envoy) {
    envoy
        .eventually("three pods are found", || async {
            sample(envoy, "prefix_router_discovered_pods").await == 3.0
        })
        .await;
    tokio::time::sleep(Duration::from_millis(250)).await;
}

#[tokio::test]
async fn whatever_the_admin_listener_does_the_last_list_stays() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let good = dump(ports, 0);
    let admin = Admin::start(Manner::Says(200, good.clone())).await;
    let envoy = start(&admin, ports).await;
    found(&envoy).await;
    let body = rig::prompt("kept", 3000);
    let home = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    let bad = [
        Manner::Says(200, Bytes::from_static(b"<html>no</html>")),
        Manner::Says(200, Bytes::from_static(b"{}")),
        Manner::Says(200, Bytes::new()),
        Manner::Says(200, good.slice(..good.len() - 5)),
        Manner::Says(200, Bytes::from(vec![b'['; 200_000])),
        Manner::Says(200, Bytes::from(vec![b' '; (16 << 20) + 1])),
        Manner::Says(503, good.clone()),
        Manner::Hangs,
    ];
    for manner in bad {
        let failed = sample(&envoy, "prefix_router_failed_polls_total").await;
        admin.set(manner);
        envoy
            .eventually("a poll fails", || async {
                sample(&envoy, "prefix_router_failed_polls_total").await > failed
            })
            .await;
        for _ in 0..2 {
            let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
            assert_eq!(
                (decision.pod.as_str(), decision.matched),
                (home.pod.as_str(), home.chunks)
            );
        }
        admin.set(Manner::Says(200, good.clone()));
        let asked = admin.asked();
        envoy
            .eventually("a poll succeeds", || async {
                admin.asked() > asked
                    && sample(&envoy, "prefix_router_discovery_age_seconds").await == 0.0
            })
            .await;
    }
    drop(admin);
    envoy
        .eventually("the list shows its age", || async {
            sample(&envoy, "prefix_router_discovery_age_seconds").await >= 3.0
        })
        .await;
    let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
    assert_eq!((decision.pod, decision.matched), (home.pod, home.chunks));
}

#[tokio::test]
async fn two_thousand_other_clusters_cost_a_pause_and_nothing_else() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let body = dump(ports, 2000);
    assert!(body.len() > 3 << 20, "{} bytes", body.len());
    let admin = Admin::start(Manner::Says(200, body)).await;
    let envoy = start(&admin, ports).await;
    found(&envoy).await;
    let (asked, start) = (admin.asked(), Instant::now());
    let mut conn = envoy.connect(Version::H1).await;
    let mut slowest = Duration::ZERO;
    while start.elapsed() < Duration::from_secs(2) {
        let before = Instant::now();
        let prompt = rig::prompt(&format!("beside {:?}", start.elapsed()), 2000);
        assert_eq!(conn.post(CHAT, &prompt).await.status, 200);
        slowest = slowest.max(before.elapsed());
    }
    let asked = admin.asked() - asked;
    println!("{asked} polls in 2 s, the slowest request took {slowest:?}");
    assert!((1..=20).contains(&asked), "{asked} polls in 2 s");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}
