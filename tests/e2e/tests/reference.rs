//! The same random calls at the filter's string server and at the one on SQL.
//!
//! Of a pod that never was over its capacity the answers are equal. Beyond that the exact LRU at
//! capacity C holds all that the filter holds, and the filter all that an exact LRU holds that is
//! smaller by the documented slack, C/8 and one prompt: the filter evicts in grains.

use e2e::client::{Conn, Version};
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::Stub;
use serde_json::{json, Value};
use sql_reference::service::{router, Settings};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

/// Chunks of the longest prompt.
const LONGEST: usize = 24;

/// One sequence of calls.
#[derive(Debug, Clone, Copy)]
struct Case {
    chunk_bytes: usize,
    capacity: u32,
    calls: usize,
    seed: u64,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// One of many conversations, each of which shares its beginning with some others.
    fn prompt(&mut self, chunk_bytes: usize) -> String {
        let (system, chat) = (self.below(3), self.below(40));
        let system = rig::text(&format!("system {system}"), self.below(2) * 4 * chunk_bytes);
        let turns = (1 + self.below(20)) * chunk_bytes;
        let text = system + &rig::text(&format!("chat {chat}"), turns);
        text + &"!".repeat(self.below(chunk_bytes))
    }
}

/// A string server, by its address.
struct Server(SocketAddr);

impl Server {
    /// The reference at a capacity.
    async fn on_sql(case: Case, capacity: u32) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let settings = Settings {
            servers: PODS.map(String::from).to_vec(),
            chunk_bytes: case.chunk_bytes,
            capacity_chunks: capacity,
        };
        tokio::spawn(async move { axum::serve(listener, router(settings)).await });
        Self(address)
    }

    /// Calls over a connection of its own, so that any worker may get it.
    async fn call(&self, resource: &str, body: &Value) -> Value {
        let path = format!("/prefix-router/{resource}");
        let reply = Conn::open(self.0, Version::H1)
            .await
            .post(&path, body)
            .await;
        assert_eq!(reply.status, 200, "{body}: {reply:?}");
        reply.json()
    }
}

async fn filter(case: Case) -> (Envoy, Server) {
    let pods = Stub::three().await;
    let keys = json!({
        "chunk_bytes": case.chunk_bytes,
        "capacity_chunks": case.capacity,
        "max_capacity_chunks": case.capacity.max(1024),
    });
    let ports = pods.each_ref().map(Stub::port);
    let envoy = rig::envoy_with(ports, 2, |shipped| shipped.with_plugin(keys)).await;
    let server = Server(envoy.api_address());
    (envoy, server)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Plays a sequence; returns how many scores were compared beyond capacity, and how many of them
/// were not those of the exact LRU.
async fn play(case: Case) -> (usize, usize) {
    let (_envoy, filter) = filter(case).await;
    let exact = Server::on_sql(case, case.capacity).await;
    let slack = case.capacity / 8 + LONGEST as u32;
    let least = Server::on_sql(case, case.capacity.saturating_sub(slack)).await;
    let mut random = Random(case.seed);
    let mut evicted: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut beyond, mut apart) = (0, 0);
    for number_of_call in 0..case.calls {
        // It repeats itself and runs backwards now and then.
        let t = 1000.0 + (number_of_call / 3) as f64 / 7.0 - random.below(3) as f64;
        let request = random.prompt(case.chunk_bytes);
        let context = format!("call {number_of_call} of {case:?}");
        if random.below(3) > 0 {
            let pod = PODS[random.below(2 + random.0 as usize % 2)];
            let body = json!({"request": request, "server_id": pod, "t": t});
            let got = filter.call("notify", &body).await;
            let want = exact.call("notify", &body).await;
            least.call("notify", &body).await;
            assert_eq!(got["stored_chunks"], want["stored_chunks"], "{context}");
            let lost = evicted.entry(pod).or_default();
            *lost += number(&want["evicted_chunks"]);
            if *lost == 0 {
                assert_eq!(got, want, "{context}");
            }
            continue;
        }
        let ids = json!([PODS[1], 7, PODS[0], PODS[2]]);
        let body = json!({"request": request, "server_ids": ids, "t": t});
        let got = filter.call("query", &body).await;
        let want = exact.call("query", &body).await;
        let floor = least.call("query", &body).await;
        assert_eq!(got["chunks"], want["chunks"], "{context}");
        if evicted.values().all(|lost| *lost == 0) {
            assert_eq!(got, want, "{context}");
        }
        for pod in PODS {
            let [got, want, floor] = [&got, &want, &floor].map(|a| number(&a["scores"][pod]));
            if evicted.get(pod).is_none_or(|lost| *lost == 0) {
                assert_eq!(got, want, "{pod}, {context}");
                continue;
            }
            beyond += 1;
            apart += usize::from(got != want);
            assert!(
                (floor..=want).contains(&got),
                "{floor} <= {got} <= {want}: {pod}, {context}"
            );
        }
        let scores = got["scores"].as_object().expect("scores");
        let most = scores.values().map(number).max().expect("scores");
        assert_eq!(number(&got["matched_chunks"]), most);
        let first = ids.as_array().expect("ids").iter().find(|id| {
            let name = id.as_str().map_or_else(|| id.to_string(), String::from);
            number(&scores[&name]) == most
        });
        assert_eq!(Some(&got["server_id"]), first, "{context}");
    }
    (beyond, apart)
}

#[tokio::test]
async fn under_capacity_the_answers_are_equal() {
    for (chunk_bytes, seed) in [(16, 1), (256, 2)] {
        let (capacity, calls) = (4096, 250);
        let case = Case {
            chunk_bytes,
            capacity,
            calls,
            seed,
        };
        assert_eq!(play(case).await, (0, 0), "nothing was evicted");
    }
}

#[tokio::test]
async fn beyond_capacity_they_differ_by_no_more_than_the_grain() {
    for (chunk_bytes, capacity, seed) in [(16, 64, 3), (16, 200, 4), (64, 333, 5), (256, 128, 6)] {
        let case = Case {
            chunk_bytes,
            capacity,
            calls: 500,
            seed,
        };
        let (beyond, apart) = play(case).await;
        println!("{case:?}: {apart} of {beyond} scores are not those of the exact LRU");
        assert!(
            beyond > 50,
            "{case:?}: only {beyond} scores beyond capacity"
        );
    }
}
