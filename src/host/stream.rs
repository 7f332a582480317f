//! One HTTP stream: Envoy's callbacks handed to [`Request`], its steps carried out.
//!
//! Cost: four to six header reads, one read of each piece of the body, one header write and one
//! property write per request; one property read and one header write per answer. An answer to a prompt is
//! read once, of long pieces the end, for what it tells of its tokens.

use super::abi::{self, Buffer, Headers};
use super::exports::Action;
use super::meter::HostMeter;
use super::shared::SharedData;
use crate::api::{Exchange, Response};
use crate::metrics::{Meter, Metric};
use crate::pods::admin::ip_port;
use crate::request::{Go, Request, Served, Step};
use crate::router::{Env, Router};
use std::rc::Rc;

/// Response header, and name of the filter state.
const REPORT_HEADER: &str = "x-prefix-router";
const REPORT_STATE: &str = "prefix_router";

/// The page may run what is written in it and fetch the JSON beside it, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// A configured filter instance.
pub struct Instance {
    /// The core.
    pub router: Router,
    /// Metric ids.
    pub meter: HostMeter,
}

impl Instance {
    /// A filter instance.
    pub fn new(router: Router, meter: HostMeter) -> Self {
        Self { router, meter }
    }

    /// The world as it is now.
    pub fn env(&self) -> Env<'_> {
        Env::new(&SharedData, &self.meter, &abi::monotonic_ms)
    }
}

/// One stream; without an instance (it was not configured) it passes everything.
pub struct Stream {
    instance: Option<Rc<Instance>>,
    request: Request,
    /// Set for a call of the API, which is no request to route.
    call: Option<Exchange>,
}

impl Stream {
    /// A stream of this instance.
    pub fn new(instance: Option<Rc<Instance>>) -> Self {
        Self {
            instance,
            request: Request::default(),
            call: None,
        }
    }

    fn answer_body(&mut self, size: usize) {
        if let Some(instance) = self.instance.clone() {
            let bytes = |start, most| abi::buffer_from(Buffer::ResponseBody, start, most);
            self.request
                .on_answer_body(&instance.router, &instance.env(), size, &bytes);
        }
    }

    /// Answers a call whose body has so many more bytes; none of them stay with Envoy.
    fn on_call(&mut self, instance: &Instance, size: usize, end: bool) -> Option<Action> {
        let call = self.call.as_mut()?;
        let mut response = call.push(size, &piece);
        if size > 0 {
            let _ = abi::drain(Buffer::RequestBody, size);
        }
        if end {
            let now = abi::unix_seconds();
            let answer = call.end(&instance.router, &instance.env(), now);
            response = response.or(answer);
        }
        if let Some(response) = response {
            respond(&response);
        }
        Some(Action::Pause)
    }

    /// Counts how long a decision took that was made between then and now.
    fn decided_since(&self, instance: &Instance, begun_us: u64, step: &Step) {
        if matches!(step, Step::Go(_)) {
            let took = abi::monotonic_us().saturating_sub(begun_us);
            instance.meter.record(Metric::DecisionMicroseconds, took);
        }
    }

    fn carry_out(&self, instance: &Instance, step: Step) -> Action {
        match step {
            Step::Pass => Action::Continue,
            Step::Hold => Action::Hold,
            Step::Go(Go {
                destination,
                report,
            }) => {
                if let Some(value) = destination {
                    let name = &instance.router.config().destination.header;
                    if abi::set_header(Headers::Request, name, &value).is_err() {
                        abi::log(3, "Envoy refused the destination header");
                    }
                    abi::clear_route_cache();
                }
                let _ = abi::set_property(REPORT_STATE, report.as_bytes());
                Action::Continue
            }
        }
    }
}

fn respond(response: &Response) {
    let mut headers = vec![
        ("content-type", response.content_type),
        ("cache-control", "no-store"),
        ("vary", "accept"),
        ("x-content-type-options", "nosniff"),
        // For the page, which has all that it needs inside.
        ("content-security-policy", PAGE_POLICY),
    ];
    headers.extend(response.allow.map(|allow| ("allow", allow)));
    let details = "prefix_router_api";
    abi::respond(response.status, details, &headers, response.body.as_bytes());
}

/// Reads some of the bytes of the request's body that have just come.
fn piece(start: usize, most: usize) -> Option<Vec<u8>> {
    abi::buffer_from(Buffer::RequestBody, start, most)
}

/// A property that is a number; 0 when it is absent.
fn number(path: &str) -> u64 {
    let value = abi::property(path);
    let bytes = value.as_deref().and_then(<[u8]>::first_chunk::<8>);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn status() -> u16 {
    abi::header(Headers::Response, ":status")
        .and_then(|value| core::str::from_utf8(&value).ok()?.parse().ok())
        .unwrap_or(0)
}

/// Envoy's callbacks.
impl Stream {
    /// The request's headers came.
    pub fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(instance) = self.instance.clone() else {
            return Action::Continue;
        };
        let header = |name: &str| abi::header(Headers::Request, name);
        if let Some((call, refused)) = Exchange::begin(&instance.router, &header) {
            self.call = Some(call);
            if let Some(refused) = refused {
                respond(&refused);
            } else if end {
                self.on_call(&instance, 0, true);
            }
            return Action::Pause;
        }
        let cluster = || abi::property("xds\0cluster_name");
        let env = instance.env();
        let step = self
            .request
            .on_headers(&instance.router, &env, &header, &cluster, end);
        if step != Step::Pass {
            // Only the filter names a pod: what the client sent goes, whatever comes of it.
            let name = &instance.router.config().destination.header;
            if header(name).is_some() {
                let _ = abi::remove_header(Headers::Request, name);
                abi::clear_route_cache();
            }
        }
        match self.carry_out(&instance, step) {
            Action::Continue => Action::Continue,
            // Of headers, there is one way to keep them that lets the body come.
            _ => Action::Pause,
        }
    }

    /// Bytes of the request's body, or its end.
    pub fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let Some(instance) = self.instance.clone() else {
            return Action::Continue;
        };
        if let Some(action) = self.on_call(&instance, size, end) {
            return action;
        }
        let begun = abi::monotonic_us();
        let env = instance.env().at(begun / 1000);
        let step = self
            .request
            .on_body(&instance.router, &env, size, end, &piece);
        self.decided_since(&instance, begun, &step);
        self.carry_out(&instance, step)
    }

    /// The request's trailers came.
    pub fn on_http_request_trailers(&mut self, _: usize) -> Action {
        let Some(instance) = self.instance.clone() else {
            return Action::Continue;
        };
        if let Some(action) = self.on_call(&instance, 0, true) {
            return action;
        }
        let begun = abi::monotonic_us();
        let env = instance.env().at(begun / 1000);
        let step = self.request.on_trailers(&instance.router, &env);
        self.decided_since(&instance, begun, &step);
        self.carry_out(&instance, step)
    }

    /// Whether time may decide it.
    pub fn waits(&self) -> bool {
        self.request.waits()
    }

    /// Time has passed.
    pub fn on_tick(&mut self) {
        let Some(instance) = self.instance.clone() else {
            return;
        };
        let step = self.request.on_tick(&instance.router, &instance.env());
        if matches!(step, Step::Go(_)) {
            self.carry_out(&instance, step);
            abi::continue_request();
        }
    }

    /// The answer's headers came.
    pub fn on_http_response_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(instance) = self.instance.clone() else {
            return Action::Continue;
        };
        if self.request.is_outside() {
            return Action::Continue;
        }
        let upstream = abi::property("upstream\0address");
        let upstream = upstream
            .as_deref()
            .and_then(|address| core::str::from_utf8(address).ok())
            .map(ip_port);
        let served = Served {
            status: status(),
            upstream,
            flags: &|| number("response\0flags"),
            attempts: &|| number("upstream\0request_attempt_count"),
            content_type: &|| abi::header(Headers::Response, "content-type"),
        };
        let env = instance.env();
        if let Some(answer) = self.request.on_answer(&instance.router, &env, &served, end) {
            match answer.header {
                Some(value) => {
                    let _ = abi::set_header(Headers::Response, REPORT_HEADER, value.as_bytes());
                }
                None => {
                    let _ = abi::remove_header(Headers::Response, REPORT_HEADER);
                }
            }
            if let Some(report) = answer.report {
                let _ = abi::set_property(REPORT_STATE, report.as_bytes());
            }
        }
        Action::Continue
    }

    /// Bytes of the answer's body, or its end.
    pub fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if size > 0 || end {
            self.answer_body(size);
        }
        Action::Continue
    }

    /// The answer's trailers came.
    pub fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.answer_body(0);
        Action::Continue
    }

    /// The stream is over.
    pub fn on_log(&mut self) {
        if let Some(instance) = self.instance.clone() {
            if !self.request.is_outside() {
                self.request.on_end(&instance.router, &instance.env());
            }
        }
    }
}
