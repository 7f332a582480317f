//! The life of a request, scripted over the in-memory store.

use super::*;
use crate::config::Config;
use crate::metrics::Meter;
use crate::pods::load::{Load, LoadBoard};
use crate::pods::Member;
use crate::store::MemoryStore;
use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";
const STRANGER: &str = "10.9.9.9:8000";

mod responses;
mod tokens;

/// Counts in a map.
#[derive(Default)]
struct Tally(RefCell<BTreeMap<&'static str, u64>>);

impl Tally {
    fn of(&self, metric: Metric) -> u64 {
        self.0.borrow().get(metric.name()).copied().unwrap_or(0)
    }
}

impl Meter for Tally {
    fn decision(&self, _: Reason, _: Option<&Member>) {
        self.count(Metric::Decisions, 1);
    }
    fn count(&self, metric: Metric, n: u64) {
        *self.0.borrow_mut().entry(metric.name()).or_default() += n;
    }
    fn count_labelled(&self, metric: Metric, _: &'static str, _: &'static str, n: u64) {
        self.count(metric, n);
    }
    fn count_on(&self, metric: Metric, _: &Member, n: u64) {
        self.count(metric, n);
    }
    fn record(&self, metric: Metric, value: u64) {
        self.count(metric, value);
    }
    fn decisions(&self, _: Reason, _: Option<&Member>) -> u64 {
        self.of(Metric::Decisions)
    }
    fn saved(&self) -> u64 {
        self.of(Metric::SavedPrefillTokens)
    }
    fn total(&self, metric: Metric, _: Option<&Member>) -> u64 {
        self.of(metric)
    }
}

struct World {
    store: MemoryStore,
    router: Router,
    meter: Tally,
}

impl World {
    fn new(extra: &str) -> Self {
        Self::with_pause(extra, true)
    }

    fn with_pause(extra: &str, may_pause: bool) -> Self {
        let text = format!(
            r#"{{"chunk_bytes": 16, "response_header": "full", "pods": [
                {{"name": "a", "address": "{A}"}}, {{"name": "b", "address": "{B}"}}]{extra}}}"#
        );
        let config = Config::parse(text.as_bytes()).unwrap();
        let board = Rc::new(LoadBoard::new(&config.pool, 1));
        Self {
            store: MemoryStore::default(),
            router: Router::new(config, board, may_pause),
            meter: Tally::default(),
        }
    }

    fn env(&self) -> Env<'_> {
        Env::new(&self.store, &self.meter, &|| 1000)
    }

    fn headers(
        &self,
        request: &mut Request,
        path: &str,
        extra: &[(&str, &str)],
        end: bool,
    ) -> Step {
        let header = |name: &str| {
            let known = [(":path", path), (":method", "POST"), (":authority", "llm")];
            let value = extra.iter().chain(&known).find(|(n, _)| *n == name)?.1;
            Some(value.as_bytes().to_vec())
        };
        let cluster = || Some(b"vllm".to_vec());
        request.on_headers(&self.router, &self.env(), &header, &cluster, end)
    }

    /// One more piece of a body.
    fn body(&self, request: &mut Request, piece: &[u8], end: bool) -> Step {
        let read = |start: usize, most: usize| {
            let rest = &piece[start..];
            Some(rest[..most.min(rest.len())].to_vec())
        };
        request.on_body(&self.router, &self.env(), piece.len(), end, &read)
    }

    fn send(&self, body: &str) -> (Request, Go) {
        let mut request = Request::default();
        assert_eq!(
            self.headers(&mut request, "/v1/chat/completions", &[], false),
            Step::Hold
        );
        let Step::Go(go) = self.body(&mut request, body.as_bytes(), true) else {
            panic!("held")
        };
        (request, go)
    }

    fn answer(&self, request: &mut Request, status: u16, upstream: Option<&str>) -> String {
        self.answer_with(request, status, upstream, 0)
    }

    fn answer_with(
        &self,
        request: &mut Request,
        status: u16,
        upstream: Option<&str>,
        flags: u64,
    ) -> String {
        let answer = self.on_answer(request, status, upstream, flags);
        answer.unwrap().header.unwrap_or_default()
    }

    fn on_answer(
        &self,
        request: &mut Request,
        status: u16,
        upstream: Option<&str>,
        flags: u64,
    ) -> Option<Answer> {
        let served = Served {
            status,
            upstream,
            flags: &|| flags,
            attempts: &|| 1,
            content_type: &|| Some(b"application/json".to_vec()),
        };
        request.on_answer(&self.router, &self.env(), &served, false)
    }

    fn first_byte(&self, request: &mut Request) {
        request.on_answer_body(&self.router, &self.env(), 0, &|_, _| None);
    }

    fn end(&self, mut request: Request) {
        request.on_end(&self.router, &self.env());
    }

    /// Chunks of the body that each pod holds.
    fn held(&self, body: &str) -> Vec<u32> {
        let prompts = prompt::read(
            Api::Chat,
            body.as_bytes(),
            Extent::Whole,
            self.router.config().chunk_bytes,
        )
        .unwrap();
        let members = self.router.members(&self.env());
        let question = Question {
            prompts: &prompts.prompts,
            ..Question::default()
        };
        let choice = self.router.choose(&self.env(), &members, question);
        choice.unwrap().matched
    }

    fn loads(&self) -> Vec<Load> {
        let members = self.router.members(&self.env());
        self.router.loads(&self.env(), &members).0
    }

    fn running(&self) -> Vec<u32> {
        self.loads().iter().map(|load| load.running).collect()
    }
}

fn chat(text: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn long(seed: &str) -> String {
    chat(&seed.repeat(40))
}

fn address(go: &Go) -> &'static str {
    if go.destination.as_deref() == Some(b"a") {
        A
    } else {
        B
    }
}

#[test]
fn a_second_turn_goes_where_the_first_went() {
    let world = World::new("");
    for seed in ["one ", "two ", "three ", "four "] {
        let (mut request, go) = world.send(&long(seed));
        assert!(go.report.contains("matched=0"), "{}", go.report);
        assert!(go.report.ends_with("reason=cold"), "{}", go.report);
        world.answer(&mut request, 200, Some(address(&go)));
        world.first_byte(&mut request);
        world.end(request);
        let (request, again) = world.send(&long(seed));
        assert_eq!(again.destination, go.destination);
        assert!(again.report.ends_with("reason=prefix"), "{}", again.report);
        world.end(request);
    }
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn a_burst_of_one_prompt_stays_together() {
    let world = World::new("");
    // Short enough to be computed elsewhere for less than it costs to wait, it would spill.
    let body = chat(&"burst ".repeat(4000));
    let sent: Vec<_> = (0..8).map(|_| world.send(&body)).collect();
    assert!(sent
        .iter()
        .all(|(_, go)| go.destination == sent[0].1.destination));
    assert_eq!(world.running().iter().sum::<u32>(), 8);
    sent.into_iter().for_each(|(request, _)| world.end(request));
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn a_credit_is_taken_back_when_the_pod_did_no_work() {
    type Ending = fn(&World, &mut Request, &'static str);
    let endings: [(&str, Ending); 5] = [
        ("client abort before the answer", |_, _, _| {}),
        ("no connection", |w, r, _| drop(w.answer(r, 503, None))),
        ("a pod's 500", |w, r, to| drop(w.answer(r, 500, Some(to)))),
        ("a pod's 404", |w, r, to| drop(w.answer(r, 404, Some(to)))),
        ("reset between headers and first byte", |w, r, to| {
            drop(w.answer(r, 200, Some(to)))
        }),
    ];
    for (name, ending) in endings {
        let world = World::new("");
        let body = long("work ");
        let (mut request, go) = world.send(&body);
        assert!(world.held(&body).iter().sum::<u32>() > 0);
        ending(&world, &mut request, address(&go));
        world.end(request);
        assert_eq!(world.held(&body), [0, 0], "{name}");
        assert_eq!(world.running(), [0, 0], "{name}");
    }
}

#[test]
fn a_credit_stands_from_the_first_byte_on() {
    let world = World::new("");
    let body = long("stands ");
    let (mut request, go) = world.send(&body);
    world.answer(&mut request, 200, Some(address(&go)));
    world.first_byte(&mut request);
    // The stream is reset in the middle of the answer.
    world.end(request);
    assert!(world.held(&body).iter().sum::<u32>() > 0);
}

#[test]
fn credit_follows_who_served() {
    let world = World::new("");
    let body = long("moved ");
    let (mut request, go) = world.send(&body);
    let other = if address(&go) == A { B } else { A };
    let header = world.answer(&mut request, 200, Some(other));
    assert!(
        header.starts_with(if other == A { "pod=\"a\"" } else { "pod=\"b\"" }),
        "{header}"
    );
    let running = world.running();
    assert_eq!(running.iter().sum::<u32>(), 1);
    assert_eq!(running[usize::from(other == B)], 1, "counted where it runs");
    world.first_byte(&mut request);
    world.end(request);
    let held = world.held(&body);
    assert!(held[usize::from(other == B)] > 0, "{held:?}");
    assert_eq!(held[usize::from(other == A)], 0, "{held:?}");
}

#[test]
fn a_stranger_gets_no_credit_and_is_named() {
    let world = World::new("");
    let body = long("stranger ");
    let (mut request, _) = world.send(&body);
    let header = world.answer(&mut request, 200, Some(STRANGER));
    assert!(
        header.starts_with("pod=\"10.9.9.9:8000\", matched=0"),
        "{header}"
    );
    world.first_byte(&mut request);
    assert_eq!(world.running(), [0, 0]);
    world.end(request);
    assert_eq!(world.held(&body), [0, 0]);
}

#[test]
fn what_has_no_prompt_goes_by_load_with_a_detail() {
    let world = World::new("");
    type Case = (
        &'static str,
        &'static [(&'static str, &'static str)],
        bool,
        &'static str,
    );
    let cases: [Case; 6] = [
        ("/v1/models", &[(":method", "GET")], true, "endpoint"),
        (
            "/v1/chat/completions",
            &[(":method", "PUT")],
            false,
            "endpoint",
        ),
        ("/v1/chat/completions", &[], true, "empty"),
        (
            "/v1/chat/completions",
            &[("content-encoding", "gzip")],
            false,
            "encoding",
        ),
        (
            "/v1/chat/completions",
            &[("upgrade", "websocket")],
            false,
            "upgrade",
        ),
        (
            "/v1/chat/completions",
            &[(":method", "CONNECT")],
            false,
            "upgrade",
        ),
    ];
    let mut open = Vec::new();
    for (path, headers, end, detail) in cases {
        let mut request = Request::default();
        let Step::Go(go) = world.headers(&mut request, path, headers, end) else {
            panic!("{path}")
        };
        assert!(go.report.contains("reason=no_prompt"), "{}", go.report);
        assert!(
            go.report.contains(&format!("detail=\"{detail}\"")),
            "{}",
            go.report
        );
        assert!(go.destination.is_some());
        open.push(request);
    }
    assert_eq!(world.running(), [3, 3], "by load");
    open.into_iter().for_each(|request| world.end(request));
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn malformed_bodies_are_forwarded_by_load() {
    let world = World::new("");
    for body in [
        "{",
        "[]",
        "null",
        "{\"messages\":",
        "\u{feff}x",
        "{\"messages\": 3}",
    ] {
        let (request, go) = world.send(body);
        assert!(
            go.report.contains("reason=no_prompt, detail="),
            "{body}: {}",
            go.report
        );
        world.end(request);
    }
}

#[test]
fn an_envoy_that_cannot_hold_headers_is_never_asked_to() {
    let world = World::with_pause("", false);
    let mut request = Request::default();
    let step = world.headers(&mut request, "/v1/chat/completions", &[], false);
    let Step::Go(go) = step else { panic!("held") };
    assert!(
        go.report.contains("detail=\"envoy_too_old\""),
        "{}",
        go.report
    );
    world.end(request);
}

#[test]
fn outside_of_match_nothing_is_done() {
    let world = World::new(r#", "match": {"path_prefixes": ["/team-a"]}"#);
    let mut request = Request::default();
    assert_eq!(
        world.headers(&mut request, "/v1/chat/completions", &[], false),
        Step::Pass
    );
    assert_eq!(
        world.body(&mut request, long("x").as_bytes(), true),
        Step::Pass
    );
    assert_eq!(world.on_answer(&mut request, 200, Some(A), 0), None);
    let step = world.headers(
        &mut Request::default(),
        "/team-a/v1/chat/completions",
        &[],
        false,
    );
    assert_eq!(step, Step::Hold);
    for (cluster, inside) in [("vllm", true), ("canary", false)] {
        let world = World::new(&format!(r#", "match": {{"clusters": ["{cluster}"]}}"#));
        let step = world.headers(&mut Request::default(), "/v1/models", &[], true);
        assert_eq!(step != Step::Pass, inside, "the route has picked vllm");
    }
}

#[test]
fn a_long_body_is_decided_on_its_first_part_however_it_arrives() {
    let world = World::new(r#", "match_bytes": 1024, "hold_bytes": 4096"#);
    let body = chat(&"abcdefghij ".repeat(1000));
    let at_once = world.send(&body);
    world.end(at_once.0);
    let mut piecewise = Request::default();
    world.headers(&mut piecewise, "/v1/chat/completions", &[], false);
    assert_eq!(
        world.body(&mut piecewise, &body.as_bytes()[..1000], false),
        Step::Hold
    );
    let Step::Go(go) = world.body(&mut piecewise, &body.as_bytes()[1000..1100], false) else {
        panic!("held past match_bytes")
    };
    assert_eq!(go.destination, at_once.1.destination);
    let chunks = |report: &str| {
        report
            .split("chunks=")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .map(str::to_owned)
    };
    assert_eq!(chunks(&go.report), chunks(&at_once.1.report));
    assert_eq!(
        world.body(&mut piecewise, &body.as_bytes()[1100..], true),
        Step::Pass,
        "the rest streams"
    );
}

#[test]
fn a_body_whose_model_comes_late_is_held_for_it_up_to_hold_bytes() {
    let world = World::new(r#", "match_bytes": 1024, "hold_bytes": 4096"#);
    let text = "abcdefghij ".repeat(200);
    let late = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"m"}}"#);
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    assert_eq!(
        world.body(&mut request, &late.as_bytes()[..2000], false),
        Step::Hold
    );
    assert!(matches!(
        world.body(&mut request, &late.as_bytes()[2000..], true),
        Step::Go(_)
    ));
    let text = "abcdefghij ".repeat(2000);
    let never = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"m"}}"#);
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    assert_eq!(
        world.body(&mut request, &never.as_bytes()[..4000], false),
        Step::Hold
    );
    assert!(matches!(
        world.body(&mut request, &never.as_bytes()[4000..5000], false),
        Step::Go(_)
    ));
}

#[test]
fn trailers_end_the_body() {
    let world = World::new("");
    let body = long("trailers ");
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    assert_eq!(world.body(&mut request, body.as_bytes(), false), Step::Hold);
    let step = request.on_trailers(&world.router, &world.env());
    let Step::Go(go) = step else { panic!("held") };
    assert!(go.report.contains("reason=cold"), "{}", go.report);
    let mut empty = Request::default();
    world.headers(&mut empty, "/v1/chat/completions", &[], false);
    let step = empty.on_trailers(&world.router, &world.env());
    assert!(matches!(step, Step::Go(go) if go.report.contains("detail=\"empty\"")));
}

#[test]
fn a_body_that_does_not_move_is_decided_on_what_came() {
    let world = World::new("");
    let body = long("stalls ");
    let tick = |request: &mut Request, now_ms: u64| {
        request.on_tick(
            &world.router,
            &Env::new(&world.store, &world.meter, &|| now_ms),
        )
    };
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    assert!(!request.waits(), "nothing came");
    assert_eq!(tick(&mut request, 100_000), Step::Pass);
    // The body came at 1000.
    let (first, rest) = body.as_bytes().split_at(200);
    assert_eq!(world.body(&mut request, first, false), Step::Hold);
    assert!(request.waits());
    assert_eq!(tick(&mut request, 1000 + STALLED_MS - 1), Step::Pass);
    let Step::Go(go) = tick(&mut request, 1000 + STALLED_MS) else {
        panic!("held")
    };
    assert!(go.destination.is_some());
    assert!(go.report.ends_with("detail=\"stalled\""), "{}", go.report);
    assert!(!request.waits());
    assert_eq!(tick(&mut request, 100_000), Step::Pass, "once");
    assert_eq!(world.body(&mut request, rest, true), Step::Pass);
    // Its chunks are those of the whole.
    assert!(world.held(&body).iter().sum::<u32>() > 5);
    world.end(request);
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn bodies_that_would_take_too_much_memory_are_decided_on_what_came() {
    let world = World::new(r#", "match_bytes": 16777216, "hold_bytes": 16777216"#);
    let piece = chat(&"x".repeat(MAX_HELD_BYTES / 8 - 1000));
    let mut held = Vec::new();
    for n in 0..10 {
        let mut request = Request::default();
        world.headers(&mut request, "/v1/chat/completions", &[], false);
        match world.body(&mut request, piece.as_bytes(), false) {
            Step::Hold => assert!(n < 8),
            Step::Go(go) => {
                assert!(n >= 8);
                assert!(go.report.ends_with("detail=\"crowded\""), "{}", go.report);
            }
            Step::Pass => panic!("{n}"),
        }
        held.push(request);
    }
    // One has gone.
    world.end(held.remove(0));
    drop(held);
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    assert_eq!(
        world.body(&mut request, piece.as_bytes(), false),
        Step::Hold
    );
}

#[test]
fn observing_steers_nothing_and_learns_from_who_served() {
    let world = World::new(r#", "mode": "observe""#);
    let body = long("observe ");
    let (mut request, go) = world.send(&body);
    assert_eq!(go.destination, None);
    assert_eq!(
        world.held(&body),
        [0, 0],
        "nothing is credited at the decision"
    );
    let header = world.answer(&mut request, 200, Some(B));
    assert!(header.starts_with("pod=\"b\""), "{header}");
    world.first_byte(&mut request);
    world.end(request);
    let held = world.held(&body);
    assert!(held[0] == 0 && held[1] > 0, "{held:?}");
    let (mut request, _) = world.send(&body);
    world.answer(&mut request, 500, Some(A));
    world.end(request);
    assert_eq!(world.held(&body), held, "a failure teaches nothing");
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn queries_that_fill_no_cache_are_not_credited() {
    let world = World::new("");
    let body = long("tokenize ");
    let mut request = Request::default();
    world.headers(&mut request, "/tokenize", &[], false);
    assert!(matches!(
        world.body(&mut request, body.as_bytes(), true),
        Step::Go(_)
    ));
    assert_eq!(world.held(&body), [0, 0]);
}

#[test]
fn what_is_computed_anyway_claims_nothing_and_is_credited() {
    let world = World::new("");
    let body = long("log-probabilities ");
    let (_, go) = world.send(&body);
    let scored = body.replacen('{', r#"{"prompt_logprobs":1,"#, 1);
    let (_, again) = world.send(&scored);
    assert_ne!(address(&again), address(&go), "by load");
    let held = world.held(&body);
    assert!(held[0] > 0 && held[0] == held[1], "{held:?}");
}

#[test]
fn an_answer_before_the_decision_is_only_relabelled() {
    let world = World::new("");
    let mut request = Request::default();
    world.headers(&mut request, "/v1/chat/completions", &[], false);
    let answer = world.on_answer(&mut request, 408, None, 0);
    assert_eq!(
        answer,
        Some(Answer {
            header: None,
            report: None
        })
    );
    world.end(request);
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn a_model_goes_to_pods_that_serve_it() {
    let text = format!(
        r#"{{"pods": [{{"name": "a", "address": "{A}", "models": ["base"]}},
                      {{"name": "b", "address": "{B}", "models": ["lora"]}}]}}"#
    );
    let config = Config::parse(text.as_bytes()).unwrap();
    let router = Router::new(config, Rc::new(LoadBoard::new("default", 1)), true);
    let store = MemoryStore::default();
    let meter = Tally::default();
    let env = Env::new(&store, &meter, &|| 0);
    let members = router.members(&env);
    let first = |model| {
        let question = Question {
            model: Some(model),
            ..Question::default()
        };
        router
            .choose(&env, &members, question)
            .unwrap()
            .ranking
            .pods
    };
    assert_eq!(first("base"), [0]);
    assert_eq!(first("lora"), [1]);
    assert_eq!(first("unknown").len(), 2, "vLLM answers its own 404");
}
