//! What one filter instance keeps between requests.
//!
//! Owns the validated configuration, the pool's table, and what is known of its pods, and offers
//! what a request asks for: look up and choose, credit, take back, count, tell who could not be
//! reached. Invariant: a pod is an index into the [`Members`] that the request was decided on.
//! Cost: `choose` is one table query per prompt of the body, and two or three reads for the load.

mod decide;
mod members;

use crate::chunk::ChunkHash;
use crate::config::{Balanced, Capacity, Config, Pod, Policy};
use crate::metrics::{Meter, Metric, BASELINE};
use crate::pods::load::{Load, LoadBoard, Ticket};
use crate::pods::registry::{Known, Registry};
use crate::pods::standing::{Book, Standings};
use crate::pods::{Member, Members};
use crate::policy::{self, Candidate, Ranking, Reason, Standing};
use crate::prompt::Prompt;
use crate::sticky::{ResponseKey, Responses};
use crate::store::SharedStore;
use crate::table::{Notified, PodKey, Query, Receipt, Slot, Table};
use core::cell::{Cell, RefCell};
pub use decide::chunks;
use std::rc::Rc;

/// The world of one event: shared data, metrics and the time.
pub struct Env<'a> {
    /// Envoy's shared data.
    pub store: &'a dyn SharedStore,
    /// Where events are counted.
    pub meter: &'a dyn Meter,
    /// Milliseconds on the monotonic clock. Most events never ask.
    pub clock: &'a dyn Fn() -> u64,
    now_ms: Cell<Option<u64>>,
}

impl<'a> Env<'a> {
    /// The world of an event that happens now.
    pub fn new(
        store: &'a dyn SharedStore,
        meter: &'a dyn Meter,
        clock: &'a dyn Fn() -> u64,
    ) -> Self {
        Self {
            store,
            meter,
            clock,
            now_ms: Cell::new(None),
        }
    }

    /// The same, where the clock was just read.
    pub fn at(self, now_ms: u64) -> Self {
        self.now_ms.set(Some(now_ms));
        self
    }

    /// When the event happened: the clock is read once.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get().unwrap_or_else(|| {
            let now_ms = (self.clock)();
            self.now_ms.set(Some(now_ms));
            now_ms
        })
    }
}

/// Look-ups of one body that are kept for its notifies; each holds the pages that it read. A body
/// may name 10⁵ prompts, and those after the first few are looked up again.
const KEPT_QUERIES: usize = 16;
/// Prompts of one body that are looked up and stored; more are routed along with them.
pub const MAX_PROMPTS: usize = 256;
/// Bytes of a prompt stream that make a token, as a rule of thumb.
const BYTES_PER_TOKEN: f64 = 4.0;

/// One filter instance.
pub struct Router {
    config: Config,
    table: Table,
    load: Rc<LoadBoard>,
    standings: Standings,
    responses: Responses,
    may_pause: bool,
    registry_key: String,
    discovery: Cell<Discovered>,
    members: RefCell<Option<Members>>,
    settled: Cell<bool>,
    turn: Cell<u64>,
    /// Tokens saved that are not counted yet.
    saved: Cell<f64>,
}

/// How discovery is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discovered {
    /// Its last success on the monotonic clock; 0: none yet.
    pub polled_ms: u64,
    /// Pods that it found.
    pub pods: usize,
    /// Pods that it found beyond `max_pods`.
    pub left_out: u32,
}

/// What is asked of the policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question<'a> {
    /// The model, if the body names one.
    pub model: Option<&'a str>,
    /// The prompts; none: choose by load alone.
    pub prompts: &'a [Prompt],
    /// The response that the request is about: the pod that made it alone has it.
    pub response: Option<ResponseKey>,
    /// What a pod holds is of no use to it.
    pub recomputes: bool,
}

/// What a choice was made of.
#[derive(Debug)]
pub struct Choice {
    /// The chosen pod and the runners-up.
    pub ranking: Ranking,
    /// Leading chunks held per pod of the pool, summed over the prompts.
    pub matched: Vec<u32>,
    /// Bytes of all prompts.
    pub bytes: usize,
    /// The looked-up pages of the first prompts with chunks, for the notify that follows.
    pub queries: Vec<Query>,
}

/// How a pod stands, and what it is that keeps traffic from it, if something does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// All is well.
    Serving,
    /// It is new, or has lost its cache: its share of the cold prompts grows.
    New,
    /// The table has no place for it.
    NoRoom,
    /// It could not be reached.
    Ejected,
    /// It was ejected, and the next request may try it again.
    OnTrial,
    /// Envoy takes it for unable to serve.
    Unhealthy,
}

impl Why {
    /// The word in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::New => "new",
            Self::NoRoom => "no_room",
            Self::Ejected => "ejected",
            Self::OnTrial => "on_trial",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// What is known of a pod's health.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// How it stands.
    pub why: Why,
    /// Since when, where that is known.
    pub since_ms: Option<u64>,
    /// Until when it is ejected.
    pub until_ms: Option<u64>,
    /// Where this is known from.
    pub source: &'static str,
}

/// Chunks credited to a pod, to be taken back if it did no work.
#[derive(Debug)]
pub struct Credit {
    pod: usize,
    /// Leading chunks that the pod held already, summed over the prompts.
    found: u32,
    /// One for each prompt, in their order.
    receipts: Vec<Option<Receipt>>,
}

impl Credit {
    /// The pod that has the credit.
    pub fn pod(&self) -> usize {
        self.pod
    }

    /// Leading chunks that the pod held already, by what others have written since the choice too.
    pub fn found(&self) -> u32 {
        self.found
    }
}

impl Router {
    /// A router for a configuration. `may_pause`: whether this Envoy lets a filter hold the
    /// headers while the body arrives.
    pub fn new(config: Config, load: Rc<LoadBoard>, may_pause: bool) -> Self {
        let slow_start_ms = match &config.policy {
            Policy::Balanced(keys) => keys.slow_start_ms,
            Policy::LongestPrefix => 0,
        };
        Self {
            table: Table::new(&config.pool, config.geometry()),
            standings: Standings::new(&config.pool, slow_start_ms),
            responses: Responses::new(&config.pool),
            registry_key: Registry::key(&config.pool),
            discovery: Cell::default(),
            config,
            load,
            may_pause,
            members: RefCell::new(None),
            settled: Cell::new(false),
            turn: Cell::new(0),
            saved: Cell::new(0.0),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tables.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether a request may be held until its prompt is known.
    pub fn may_pause(&self) -> bool {
        self.may_pause
    }

    /// The load of each pod, and tokens of prefill per second.
    pub fn loads(&self, env: &Env<'_>, members: &[Member]) -> (Vec<Load>, f64) {
        // A pod without a slot is counted nowhere; it looks idle.
        let slots = members
            .iter()
            .map(|m| m.slot.map_or(usize::MAX, Slot::index));
        let slots: Vec<usize> = slots.collect();
        let start = self.start_rate();
        self.load.read(env.store, &slots, start, env.now_ms())
    }

    /// VMs that are alive: Envoy has one for each worker, and one more.
    pub fn live_vms(&self, env: &Env<'_>) -> u64 {
        self.load.live(env.store, env.now_ms())
    }

    /// Whether each pod may be chosen.
    pub fn fit(&self, env: &Env<'_>, members: &[Member]) -> Vec<bool> {
        let (book, now_ms) = (self.standings.read(env.store), env.now_ms());
        let fit = |m: &Member| standing(&book, m, now_ms, true) == Standing::Fit;
        members.iter().map(fit).collect()
    }

    /// How each pod stands, for people.
    pub fn outlook(&self, env: &Env<'_>, members: &[Member]) -> Vec<Outlook> {
        let (book, now_ms) = (self.standings.read(env.store), env.now_ms());
        let outlook = |member: &Member| {
            let (since_ms, until_ms) = book
                .times(member.key)
                .map_or((None, None), |(since, until)| (Some(since), until));
            let why = match book.standing(member.key, now_ms) {
                _ if !member.healthy => Why::Unhealthy,
                Standing::Unfit => Why::Ejected,
                Standing::Probe => Why::OnTrial,
                Standing::Fit if member.slot.is_none() => Why::NoRoom,
                Standing::Fit if book.cold_share(member.key, now_ms) < 1.0 => Why::New,
                Standing::Fit => Why::Serving,
            };
            Outlook {
                why,
                since_ms: since_ms.filter(|_| !matches!(why, Why::Serving | Why::Unhealthy)),
                until_ms: until_ms.filter(|_| why == Why::Ejected),
                source: match self.config.discovery {
                    Some(_) => "discovery",
                    None => "requests",
                },
            }
        };
        members.iter().map(outlook).collect()
    }

    /// Tokens of `bytes` of prompts that a pod which holds `matched` chunks has to prefill.
    pub fn uncached(&self, bytes: usize, matched: u32) -> f64 {
        let held = u64::from(matched).saturating_mul(self.config.chunk_bytes as u64);
        (bytes as u64).saturating_sub(held) as f64 / BYTES_PER_TOKEN
    }

    /// Bytes of prompts that make so many tokens, as a rule of thumb.
    pub fn prompt_bytes(&self, tokens: f64) -> f64 {
        tokens * BYTES_PER_TOKEN
    }

    /// The share of `bytes` of prompts that so many chunks are.
    pub fn share(&self, bytes: usize, chunks: f64) -> f64 {
        (chunks * self.config.chunk_bytes as f64 / bytes.max(1) as f64).min(1.0)
    }

    /// Counts prefill that a choice saved. One that cost some is owed, and taken off the next.
    pub fn saved(&self, env: &Env<'_>, tokens: f64) {
        let saved = self.saved.get() + tokens;
        let whole = saved.max(0.0).floor();
        self.saved.set(saved - whole);
        let (key, word) = BASELINE;
        env.meter
            .count_labelled(Metric::SavedPrefillTokens, key, word, whole as u64);
    }

    /// A pod has made a response, and alone has it.
    pub fn made(&self, env: &Env<'_>, response: ResponseKey, member: &Member) {
        let now_ms = env.now_ms();
        self.responses.made(env.store, response, member.key, now_ms);
    }

    /// As [`Router::notify`], so that it can be taken back. `chains` are those that have chunks,
    /// `queries` the choice's, if it was just made.
    pub fn credit(
        &self,
        env: &Env<'_>,
        members: &[Member],
        pod: usize,
        chains: &[Vec<ChunkHash>],
        queries: Vec<Query>,
    ) -> Option<Credit> {
        let notified = self.notify(env, members, pod, chains, queries)?;
        let found = notified.iter().map(|done| done.found);
        Some(Credit {
            pod,
            found: found.fold(0, u32::saturating_add),
            receipts: notified.into_iter().map(|done| done.receipt).collect(),
        })
    }

    /// Stores the prompts for a pod for good; says what became of each. `None`: the pod has no
    /// place in the table.
    pub fn notify(
        &self,
        env: &Env<'_>,
        members: &[Member],
        pod: usize,
        chains: &[Vec<ChunkHash>],
        queries: Vec<Query>,
    ) -> Option<Vec<Notified>> {
        let member = members.get(pod)?;
        let (slot, capacity) = (member.slot?, member.capacity);
        let mut queries = queries.into_iter();
        let notified: Vec<Notified> = chains
            .iter()
            .take(MAX_PROMPTS)
            .map(|chain| {
                let query = queries
                    .next()
                    .unwrap_or_else(|| self.table.query(env.store, chain, &[slot]));
                self.table.notify(env.store, chain, slot, capacity, query)
            })
            .collect();
        let evicted = notified.iter().map(|done| u64::from(done.evicted));
        env.meter
            .count_on(Metric::EvictedChunks, member, evicted.sum());
        Some(notified)
    }

    /// Takes a credit back: the pod did no work for it.
    pub fn take_back(&self, env: &Env<'_>, credit: Credit, chains: &[Vec<ChunkHash>]) {
        // Last in, first out: a later prompt of the same body may build on an earlier one.
        for (chain, receipt) in chains.iter().zip(credit.receipts).rev() {
            if let Some(receipt) = receipt {
                self.table.undo(env.store, chain, receipt);
            }
        }
    }

    /// Counts a request on a pod, which has to prefill `tokens` for it; to be ended by what this
    /// returns, for the pod may have another slot by then.
    pub fn begin(&self, env: &Env<'_>, member: &Member, tokens: f64) -> Option<Ticket> {
        let slot = member.slot?.index();
        let now_ms = env.now_ms();
        Some(self.load.begin(env.store, slot, tokens as u32, now_ms))
    }

    /// The first byte of its answer was seen; `tells`: it says how fast the pod is.
    pub fn first_byte(&self, env: &Env<'_>, ticket: &mut Ticket, tells: bool) {
        let start = tells.then(|| self.start_rate());
        self.load.first_byte(env.store, ticket, start, env.now_ms());
    }

    /// Ends what [`Router::begin`] counted.
    pub fn end(&self, env: &Env<'_>, ticket: Ticket) {
        self.load.end(env.store, ticket, env.now_ms());
    }

    /// The pod could not be reached.
    pub fn unreachable(&self, env: &Env<'_>, member: &Member) {
        self.standings.failed(env.store, member.key, env.now_ms());
    }

    /// The pod answered, whatever it said. True: it had been gone for long, and what was stored
    /// for it is forgotten.
    pub fn reached(&self, env: &Env<'_>, member: &Member) -> bool {
        let restarted = self.standings.answered(env.store, member.key, env.now_ms());
        restarted && self.forget(env, member)
    }

    /// Renews the lease on this worker's counts, looks the pods up again, and forgets those that
    /// have been gone for too long.
    pub fn tick(&self, env: &Env<'_>) {
        let now_ms = env.now_ms();
        self.load.renew(env.store, now_ms);
        self.look_again();
        let book = self.standings.read(env.store);
        if book.is_empty() {
            return;
        }
        let members = self.members(env);
        for gone in book.gone(now_ms) {
            // A pod that is not ours to forget is another configuration's.
            if let Some(member) = members.iter().find(|member| member.key == gone) {
                if self.forget(env, member) {
                    self.standings.forgotten(env.store, gone);
                }
            }
        }
        let live: Vec<PodKey> = members.iter().map(|member| member.key).collect();
        self.standings.tidy(env.store, &live, now_ms);
    }

    /// Chunks that a pod's table holds.
    pub fn stored_chunks(&self, env: &Env<'_>, member: &Member) -> u32 {
        member
            .slot
            .map_or(0, |slot| self.table.occupancy(env.store, slot))
    }

    fn start_rate(&self) -> f64 {
        match &self.config.policy {
            Policy::Balanced(keys) => keys.prefill_tokens_per_second,
            Policy::LongestPrefix => Balanced::default().prefill_tokens_per_second,
        }
    }
}

fn standing(book: &Book, member: &Member, now_ms: u64, probes: bool) -> Standing {
    match book.standing(member.key, now_ms) {
        _ if !member.healthy => Standing::Unfit,
        Standing::Probe if !probes => Standing::Unfit,
        standing => standing,
    }
}

#[cfg(test)]
mod tests;
