//! A request after its decision: who really serves it, and what follows from that.
//!
//! Owns the rules of credit and of count. Invariants: a request is counted on at most one pod and
//! ends there; a credit is either confirmed by the first byte of a 2xx answer or taken back, and
//! follows who served; a pod that could not be reached is told on once.
//! Cost: one property read per answer, more only when something went wrong.

use crate::chunk::ChunkHash;
use crate::config::{DestinationMode, Mode};
use crate::metrics::Metric;
use crate::pods::load::Ticket;
use crate::pods::Members;
use crate::policy::Reason;
use crate::report::Report;
use crate::router::{Credit, Env, Router};
use crate::sticky::Sniffer;
use crate::usage::Tail;

/// Bits of Envoy's response flags that say: the pod was not even asked.
const UNREACHABLE: u64 = NO_HEALTHY_UPSTREAM | CONNECTION_FAILURE | NO_CLUSTER;
const NO_HEALTHY_UPSTREAM: u64 = 1 << 1;
const CONNECTION_FAILURE: u64 = 1 << 5;
const NO_CLUSTER: u64 = 1 << 24;

/// Where an answer is from.
enum Origin {
    /// A pod of the pool.
    Pod(usize),
    /// Another host.
    Stranger,
    /// Envoy, for a reason that says nothing of the pod.
    Nobody,
    /// Envoy, because it could not reach the pod.
    Unreachable,
}

/// Whose answer it is.
pub struct Served<'a> {
    /// Its status.
    pub status: u16,
    /// `ip:port` of the host that it came from; none: Envoy itself.
    pub upstream: Option<&'a str>,
    /// Envoy's response flags so far.
    pub flags: &'a dyn Fn() -> u64,
    /// How often Envoy tried.
    pub attempts: &'a dyn Fn() -> u64,
    /// Its content type.
    pub content_type: &'a dyn Fn() -> Option<Vec<u8>>,
}

/// A decided request.
#[derive(Debug)]
pub struct Decided {
    /// The pods that it was decided on.
    pub members: Members,
    /// Whole chunks of all its prompts.
    pub chunks: u32,
    /// Why it was decided so.
    pub reason: Reason,
    /// More on that.
    pub detail: Option<&'static str>,
    /// Leading chunks that each pod held; empty when nothing was looked up.
    pub matched: Vec<u32>,
    /// Bytes of its prompts; 0 when they need no prefill.
    pub bytes: usize,
    /// The pod that the policy chose.
    pub chosen: Option<usize>,
    /// Whole chunks of each prompt that has any, while a credit may still be given or moved.
    pub chains: Vec<Vec<ChunkHash>>,
    /// Leading chunks that the chosen pod held when they were stored for it.
    pub found: u32,
    /// What was stored for it.
    pub credit: Option<Credit>,
    /// Looks for the id of the response that the answer makes, while there may be one.
    pub response: Option<Sniffer>,
    /// Leading chunks that a candidate held on average.
    pub mean_matched: f64,
    /// The end of the answer, while it may tell what it cost.
    pub tail: Option<Tail>,
    /// The pod that has this request in its count, known to serve it or expected to.
    counted_on: Option<usize>,
    ticket: Option<Ticket>,
    /// The answer's origin, when it is no pod of the pool.
    stranger: Option<String>,
    /// The answer is a good one.
    did_work: bool,
    /// It was counted from the decision on: the time to its first byte is that of its prefill.
    pub tells: bool,
    /// Its first byte was seen.
    has_begun: bool,
}

impl Decided {
    /// One that nothing was decided of yet.
    pub fn new(members: Members, chunks: u32, detail: Option<&'static str>) -> Self {
        Self {
            members,
            chunks,
            reason: Reason::NoPods,
            detail,
            matched: Vec::new(),
            bytes: 0,
            chosen: None,
            chains: Vec::new(),
            found: 0,
            credit: None,
            response: None,
            mean_matched: 0.0,
            tail: None,
            counted_on: None,
            ticket: None,
            stranger: None,
            did_work: false,
            tells: false,
            has_begun: false,
        }
    }

    /// Leading chunks that a pod held.
    pub fn matched_on(&self, pod: Option<usize>) -> u32 {
        pod.and_then(|pod| self.matched.get(pod))
            .copied()
            .unwrap_or(0)
    }

    /// What is said of it.
    pub fn report(&self) -> Report<'_> {
        let (stranger, pod) = (self.stranger.as_deref(), self.counted_on.or(self.chosen));
        Report {
            pod: stranger.or_else(|| Some(self.members.get(pod?)?.pod.name.as_str())),
            matched: match stranger {
                Some(_) => 0,
                None => self.matched_on(pod),
            },
            chunks: self.chunks,
            reason: self.reason,
            detail: self.detail,
        }
    }

    /// The same as text.
    pub fn text(&self) -> String {
        self.report().full()
    }

    /// An answer has come: credit and count follow who served, and the credit goes back when
    /// nobody did.
    pub fn settle(&mut self, router: &Router, env: &Env<'_>, served: &Served<'_>) {
        let observing = router.config().mode == Mode::Observe;
        let origin = self.origin(observing, served);
        let pod = match origin {
            Origin::Pod(pod) => Some(pod),
            _ => None,
        };
        let chosen = self.chosen.and_then(|pod| self.members.get(pod));
        if let (false, Some(chosen)) = (observing, chosen) {
            let passed_over = match origin {
                Origin::Nobody => false,
                Origin::Unreachable => true,
                // With `override_host` the first attempt may go elsewhere because the route's
                // cluster does not have the pod, which says nothing of the pod.
                _ if pod == self.chosen => false,
                // A stranger may be the chosen pod under an address that we do not know.
                Origin::Stranger => (served.attempts)() > 1,
                Origin::Pod(_) => {
                    router.config().destination.mode == DestinationMode::ClusterHeader
                        || (served.attempts)() > 1
                }
            };
            if passed_over {
                router.unreachable(env, chosen);
            }
        }
        if let Some(member) = pod.and_then(|pod| self.members.get(pod)) {
            if router.reached(env, member) {
                // What was stored for it is gone with the rest, and is stored again below.
                self.credit = None;
            }
        }
        // Without a prompt there is nothing to agree on.
        if observing && pod.is_some() && self.chunks > 0 {
            let outcome = match pod == self.chosen {
                true => "agreed",
                false => "differed",
            };
            env.meter
                .count_labelled(Metric::Observed, "outcome", outcome, 1);
            let held = self.matched_on(pod);
            env.meter.count(Metric::ObservedMatchedChunks, held.into());
        }
        if pod.is_some() || self.stranger.is_some() {
            self.count_on(router, env, pod);
        }
        self.did_work = (200..300).contains(&served.status) && pod.is_some();
        let credited = self.credit.as_ref().map(Credit::pod);
        if credited.is_some() && !(self.did_work && credited == pod) {
            self.take_back(router, env);
        }
        if let (true, Some(pod), None) = (self.did_work, pod, &self.credit) {
            if !self.chains.is_empty() {
                self.credit = router.credit(env, &self.members, pod, &self.chains, Vec::new());
                if credited.is_some() {
                    env.meter.count(Metric::MovedCredits, 1);
                }
            }
        }
        if !self.did_work {
            self.chains = Vec::new();
            self.response = None;
        }
        if self.did_work && self.bytes > 0 {
            let kind = (served.content_type)().unwrap_or_default();
            self.tail = Tail::may_tell(&kind).then(Tail::default);
        }
    }

    /// Bytes of the answer: they may say which response the pod has made.
    pub fn answer_bytes(&mut self, router: &Router, env: &Env<'_>, bytes: &[u8]) {
        let Some(sniffer) = &mut self.response else {
            return;
        };
        let made = sniffer.push(bytes);
        if sniffer.is_done() {
            self.response = None;
        }
        let served = self.counted_on.and_then(|pod| self.members.get(pod));
        if let (Some(response), Some(member)) = (made, served) {
            router.made(env, response, member);
        }
    }

    /// The first byte of the answer: from now on a credit stands.
    pub fn first_byte(&mut self, router: &Router, env: &Env<'_>) {
        if core::mem::replace(&mut self.has_begun, true) {
            return;
        }
        if let Some(ticket) = &mut self.ticket {
            router.first_byte(env, ticket, self.did_work && self.tells);
        }
        self.credit = None;
        self.chains = Vec::new();
    }

    /// The stream is over, however it ended.
    pub fn end(&mut self, router: &Router, env: &Env<'_>) {
        self.take_back(router, env);
        self.account(router, env);
        self.count_on(router, env, None);
    }

    /// Counts what the answer cost its pod beside what was expected of it.
    fn account(&mut self, router: &Router, env: &Env<'_>) {
        if !(self.did_work && self.has_begun) || self.bytes == 0 {
            return;
        }
        let told = self.tail.take().and_then(|tail| tail.usage());
        let share = |chunks| router.share(self.bytes, chunks);
        let matched = share(self.matched_on(self.counted_on).into());
        if let Some(usage) = told {
            env.meter.count(Metric::PromptTokens, usage.prompt);
            // A pod that does not tell what it found cannot be compared.
            if let Some(reported) = usage.cached {
                let predicted = matched * usage.prompt as f64;
                env.meter
                    .count(Metric::PredictedCachedTokens, predicted as u64);
                env.meter.count(Metric::ReportedCachedTokens, reported);
            }
        }
        let tokens = told.map_or(router.uncached(self.bytes, 0), |usage| usage.prompt as f64);
        router.saved(env, (matched - share(self.mean_matched)) * tokens);
    }

    /// Counts the request on another pod, or on none.
    pub fn count_on(&mut self, router: &Router, env: &Env<'_>, pod: Option<usize>) {
        if self.counted_on == pod {
            return;
        }
        if let Some(ticket) = self.ticket.take() {
            router.end(env, ticket);
        }
        // Of two workers that decide one prompt at a time, only the first brings the work.
        let found = if pod == self.chosen { self.found } else { 0 };
        let tokens = router.uncached(self.bytes, self.matched_on(pod).max(found));
        let member = pod.and_then(|pod| self.members.get(pod));
        self.ticket = member.and_then(|member| router.begin(env, member, tokens));
        self.tells = false;
        self.counted_on = pod;
    }

    fn origin(&mut self, observing: bool, served: &Served<'_>) -> Origin {
        // Envoy names the host that it could not reach, too.
        if served.status >= 500 && (served.flags)() & UNREACHABLE != 0 {
            return Origin::Unreachable;
        }
        let Some(address) = served.upstream else {
            return Origin::Nobody;
        };
        let mut members = self.members.iter();
        if let Some(pod) = members.position(|m| m.pod.address.as_deref() == Some(address)) {
            return Origin::Pod(pod);
        }
        // Where the chosen pod's own address is not known, and this is nobody else's, it is taken
        // for the chosen one's, unless Envoy had to try again.
        let chosen = self
            .chosen
            .and_then(|pod| Some((pod, self.members.get(pod)?)));
        match chosen {
            Some((pod, member))
                if !observing && !member.pod.has_ip_address() && (served.attempts)() <= 1 =>
            {
                Origin::Pod(pod)
            }
            _ => {
                self.stranger = Some(address.to_owned());
                Origin::Stranger
            }
        }
    }

    fn take_back(&mut self, router: &Router, env: &Env<'_>) {
        if let Some(credit) = self.credit.take() {
            router.take_back(env, credit, &self.chains);
            env.meter.count(Metric::UndoneNotifies, 1);
        }
    }
}
