//! Requests about a response go to the pod that made it.

use super::*;
use core::cell::Cell;

const PATH: &str = "/v1/responses";

fn input(text: &str, more: &str) -> String {
    format!(r#"{{"model":"m","input":"{text}"{more}}}"#)
}

fn continuing(id: &str) -> String {
    input("go on", &format!(r#","previous_response_id":"{id}""#))
}

impl World {
    fn create(&self, body: &str) -> (Request, Go) {
        let mut request = Request::default();
        assert_eq!(self.headers(&mut request, PATH, &[], false), Step::Hold);
        let Step::Go(go) = self.body(&mut request, body.as_bytes(), true) else {
            panic!("held")
        };
        (request, go)
    }

    /// Creates a response and has it answered from `upstream`, in two pieces.
    fn created(&self, id: &str, status: u16, upstream: &str) {
        let (mut request, _) = self.create(&input(id, ""));
        self.answer(&mut request, status, Some(upstream));
        self.answer_bytes(&mut request, id);
        self.end(request);
    }

    /// How often the first bytes were asked for.
    fn answer_bytes(&self, request: &mut Request, id: &str) -> usize {
        let answer = format!(r#"{{"id":"{id}","object":"response"}}"#);
        let asked = Cell::new(0);
        for piece in [&answer[..9], &answer[9..], "more", "more"] {
            let read = |start: usize, most: usize| {
                asked.set(asked.get() + usize::from(most == SNIFFED_BYTES));
                Some(piece.as_bytes()[start..].to_vec())
            };
            request.on_answer_body(&self.router, &self.env(), piece.len(), &read);
        }
        asked.get()
    }

    /// Where a request without a prompt goes, and why.
    fn about(&self, method: &'static str, path: &str) -> (Option<Vec<u8>>, String) {
        let mut request = Request::default();
        let step = self.headers(&mut request, path, &[(":method", method)], method == "GET");
        let Step::Go(go) = step else { panic!("held") };
        self.end(request);
        (go.destination, go.report)
    }

    fn continued(&self, id: &str) -> (Option<Vec<u8>>, String) {
        let (request, go) = self.create(&continuing(id));
        self.end(request);
        (go.destination, go.report)
    }
}

#[test]
fn a_response_is_continued_read_and_deleted_where_it_was_made() {
    let world = World::new("");
    for (n, (address, pod)) in [(A, "a"), (B, "b"), (A, "a"), (B, "b")].iter().enumerate() {
        let id = format!("resp_{n}");
        world.created(&id, 200, address);
        let path = format!("{PATH}/{id}?stream=false");
        let cancel = format!("{PATH}/{id}/cancel");
        for (destination, report) in [
            world.continued(&id),
            world.about("GET", &path),
            world.about("DELETE", &path),
            world.about("POST", &cancel),
        ] {
            assert_eq!(destination.as_deref(), Some(pod.as_bytes()), "{report}");
            assert!(report.ends_with("reason=sticky"), "{report}");
        }
    }
    assert_eq!(world.running(), [0, 0]);
}

#[test]
fn what_makes_no_response_is_not_learned() {
    let world = World::new("");
    let reads = |path: &str, status, upstream| {
        let mut request = Request::default();
        world.headers(&mut request, path, &[], false);
        world.body(&mut request, input("x", "").as_bytes(), true);
        world.answer(&mut request, status, upstream);
        let reads = world.answer_bytes(&mut request, "resp_0");
        world.end(request);
        reads
    };
    assert_eq!(reads("/v1/chat/completions", 200, Some(A)), 0);
    assert_eq!(reads(PATH, 500, Some(A)), 0);
    assert_eq!(reads(PATH, 503, None), 0);
    let (_, report) = world.continued("resp_0");
    assert!(report.ends_with("reason=cold"), "{report}");
    let (_, report) = world.about("GET", "/v1/responses/resp_0");
    assert!(report.ends_with(r#"reason=no_prompt, detail="endpoint""#));
    // A stranger made it: nobody of the pool has it.
    assert_eq!(reads(PATH, 200, Some(STRANGER)), 0);
    assert!(!world.continued("resp_0").1.contains("sticky"));
    // Read until it was found, and no further.
    assert_eq!(reads(PATH, 200, Some(A)), 2);
    assert!(world.continued("resp_0").1.contains("sticky"));
}

#[test]
fn an_unreachable_maker_is_not_asked() {
    let world = World::new("");
    world.created("resp_0", 200, A);
    let (mut request, go) = world.create(&continuing("resp_0"));
    assert_eq!(go.destination.as_deref(), Some(&b"a"[..]));
    // Envoy could not reach it, and another pod knew nothing of the response.
    world.answer(&mut request, 404, Some(B));
    world.end(request);
    for _ in 0..4 {
        let (destination, report) = world.continued("resp_0");
        assert_eq!(destination.as_deref(), Some(&b"b"[..]), "{report}");
        assert!(!report.contains("sticky"), "{report}");
    }
}

#[test]
fn the_maker_of_a_response_that_is_continued_has_the_next_one() {
    let world = World::new("");
    world.created("resp_0", 200, B);
    for n in 0..5 {
        let (mut request, go) = world.create(&continuing(&format!("resp_{n}")));
        assert_eq!(go.destination.as_deref(), Some(&b"b"[..]));
        world.answer(&mut request, 200, Some(B));
        world.answer_bytes(&mut request, &format!("resp_{}", n + 1));
        world.end(request);
    }
}
