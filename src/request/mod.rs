//! One request as a state machine: events of the stream in, what to do with it out.
//!
//! Owns the order of things: hold the headers until enough of the body is there, decide once,
//! credit the chosen pod at the decision, settle the credit when it is known who served.
//! Invariants: a request is decided at most once; it is counted in flight on at most one pod and
//! ends there; a credit is either confirmed by the first byte of a 2xx answer or taken back.
//! Cost: each piece of the body is read once, and the prompt in it once, at the decision (a few
//! times if the model comes late).

pub mod body;
mod decided;

use crate::config::{Config, Mode};
use crate::destination;
use crate::metrics::Metric;
use crate::policy::{Ranking, Reason};
use crate::prompt::{self, Api, Extent, Prompts};
use crate::router::{chunks, Credit, Env, Question, Router, MAX_PROMPTS};
use crate::sticky::{ResponseKey, Sniffer, SNIFFED_BYTES};
use crate::usage::KEPT_BYTES;
use body::Body;
use decided::Decided;
pub use decided::Served;

/// A body that is held for its model is looked at this often between `match_bytes` and
/// `hold_bytes`; the lengths are fixed, so that the same body is always cut at the same place.
const LOOKS: usize = 4;

/// Bytes of bodies that one VM keeps at a time; it may have a GiB of memory in all.
const MAX_HELD_BYTES: usize = 128 << 20;

/// A held body that has not moved for so long is decided on what came of it: its client is slow,
/// or Envoy reads no more because it may not hold more.
const STALLED_MS: u64 = 2000;

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
    /// Held until the body has `next_look` bytes or ends; at `moved_ms` there came some.
    Reading {
        api: Api,
        next_look: usize,
        moved_ms: u64,
    },
    /// On its way.
    Decided(Box<Decided>),
}

/// One request.
#[derive(Debug, Default)]
pub struct Request {
    state: State,
    body: Body,
    /// A good answer makes a response, which its pod alone will have.
    makes_response: bool,
}

impl Request {
    /// Whether nothing is done with it.
    pub fn is_outside(&self) -> bool {
        matches!(self.state, State::Outside)
    }

    /// The request headers arrived; `header` reads one by name, `cluster` tells which one Envoy's
    /// route has picked.
    pub fn on_headers(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        header: &dyn Fn(&str) -> Option<Vec<u8>>,
        cluster: &dyn Fn() -> Option<Vec<u8>>,
        end: bool,
    ) -> Step {
        let config = router.config();
        let path = header(":path").unwrap_or_default();
        let outside = !config.scope.is_everything()
            && !config
                .scope
                .covers(&header(":authority").unwrap_or_default(), &path);
        if outside || !config.scope.covers_cluster(cluster) {
            return Step::Pass;
        }
        let method = header(":method").unwrap_or_default();
        let api = Api::of(&method, &path);
        self.makes_response = api == Some(Api::Responses);
        let detail = match api {
            // An upgrade or a tunnel never ends; to hold it would be a deadlock.
            _ if method == b"CONNECT" || header("upgrade").is_some() => "upgrade",
            None => {
                let about = ResponseKey::in_path(&path);
                return self.go_without_prompt(router, env, "endpoint", about);
            }
            Some(_) if end => "empty",
            Some(_) if is_encoded(header("content-encoding").as_deref()) => "encoding",
            Some(_) if !router.may_pause() => "envoy_too_old",
            Some(api) => {
                self.state = State::Reading {
                    api,
                    next_look: config.match_bytes,
                    moved_ms: 0,
                };
                return Step::Hold;
            }
        };
        self.go_without_prompt(router, env, detail, None)
    }

    /// Whether it is held with a part of its body, and may stall.
    pub fn waits(&self) -> bool {
        self.body.seen() > 0 && matches!(self.state, State::Reading { .. })
    }

    /// `size` more bytes of the body came; `piece` reads them, from a start and at most so many.
    pub fn on_body(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        size: usize,
        end: bool,
        piece: &dyn Fn(usize, usize) -> Option<Vec<u8>>,
    ) -> Step {
        let State::Reading { api, next_look, .. } = &mut self.state else {
            return Step::Pass;
        };
        let (api, mut look) = (*api, *next_look);
        self.body.came(size);
        let seen = self.body.seen();
        loop {
            if !self.body.keep(look, size, piece) {
                return self.go_without_prompt(router, env, "unreadable", None);
            }
            let whole = end && seen <= look;
            let mut forced = None;
            if !whole && seen < look {
                if self.body.stay(MAX_HELD_BYTES) {
                    self.state = State::Reading {
                        api,
                        next_look: look,
                        moved_ms: env.now_ms(),
                    };
                    return Step::Hold;
                }
                forced = Some("crowded");
            }
            if let Some(step) = self.look(router, env, api, look, whole, forced) {
                return step;
            }
            look = following_look(router.config(), look);
        }
    }

    /// The request ended with trailers, after all of its body.
    pub fn on_trailers(&mut self, router: &Router, env: &Env<'_>) -> Step {
        if self.body.seen() == 0 && matches!(self.state, State::Reading { .. }) {
            return self.go_without_prompt(router, env, "empty", None);
        }
        self.on_body(router, env, 0, true, &|_, _| None)
    }

    /// Time has passed: a body that does not move any more is waited for no longer.
    pub fn on_tick(&mut self, router: &Router, env: &Env<'_>) -> Step {
        match self.state {
            State::Reading { api, moved_ms, .. }
                if self.waits() && env.now_ms() >= moved_ms.saturating_add(STALLED_MS) =>
            {
                let all = self.body.seen();
                let step = self.look(router, env, api, all, false, Some("stalled"));
                step.unwrap_or(Step::Pass)
            }
            _ => Step::Pass,
        }
    }

    /// Decides on the first `most` bytes of the body, unless its model is worth waiting for.
    /// `forced`: there is no waiting, for this reason.
    fn look(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        api: Api,
        most: usize,
        whole: bool,
        forced: Option<&'static str>,
    ) -> Option<Step> {
        let config = router.config();
        let extent = if whole {
            Extent::Whole
        } else {
            Extent::FirstPart
        };
        match prompt::read(api, self.body.first(most), extent, config.chunk_bytes) {
            Err(why) => {
                let (metric, why) = (Metric::UnreadablePrompts, why.as_str());
                env.meter.count_labelled(metric, "detail", why, 1);
                Some(self.go_without_prompt(router, env, why, None))
            }
            Ok(prompts) => {
                let unnamed = !whole && prompts.model.is_none();
                if unnamed && most < config.hold_bytes && forced.is_none() {
                    return None;
                }
                // Of a first part, the prompt may be yet to come.
                let none = prompts.prompts.is_empty().then_some("no_prompt_field");
                let detail = forced.or(none).or(unnamed.then_some("no_model"));
                Some(self.go_with_prompts(router, env, api, prompts, detail))
            }
        }
    }

    /// The answer's headers arrived.
    pub fn on_answer(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        served: &Served<'_>,
        end: bool,
    ) -> Option<Answer> {
        let report = match &mut self.state {
            State::Outside => return None,
            // Envoy answered while the request was held (408, 413).
            State::Reading { .. } => None,
            State::Decided(decided) => {
                let before = decided.text();
                decided.settle(router, env, served);
                if end {
                    decided.first_byte(router, env);
                }
                let after = decided.text();
                (before != after).then_some(after)
            }
        };
        Some(Answer {
            header: self.response_header(router),
            report,
        })
    }

    /// `size` bytes of the answer's body, or its end: the pod has done the prefill. `bytes` reads
    /// some of them, from a start and at most so many, and is asked only while they may name a
    /// response or tell what the answer cost.
    pub fn on_answer_body(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        size: usize,
        bytes: &dyn Fn(usize, usize) -> Option<Vec<u8>>,
    ) {
        if let State::Decided(decided) = &mut self.state {
            decided.first_byte(router, env);
            if decided.response.is_some() {
                let bytes = bytes(0, SNIFFED_BYTES).unwrap_or_default();
                decided.answer_bytes(router, env, &bytes);
            }
            if let (1.., Some(tail)) = (size, &mut decided.tail) {
                let piece = bytes(size.saturating_sub(KEPT_BYTES), KEPT_BYTES);
                tail.push(&piece.unwrap_or_default());
            }
        }
    }

    /// The stream is over, however it ended.
    pub fn on_end(&mut self, router: &Router, env: &Env<'_>) {
        if let State::Decided(mut decided) = core::mem::take(&mut self.state) {
            decided.end(router, env);
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
        let Prompts {
            model,
            previous_response,
            prompts,
            recomputes,
        } = prompts;
        let question = Question {
            model: model.as_deref(),
            prompts: &prompts,
            response: previous_response.as_deref().map(ResponseKey::of),
            recomputes,
        };
        let members = router.members(env);
        let choice = router.choose(env, &members, question);
        let chunks = chunks(&prompts);
        let mut decided = Decided::new(members, chunks, detail);
        let Some(choice) = choice else {
            return self.go(router, env, None, decided);
        };
        decided.matched = choice.matched;
        decided.mean_matched = mean(&decided.matched, &choice.ranking.pods);
        if api.fills_cache() {
            decided.bytes = choice.bytes;
            let chains = prompts.into_iter().map(|prompt| prompt.chunks);
            let chains = chains.filter(|chain| !chain.is_empty());
            decided.chains = chains.take(MAX_PROMPTS).collect();
            if router.config().mode == Mode::Route {
                if let Some(best) = choice.ranking.pods.first() {
                    decided.credit = router.credit(
                        env,
                        &decided.members,
                        *best,
                        &decided.chains,
                        choice.queries,
                    );
                    let found = decided.credit.as_ref().map_or(0, Credit::found);
                    decided.found = if recomputes { 0 } else { found };
                }
            }
        }
        self.go(router, env, Some(choice.ranking), decided)
    }

    /// `response`: the one that the request is about, if it is about one.
    fn go_without_prompt(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        detail: &'static str,
        response: Option<ResponseKey>,
    ) -> Step {
        let members = router.members(env);
        let question = Question {
            response,
            ..Question::default()
        };
        let choice = router.choose(env, &members, question);
        let decided = Decided::new(members, 0, Some(detail));
        self.go(router, env, choice.map(|choice| choice.ranking), decided)
    }

    fn go(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        ranking: Option<Ranking>,
        mut decided: Decided,
    ) -> Step {
        let mut pods = Vec::new();
        if let Some(ranking) = ranking {
            decided.reason = ranking.reason;
            if decided.reason == Reason::Sticky {
                decided.detail = None;
            }
            if ranking.panic {
                decided.detail = Some("panic");
            }
            decided.chosen = ranking.pods.first().copied();
            pods = ranking.pods;
        }
        let name = decided.chosen.and_then(|pod| decided.members.get(pod));
        env.meter.decision(decided.reason, name);
        env.meter.count(Metric::PromptChunks, decided.chunks.into());
        let matched = decided.matched_on(decided.chosen);
        env.meter.count(Metric::MatchedChunks, matched.into());
        if let Some(percent) = matched.saturating_mul(100).checked_div(decided.chunks) {
            env.meter.record(Metric::MatchedPercent, percent.into());
        }
        let mut go = Go {
            destination: None,
            report: decided.text(),
        };
        let config = router.config();
        if config.mode == Mode::Route {
            let ranked = pods.iter().filter_map(|pod| decided.members.get(*pod));
            let ranked: Vec<_> = ranked.map(|member| &member.pod).collect();
            go.destination = destination::value(config.destination.mode, &ranked);
            decided.count_on(router, env, decided.chosen);
            decided.tells = true;
        }
        decided.response = self.makes_response.then(Sniffer::default);
        self.body.release();
        self.state = State::Decided(Box::new(decided));
        Step::Go(go)
    }

    fn response_header(&self, router: &Router) -> Option<String> {
        use crate::config::ResponseHeader;
        let State::Decided(decided) = &self.state else {
            return None;
        };
        let report = decided.report();
        match router.config().response_header {
            ResponseHeader::Off => None,
            ResponseHeader::Pod => Some(report.pod_only()).filter(|text| !text.is_empty()),
            ResponseHeader::Full => Some(report.full()),
        }
    }
}

/// The mean over some of the pods.
fn mean(matched: &[u32], pods: &[usize]) -> f64 {
    let of = |pod: &usize| f64::from(matched.get(*pod).copied().unwrap_or(0));
    pods.iter().map(of).sum::<f64>() / pods.len().max(1) as f64
}

fn is_encoded(content_encoding: Option<&[u8]>) -> bool {
    content_encoding
        .map(<[u8]>::trim_ascii)
        .is_some_and(|value| !value.is_empty() && !value.eq_ignore_ascii_case(b"identity"))
}

/// The length at which a body is looked at after `look`, when its model is yet to come.
pub(crate) fn following_look(config: &Config, look: usize) -> usize {
    let stride = config
        .hold_bytes
        .saturating_sub(config.match_bytes)
        .div_ceil(LOOKS)
        .max(1);
    look.saturating_add(stride).min(config.hold_bytes)
}

#[cfg(test)]
mod tests;
