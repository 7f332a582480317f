//! A whole request without Envoy: its callbacks in order, over shared data in memory, and how
//! often it would call the host.

use bench::bodies;
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use prefix_router::config::Config;
use prefix_router::metrics::{Meter, Metric};
use prefix_router::pods::load::LoadBoard;
use prefix_router::pods::Member;
use prefix_router::policy::Reason;
use prefix_router::request::{Request, Served, Step};
use prefix_router::router::{Env, Router};
use prefix_router::store::{Conflict, Expect, MemoryStore, SharedStore, Versioned};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

const CONFIG: &str = r#"{"response_header": "full", "pods": [
    {"name": "vllm-0", "address": "10.0.0.1:8000"},
    {"name": "vllm-1", "address": "10.0.0.2:8000"},
    {"name": "vllm-2", "address": "10.0.0.3:8000"}]}"#;
const ANSWER: &[u8] = br#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"yes"}}],"usage":{"prompt_tokens":70,"completion_tokens":4,"total_tokens":74,"prompt_tokens_details":{"cached_tokens":64}}}"#;

/// Counts the calls that the host would get, by kind.
#[derive(Default)]
struct Calls(std::cell::RefCell<BTreeMap<String, u64>>);

impl Calls {
    fn add(&self, kind: &str) {
        *self.0.borrow_mut().entry(kind.to_string()).or_default() += 1;
    }
}

/// A store or a meter that counts its calls, if it has somewhere to count them.
struct Counting<'a> {
    store: &'a MemoryStore,
    calls: Option<&'a Calls>,
}

impl Counting<'_> {
    fn add(&self, what: &str, key: &str) {
        if let Some(calls) = self.calls {
            let kind = key.rsplit('/').find(|part| part.parse::<u32>().is_err());
            calls.add(&format!("{what} {}", kind.unwrap_or("")));
        }
    }
}

impl SharedStore for Counting<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.add("get", key);
        self.store.get(key)
    }
    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        self.add("set", key);
        self.store.set(key, bytes, expect)
    }
}

impl Meter for Counting<'_> {
    fn decision(&self, _: Reason, _: Option<&Member>) {
        self.add("count", "decisions");
    }
    fn count(&self, metric: Metric, n: u64) {
        if n > 0 {
            self.add("count", metric.name());
        }
    }
    fn count_labelled(&self, metric: Metric, _: &'static str, _: &'static str, n: u64) {
        self.count(metric, n);
    }
    fn count_on(&self, metric: Metric, _: &Member, n: u64) {
        self.count(metric, n);
    }
    fn record(&self, metric: Metric, _: u64) {
        self.add("record", metric.name());
    }
    fn decisions(&self, _: Reason, _: Option<&Member>) -> u64 {
        0
    }
    fn saved(&self) -> u64 {
        0
    }
    fn total(&self, _: Metric, _: Option<&Member>) -> u64 {
        0
    }
}

struct World {
    router: Router,
    store: MemoryStore,
    now_ms: Cell<u64>,
}

impl World {
    fn new() -> Self {
        let config = Config::parse(CONFIG.as_bytes()).expect("a valid configuration");
        let board = Rc::new(LoadBoard::new(&config.pool, 1));
        Self {
            router: Router::new(config, board, true),
            store: MemoryStore::default(),
            now_ms: Cell::new(1000),
        }
    }

    /// One request from its headers to its end, a millisecond after the one before.
    fn serve(&self, body: &[u8], calls: Option<&Calls>) {
        self.now_ms.set(self.now_ms.get() + 1);
        let counting = Counting {
            store: &self.store,
            calls,
        };
        let clock = || {
            counting.add("clock", "");
            self.now_ms.get()
        };
        let env = || Env::new(&counting, &counting, &clock);
        let header = |name: &str| {
            counting.add("header", name);
            match name {
                ":path" => Some(b"/v1/chat/completions".to_vec()),
                ":method" => Some(b"POST".to_vec()),
                _ => None,
            }
        };
        let router = &self.router;
        let mut request = Request::default();
        let step = request.on_headers(router, &env(), &header, &|| None, false);
        assert_eq!(step, Step::Hold);
        let read = |start: usize, most: usize| {
            counting.add("body", "");
            Some(body[start..][..most].to_vec())
        };
        let step = request.on_body(router, &env(), body.len(), true, &read);
        assert!(matches!(step, Step::Go(_)), "{step:?}");
        let served = Served {
            status: 200,
            upstream: Some("10.0.0.1:8000"),
            flags: &|| 0,
            attempts: &|| 1,
            content_type: &|| Some(b"application/json".to_vec()),
        };
        request.on_answer(router, &env(), &served, false);
        let read = |start: usize, most: usize| {
            counting.add("answer", "");
            ANSWER
                .get(start..)
                .map(|rest| rest[..most.min(rest.len())].to_vec())
        };
        request.on_answer_body(router, &env(), ANSWER.len(), &read);
        request.on_answer_body(router, &env(), 0, &read);
        request.on_end(router, &env());
    }
}

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("a whole request");
    for size in [1_000, 16_000, 100_000] {
        let bodies = bodies::chats(size, (32_000_000 / size).clamp(24, 512));
        let world = World::new();
        bodies.iter().for_each(|body| world.serve(body, None));
        let calls = Calls::default();
        bodies
            .iter()
            .for_each(|body| world.serve(body, Some(&calls)));
        println!("{} KB, calls of the host per request:", size / 1000);
        for (kind, number) in calls.0.into_inner() {
            println!("  {:5.2} {kind}", number as f64 / bodies.len() as f64);
        }
        let mut turn = bodies.iter().cycle();
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("{} KB", size / 1000), |b| {
            b.iter(|| turn.next().map(|body| world.serve(body, None)));
        });
    }
}

criterion_group!(benches, requests);
criterion_main!(benches);
