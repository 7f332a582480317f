//! One request as a state machine: events of the stream in, what to do with it out.
//!
//! Owns the order of things: hold the headers until enough of the body is there, decide once,
//! credit the chosen pod at the decision, settle the credit when it is known who served.
//! Invariants: a request is decided at most once; it is counted in flight on at most one pod and
//! ends there; a credit is either confirmed by the first byte of a 2xx answer or taken back.
//! Cost: the body is read once, at the decision (a few times if the model comes late).

use crate::chunk::ChunkHash;
use crate::config::{Config, Mode};
use crate::destination;
use crate::metrics::Metric;
use crate::policy::{Ranking, Reason};
use crate::prompt::{self, Api, Extent, Prompts};
use crate::report::Report;
use crate::router::{Counted, Credit, Env, Router};

/// A body that is held for its model is looked at this often between `match_bytes` and
/// `hold_bytes`; the lengths are fixed, so that the same body is always cut at the same place.
const LOOKS: usize = 4;

/// What the host shall do with the request now.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: let it pass.
    Pass,
    /// Keep the headers and what there is of the body.
    Hold,
    /// Write this and let it go.
    Go(Go),
}

/// A decision to carry out.
#[derive(Debug, PartialEq, Eq)]
pub struct Go {
    /// Value of the destination header; `None`: leave the route to Envoy.
    pub destination: Option<Vec<u8>>,
    /// Filter state.
    pub report: String,
}

/// What an answer shall carry.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Value of the response header; `None`: remove it.
    pub header: Option<String>,
    /// Filter state, if it changed.
    pub report: Option<String>,
}

/// Where a request is in its life.
#[derive(Debug, Default)]
enum State {
    /// Outside of `match`, or not seen yet: nothing is done.
    #[default]
    Outside,
    /// Held until the body has `next_look` bytes or ends.
    Reading { api: Api, next_look: usize },
    /// On its way.
    Decided(Box<Decided>),
}

#[derive(Debug)]
struct Decided {
    reason: Reason,
    detail: Option<&'static str>,
    chunks: u32,
    /// Per pod of the pool; empty when nothing was looked up.
    matched: Vec<u32>,
    /// The pod that the policy chose.
    chosen: Option<usize>,
    /// The pod that has this request in its count, known to serve it or expected to.
    counted_on: Option<usize>,
    counted: Option<Counted>,
    /// The answer's origin, when it is no pod of the pool.
    stranger: Option<String>,
    /// Whole chunks of each prompt that has any, while a credit may still be given or moved.
    chains: Vec<Vec<ChunkHash>>,
    credit: Option<Credit>,
}

/// One request.
#[derive(Debug, Default)]
pub struct Request {
    state: State,
    body_size: usize,
}

impl Request {
    /// The request headers arrived; `header` reads one by name.
    pub fn on_headers(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        header: &dyn Fn(&str) -> Option<Vec<u8>>,
        end: bool,
    ) -> Step {
        let config = router.config();
        let path = header(":path").unwrap_or_default();
        let outside = !config.scope.is_everything()
            && !config
                .scope
                .covers(&header(":authority").unwrap_or_default(), &path);
        if outside {
            return Step::Pass;
        }
        let method = header(":method").unwrap_or_default();
        let detail = match Api::of(&method, &path) {
            // An upgrade or a tunnel never ends; to hold it would be a deadlock.
            _ if method == b"CONNECT" || header("upgrade").is_some() => "upgrade",
            None => "endpoint",
            Some(_) if end => "empty",
            Some(_) if is_encoded(header("content-encoding").as_deref()) => "encoding",
            Some(_) if !router.may_pause() => "envoy_too_old",
            Some(api) => {
                self.state = State::Reading {
                    api,
                    next_look: config.match_bytes,
                };
                return Step::Hold;
            }
        };
        self.go_without_prompt(router, env, detail)
    }

    /// `size` bytes of the body are there; `body` reads the first so many.
    pub fn on_body(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        size: usize,
        end: bool,
        body: &dyn Fn(usize) -> Option<Vec<u8>>,
    ) -> Step {
        let State::Reading { api, mut next_look } = self.state else {
            return Step::Pass;
        };
        self.body_size = size;
        let config = router.config();
        loop {
            let whole = end && size <= next_look;
            if !whole && size < next_look {
                self.state = State::Reading { api, next_look };
                return Step::Hold;
            }
            let Some(bytes) = body(size.min(next_look)) else {
                return self.go_without_prompt(router, env, "unreadable");
            };
            let extent = if whole {
                Extent::Whole
            } else {
                Extent::FirstPart
            };
            match prompt::read(api, &bytes, extent, config.chunk_bytes) {
                Err(why) => {
                    env.meter
                        .count_labelled(Metric::UnreadablePrompts, "detail", why.as_str());
                    return self.go_without_prompt(router, env, why.as_str());
                }
                Ok(prompts) => {
                    let unnamed = !whole && prompts.model.is_none();
                    if !unnamed || next_look >= config.hold_bytes {
                        let detail = unnamed.then_some("no_model");
                        return self.go_with_prompts(router, env, api, prompts, detail);
                    }
                }
            }
            next_look = following_look(config, next_look);
        }
    }

    /// The request ended with trailers, after all of its body.
    pub fn on_trailers(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        body: &dyn Fn(usize) -> Option<Vec<u8>>,
    ) -> Step {
        if self.body_size == 0 && matches!(self.state, State::Reading { .. }) {
            return self.go_without_prompt(router, env, "empty");
        }
        self.on_body(router, env, self.body_size, true, body)
    }

    /// The answer's headers arrived, from the host at `upstream` or, without one, from Envoy.
    pub fn on_answer(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        status: u16,
        upstream: Option<&str>,
        end: bool,
    ) -> Option<Answer> {
        let report = match &mut self.state {
            State::Outside => return None,
            // Envoy answered while the request was held (408, 413).
            State::Reading { .. } => None,
            State::Decided(decided) => {
                let before = decided.text(router);
                decided.settle(router, env, status, upstream);
                if end {
                    decided.confirm();
                }
                let after = decided.text(router);
                (before != after).then_some(after)
            }
        };
        Some(Answer {
            header: self.response_header(router),
            report,
        })
    }

    /// Bytes of the answer's body, or its end: the pod has done the prefill.
    pub fn on_answer_body(&mut self) {
        if let State::Decided(decided) = &mut self.state {
            decided.confirm();
        }
    }

    /// The stream is over, however it ended.
    pub fn on_end(&mut self, router: &Router, env: &Env<'_>) {
        if let State::Decided(mut decided) = core::mem::take(&mut self.state) {
            decided.take_back(router, env);
            decided.count_on(router, env, None);
        }
    }

    fn go_with_prompts(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        api: Api,
        prompts: Prompts,
        detail: Option<&'static str>,
    ) -> Step {
        let Prompts { model, prompts } = prompts;
        let chunks = prompts.iter().fold(0u32, |sum, prompt| {
            sum.saturating_add(u32::try_from(prompt.chunks.len()).unwrap_or(u32::MAX))
        });
        let Some(choice) = router.choose(env, model.as_deref(), &prompts) else {
            return self.go(
                router,
                env,
                None,
                Decided::new(Reason::NoPods, detail, chunks),
            );
        };
        let mut decided = Decided::new(choice.ranking.reason, detail, chunks);
        decided.matched = choice.matched;
        if api.fills_cache() {
            let chains = prompts.into_iter().map(|prompt| prompt.chunks);
            decided.chains = chains.filter(|chain| !chain.is_empty()).collect();
            if router.config().mode == Mode::Route {
                if let Some(best) = choice.ranking.pods.first() {
                    decided.credit = router.credit(env, *best, &decided.chains, choice.queries);
                }
            }
        }
        self.go(router, env, Some(choice.ranking), decided)
    }

    fn go_without_prompt(&mut self, router: &Router, env: &Env<'_>, detail: &'static str) -> Step {
        match router.choose_by_load(env) {
            Some(ranking) => {
                let decided = Decided::new(Reason::NoPrompt, Some(detail), 0);
                self.go(router, env, Some(ranking), decided)
            }
            None => {
                let decided = Decided::new(Reason::NoPods, Some(detail), 0);
                self.go(router, env, None, decided)
            }
        }
    }

    fn go(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        ranking: Option<Ranking>,
        mut decided: Decided,
    ) -> Step {
        let pods = ranking.map_or_else(Vec::new, |ranking| ranking.pods);
        decided.chosen = pods.first().copied();
        env.meter.decision(decided.reason, decided.chosen);
        env.meter.count(Metric::PromptChunks, decided.chunks.into());
        env.meter.count(
            Metric::MatchedChunks,
            decided.matched_on(decided.chosen).into(),
        );
        let mut go = Go {
            destination: None,
            report: decided.text(router),
        };
        if router.config().mode == Mode::Route {
            let config = router.config();
            let ranked: Vec<_> = pods
                .iter()
                .filter_map(|pod| config.pods.get(*pod))
                .collect();
            go.destination = destination::value(config.destination.mode, &ranked);
            decided.count_on(router, env, decided.chosen);
        }
        self.state = State::Decided(Box::new(decided));
        Step::Go(go)
    }

    fn response_header(&self, router: &Router) -> Option<String> {
        use crate::config::ResponseHeader;
        let State::Decided(decided) = &self.state else {
            return None;
        };
        let report = decided.report(router);
        match router.config().response_header {
            ResponseHeader::Off => None,
            ResponseHeader::Pod => Some(report.pod_only()).filter(|text| !text.is_empty()),
            ResponseHeader::Full => Some(report.full()),
        }
    }
}

impl Decided {
    fn new(reason: Reason, detail: Option<&'static str>, chunks: u32) -> Self {
        Self {
            reason,
            detail,
            chunks,
            matched: Vec::new(),
            chosen: None,
            counted_on: None,
            counted: None,
            stranger: None,
            chains: Vec::new(),
            credit: None,
        }
    }

    /// The pod that served, or is expected to.
    fn pod(&self) -> Option<usize> {
        self.counted_on.or(self.chosen)
    }

    fn matched_on(&self, pod: Option<usize>) -> u32 {
        pod.and_then(|pod| self.matched.get(pod))
            .copied()
            .unwrap_or(0)
    }

    fn report<'a>(&'a self, router: &'a Router) -> Report<'a> {
        let named = |pod: usize| router.config().pods.get(pod).map(|pod| pod.name.as_str());
        Report {
            pod: self
                .stranger
                .as_deref()
                .or_else(|| self.pod().and_then(named)),
            matched: if self.stranger.is_some() {
                0
            } else {
                self.matched_on(self.pod())
            },
            chunks: self.chunks,
            reason: self.reason,
            detail: self.detail,
        }
    }

    fn text(&self, router: &Router) -> String {
        self.report(router).full()
    }

    /// Credit follows who served, and goes back when nobody did.
    fn settle(&mut self, router: &Router, env: &Env<'_>, status: u16, upstream: Option<&str>) {
        let observing = router.config().mode == Mode::Observe;
        let chosen_address = self.chosen.and_then(|pod| router.config().pods.get(pod));
        let chosen_is_known = chosen_address.is_some_and(|pod| pod.has_ip_address());
        let served = match upstream {
            None => None,
            Some(address) => match router.pod_at(address) {
                Some(pod) => Some(pod),
                // The chosen pod's own address is not known, and it is nobody else's.
                None if !observing && !chosen_is_known && self.chosen.is_some() => self.chosen,
                None => {
                    self.stranger = Some(address.to_owned());
                    None
                }
            },
        };
        // Without a prompt there is nothing to agree on.
        if observing && served.is_some() && self.chunks > 0 {
            let outcome = if served == self.chosen {
                "agreed"
            } else {
                "differed"
            };
            env.meter
                .count_labelled(Metric::Observed, "outcome", outcome);
        }
        if served.is_some() || self.stranger.is_some() {
            self.count_on(router, env, served);
        }
        let did_work = (200..300).contains(&status) && served.is_some();
        let credited = self.credit.as_ref().map(Credit::pod);
        if credited.is_some() && !(did_work && credited == served) {
            self.take_back(router, env);
        }
        if let (true, Some(pod), None) = (did_work, served, &self.credit) {
            if !self.chains.is_empty() {
                self.credit = router.credit(env, pod, &self.chains, Vec::new());
                if credited.is_some() {
                    env.meter.count(Metric::MovedCredits, 1);
                }
            }
        }
        if !did_work {
            self.chains = Vec::new();
        }
    }

    /// The first byte of an answer that was credited: from now on the credit stands.
    fn confirm(&mut self) {
        self.credit = None;
        self.chains = Vec::new();
    }

    fn take_back(&mut self, router: &Router, env: &Env<'_>) {
        if let Some(credit) = self.credit.take() {
            router.take_back(env, credit, &self.chains);
            env.meter.count(Metric::UndoneNotifies, 1);
        }
    }

    fn count_on(&mut self, router: &Router, env: &Env<'_>, pod: Option<usize>) {
        if self.counted_on == pod {
            return;
        }
        if let Some(counted) = self.counted.take() {
            router.end(env, counted);
        }
        self.counted = pod.and_then(|pod| router.begin(env, pod));
        self.counted_on = pod;
    }
}

fn is_encoded(content_encoding: Option<&[u8]>) -> bool {
    content_encoding
        .map(<[u8]>::trim_ascii)
        .is_some_and(|value| !value.is_empty() && !value.eq_ignore_ascii_case(b"identity"))
}

fn following_look(config: &Config, look: usize) -> usize {
    let stride = config
        .hold_bytes
        .saturating_sub(config.match_bytes)
        .div_ceil(LOOKS)
        .max(1);
    look.saturating_add(stride).min(config.hold_bytes)
}

#[cfg(test)]
mod tests;
