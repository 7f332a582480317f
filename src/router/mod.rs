//! What one filter instance keeps between requests.
//!
//! Owns the validated configuration, the pool's table, and what is known of its pods, and offers
//! what a request asks for: look up and choose, credit, take back, count, tell who could not be
//! reached. Invariant: a pod is an index into the [`Members`] that the request was decided on.
//! Cost: `choose` is one table query per prompt of the body, and two or three reads for the load.

use crate::chunk::ChunkHash;
use crate::config::{Balanced, Capacity, Config, Policy};
use crate::metrics::Meter;
use crate::pods::load::{Load, LoadBoard, Ticket};
use crate::pods::standing::{Book, Standings};
use crate::pods::{Member, Members};
use crate::policy::{self, Candidate, Ranking, Reason, Standing};
use crate::prompt::Prompt;
use crate::sticky::{ResponseKey, Responses};
use crate::store::SharedStore;
use crate::table::{PodKey, Query, Receipt, Slot, Table};
use core::cell::{Cell, RefCell};
use std::rc::Rc;

/// The world of one event: shared data, metrics and the time.
pub struct Env<'a> {
    /// Envoy's shared data.
    pub store: &'a dyn SharedStore,
    /// Where events are counted.
    pub meter: &'a dyn Meter,
    /// Milliseconds on the monotonic clock. Most events never ask.
    pub clock: &'a dyn Fn() -> u64,
}

/// Look-ups of one body that are kept for its notifies; each holds the pages that it read. A body
/// may name 10⁵ prompts, and those after the first few are looked up again.
const KEPT_QUERIES: usize = 16;
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
    members: RefCell<Option<Members>>,
    settled: Cell<bool>,
    turn: Cell<u64>,
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

/// Chunks credited to a pod, to be taken back if it did no work.
#[derive(Debug)]
pub struct Credit {
    pod: usize,
    /// One for each prompt, in their order.
    receipts: Vec<Option<Receipt>>,
}

impl Credit {
    /// The pod that has the credit.
    pub fn pod(&self) -> usize {
        self.pod
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
            config,
            load,
            may_pause,
            members: RefCell::new(None),
            settled: Cell::new(false),
            turn: Cell::new(0),
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

    /// The pods as they are now; to be kept for as long as their indices are.
    pub fn members(&self, env: &Env<'_>) -> Members {
        let Ok(mut members) = self.members.try_borrow_mut() else {
            return Rc::new([]);
        };
        let now = members.get_or_insert_with(|| self.find_members(env));
        now.clone()
    }

    /// The load of each pod, and tokens of prefill per second.
    pub fn loads(&self, env: &Env<'_>, members: &[Member]) -> (Vec<Load>, f64) {
        // A pod without a slot is counted nowhere; it looks idle.
        let slots = members
            .iter()
            .map(|m| m.slot.map_or(usize::MAX, Slot::index));
        let slots: Vec<usize> = slots.collect();
        let start = self.start_rate();
        self.load.read(env.store, &slots, start, (env.clock)())
    }

    /// Whether each pod may be chosen.
    pub fn fit(&self, env: &Env<'_>, members: &[Member]) -> Vec<bool> {
        let (book, now_ms) = (self.standings.read(env.store), (env.clock)());
        let fit = |m: &Member| standing(&book, m, now_ms, true) == Standing::Fit;
        members.iter().map(fit).collect()
    }

    /// Looks the prompts up and ranks the pods that serve the model.
    pub fn choose(
        &self,
        env: &Env<'_>,
        members: &[Member],
        question: Question<'_>,
    ) -> Option<Choice> {
        let Question {
            model,
            prompts,
            response,
            recomputes,
        } = question;
        let slots: Vec<Slot> = members.iter().filter_map(|member| member.slot).collect();
        let mut matched = vec![0u32; members.len()];
        let mut queries = Vec::new();
        // A text shorter than a chunk has nothing to look up.
        let of_use = |prompt: &&Prompt| !prompt.chunks.is_empty() && !recomputes;
        for prompt in prompts.iter().filter(of_use) {
            let query = self.table.query(env.store, &prompt.chunks, &slots);
            let sums = matched
                .iter_mut()
                .zip(members)
                .filter(|(_, m)| m.slot.is_some());
            for ((sum, _), count) in sums.zip(query.matched()) {
                *sum = sum.saturating_add(*count);
            }
            if queries.len() < KEPT_QUERIES {
                queries.push(query);
            }
        }
        let bytes = prompts
            .iter()
            .fold(0usize, |sum, prompt| sum.saturating_add(prompt.bytes));
        // Without a prompt there is nothing that gateways could agree on: take turns.
        let home = prompts
            .first()
            .map_or_else(|| self.next_turn(), |prompt| prompt.home);
        let now_ms = (env.clock)();
        let book = self.standings.read(env.store);
        let (loads, rate) = self.loads(env, members);
        let maker = response.and_then(|key| self.responses.find(env.store, key, now_ms));
        let rank = |probes: bool| {
            let able = self.candidates(members, model, |pod, member| Candidate {
                pod,
                name: &member.pod.name,
                standing: standing(&book, member, now_ms, probes),
                cold_share: book.cold_share(member.key, now_ms),
                matched: matched.get(pod).copied().unwrap_or(0),
                uncached: self.uncached(bytes, matched.get(pod).copied().unwrap_or(0)),
                backlog: loads.get(pod).map_or(0.0, |load| load.backlog),
                running: loads.get(pod).map_or(0, |load| load.running),
            });
            let mut ranking = policy::rank(&self.config.policy, able, rate, home)?;
            if prompts.is_empty() {
                ranking.reason = Reason::NoPrompt;
            }
            let mut all = members.iter().enumerate();
            let maker = maker.and_then(|key| all.find(|(_, member)| member.key == key));
            if let Some((pod, member)) = maker {
                let unfit = standing(&book, member, now_ms, probes) == Standing::Unfit;
                if !unfit || ranking.panic {
                    ranking.stick_to(pod);
                }
            }
            Some(ranking)
        };
        let mut ranking = rank(true)?;
        let best = ranking.pods.first().and_then(|pod| members.get(*pod));
        let probe = |m: &Member| standing(&book, m, now_ms, true) == Standing::Probe;
        if let Some(best) = best.filter(|member| probe(member)) {
            if !self.standings.claim_probe(env.store, best.key, now_ms) {
                ranking = rank(false)?;
            }
        }
        Some(Choice {
            ranking,
            matched,
            bytes,
            queries,
        })
    }

    /// Tokens of `bytes` of prompts that a pod which holds `matched` chunks has to prefill.
    pub fn uncached(&self, bytes: usize, matched: u32) -> f64 {
        let held = u64::from(matched).saturating_mul(self.config.chunk_bytes as u64);
        (bytes as u64).saturating_sub(held) as f64 / BYTES_PER_TOKEN
    }

    /// A pod has made a response, and alone has it.
    pub fn made(&self, env: &Env<'_>, response: ResponseKey, member: &Member) {
        let now_ms = (env.clock)();
        self.responses.made(env.store, response, member.key, now_ms);
    }

    /// Stores the prompts for a pod. `chains` are those that have chunks, `queries` the choice's,
    /// if it was just made.
    pub fn credit(
        &self,
        env: &Env<'_>,
        members: &[Member],
        pod: usize,
        chains: &[Vec<ChunkHash>],
        queries: Vec<Query>,
    ) -> Option<Credit> {
        let slot = members.get(pod)?.slot?;
        let capacity = self.capacity();
        let mut queries = queries.into_iter();
        let receipts = chains
            .iter()
            .map(|chain| {
                let query = queries
                    .next()
                    .unwrap_or_else(|| self.table.query(env.store, chain, &[slot]));
                self.table
                    .notify(env.store, chain, slot, capacity, query)
                    .receipt
            })
            .collect();
        Some(Credit { pod, receipts })
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
        let now_ms = (env.clock)();
        Some(self.load.begin(env.store, slot, tokens as u32, now_ms))
    }

    /// The first byte of its answer was seen; a `good` answer says how fast the pod is.
    pub fn first_byte(&self, env: &Env<'_>, ticket: &mut Ticket, good: bool) {
        let start = good.then(|| self.start_rate());
        self.load
            .first_byte(env.store, ticket, start, (env.clock)());
    }

    /// Ends what [`Router::begin`] counted.
    pub fn end(&self, env: &Env<'_>, ticket: Ticket) {
        self.load.end(env.store, ticket, (env.clock)());
    }

    /// The pod could not be reached.
    pub fn unreachable(&self, env: &Env<'_>, member: &Member) {
        self.standings.failed(env.store, member.key, (env.clock)());
    }

    /// The pod answered, whatever it said.
    pub fn reached(&self, env: &Env<'_>, member: &Member) {
        if self
            .standings
            .answered(env.store, member.key, (env.clock)())
        {
            self.forget(env, member);
        }
    }

    /// Renews the lease on this worker's counts, looks the pods up again, and forgets those that
    /// have been gone for too long.
    pub fn tick(&self, env: &Env<'_>) {
        let now_ms = (env.clock)();
        self.load.renew(env.store, now_ms);
        if let Ok(mut members) = self.members.try_borrow_mut() {
            *members = None;
        }
        let book = self.standings.read(env.store);
        if book.is_empty() {
            return;
        }
        let members = self.members(env);
        for gone in book.gone(now_ms) {
            if let Some(member) = members.iter().find(|member| member.key == gone) {
                self.forget(env, member);
            }
            self.standings.forgotten(env.store, gone);
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

    /// Chunks that a pod's table may hold.
    pub fn capacity(&self) -> u32 {
        match self.config.capacity {
            Capacity::Chunks(chunks) => chunks,
            Capacity::Auto => self.config.max_capacity_chunks,
        }
    }

    fn start_rate(&self) -> f64 {
        match &self.config.policy {
            Policy::Balanced(keys) => keys.prefill_tokens_per_second,
            Policy::LongestPrefix => Balanced::default().prefill_tokens_per_second,
        }
    }

    fn forget(&self, env: &Env<'_>, member: &Member) {
        if let Some(slot) = member.slot {
            self.table.forget(env.store, slot);
        }
    }

    /// The pods that serve `model`, or all of them when none is known to: vLLM answers its own 404.
    fn candidates<'a>(
        &self,
        members: &'a [Member],
        model: Option<&str>,
        candidate: impl Fn(usize, &'a Member) -> Candidate<'a>,
    ) -> Vec<Candidate<'a>> {
        let serves = |member: &Member| model.is_none_or(|model| member.pod.serves(model));
        let any = members.iter().any(serves);
        let able = members.iter().enumerate();
        able.filter(|(_, member)| !any || serves(member))
            .map(|(pod, member)| candidate(pod, member))
            .collect()
    }

    fn next_turn(&self) -> u64 {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    /// The pods with their slots. Slots are given once per configuration, and not while Envoy
    /// only validates it. Later they are only found: the streams of an old configuration may live
    /// for long, and must not take from the new one what it needs.
    fn find_members(&self, env: &Env<'_>) -> Members {
        let pods = &self.config.pods;
        let keys: Vec<PodKey> = pods.iter().map(|pod| PodKey::of(&pod.name)).collect();
        let mut found: Vec<Option<Slot>> = self.table.find(env.store, &keys);
        if !self.settled.replace(true) {
            // Who joins others is new; who starts with them is not.
            let joins = self.table.has_owners(env.store);
            self.table.retain(env.store, &keys);
            for (slot, key) in found.iter_mut().zip(&keys) {
                if slot.is_none() {
                    *slot = self.table.slot(env.store, *key, &keys);
                    if joins {
                        self.standings.arrived(env.store, *key, (env.clock)());
                    }
                }
            }
        }
        let members = pods.iter().zip(keys).zip(found);
        members
            .map(|((pod, key), slot)| Member {
                pod: pod.clone(),
                key,
                slot,
                healthy: true,
            })
            .collect()
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
