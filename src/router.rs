//! What one filter instance keeps between requests.
//!
//! Owns the validated configuration, the pool's table and its board of requests in flight, and
//! offers the three things that a request asks for: look up and choose, credit, take back.
//! Invariant: a pod is named by its index in the configuration; only this file turns that index
//! into a table slot. Cost: `choose` is one table query per prompt of the body.

use crate::chunk::ChunkHash;
use crate::config::{Capacity, Config};
use crate::load::LoadBoard;
use crate::metrics::Meter;
use crate::policy::{self, Candidate, Ranking, Reason};
use crate::prompt::Prompt;
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

/// One filter instance.
pub struct Router {
    config: Config,
    table: Table,
    load: Rc<LoadBoard>,
    may_pause: bool,
    slots: RefCell<Rc<[Option<Slot>]>>,
    settled: Cell<bool>,
    turn: Cell<u64>,
}

/// What a choice was made of.
#[derive(Debug)]
pub struct Choice {
    /// The chosen pod and the runners-up.
    pub ranking: Ranking,
    /// Leading chunks held per pod of the pool, summed over the prompts.
    pub matched: Vec<u32>,
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

/// One request in flight, where it is counted.
#[derive(Debug)]
pub struct Counted {
    slot: usize,
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
        let table = Table::new(&config.pool, config.geometry());
        Self {
            config,
            table,
            load,
            may_pause,
            slots: RefCell::new(Rc::new([])),
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

    /// Requests in flight per pod of the pool, over all workers.
    pub fn running(&self, env: &Env<'_>) -> Vec<u32> {
        let slots = self.slots(env);
        // A pod without a slot is counted nowhere; it looks idle.
        let indices: Vec<usize> = slots
            .iter()
            .map(|s| s.map_or(usize::MAX, Slot::index))
            .collect();
        self.load.running(env.store, &indices, (env.clock)())
    }

    /// Looks the prompts up and ranks the pods that serve `model`.
    pub fn choose(&self, env: &Env<'_>, model: Option<&str>, prompts: &[Prompt]) -> Option<Choice> {
        let slots = self.slots(env);
        let known: Vec<Slot> = slots.iter().copied().flatten().collect();
        let mut matched = vec![0u32; slots.len()];
        let mut queries = Vec::new();
        // A text shorter than a chunk has nothing to look up.
        for prompt in prompts.iter().filter(|prompt| !prompt.chunks.is_empty()) {
            let query = self.table.query(env.store, &prompt.chunks, &known);
            let counts = query.matched().iter();
            let pods = matched
                .iter_mut()
                .zip(slots.iter())
                .filter(|(_, slot)| slot.is_some());
            for ((sum, _), count) in pods.zip(counts) {
                *sum = sum.saturating_add(*count);
            }
            if queries.len() < KEPT_QUERIES {
                queries.push(query);
            }
        }
        // Without a prompt there is nothing that gateways could agree on: take turns.
        let home = prompts
            .first()
            .map_or_else(|| self.next_turn(), |prompt| prompt.home);
        let ranking = policy::longest_prefix(&self.candidates(env, model, &matched), home)?;
        Some(Choice {
            ranking,
            matched,
            queries,
        })
    }

    /// Chooses by load alone.
    pub fn choose_by_load(&self, env: &Env<'_>) -> Option<Ranking> {
        let none = vec![0; self.config.pods.len()];
        let mut ranking =
            policy::longest_prefix(&self.candidates(env, None, &none), self.next_turn())?;
        ranking.reason = Reason::NoPrompt;
        Some(ranking)
    }

    /// Stores the prompts for a pod. `chains` are those that have chunks, `queries` the choice's,
    /// if it was just made.
    pub fn credit(
        &self,
        env: &Env<'_>,
        pod: usize,
        chains: &[Vec<ChunkHash>],
        queries: Vec<Query>,
    ) -> Option<Credit> {
        let slot = (*self.slots(env).get(pod)?)?;
        let capacity = match self.config.capacity {
            Capacity::Chunks(chunks) => chunks,
            Capacity::Auto => self.config.max_capacity_chunks,
        };
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

    /// Counts a request on a pod; to be ended by what this returns, for the pod may have another
    /// slot by then.
    pub fn begin(&self, env: &Env<'_>, pod: usize) -> Option<Counted> {
        let slot = self.slots(env).get(pod).copied().flatten()?.index();
        self.load.begin(env.store, slot, (env.clock)());
        Some(Counted { slot })
    }

    /// Ends what [`Router::begin`] counted.
    pub fn end(&self, env: &Env<'_>, counted: Counted) {
        self.load.end(env.store, counted.slot, (env.clock)());
    }

    /// The pod that answers at `address` (`ip:port`).
    pub fn pod_at(&self, address: &str) -> Option<usize> {
        self.config
            .pods
            .iter()
            .position(|pod| pod.address.as_deref() == Some(address))
    }

    /// Renews the lease on this worker's counts, and looks the slots up again: another worker
    /// may have given one away.
    pub fn tick(&self, env: &Env<'_>) {
        self.load.renew(env.store, (env.clock)());
        if let Ok(mut slots) = self.slots.try_borrow_mut() {
            *slots = Rc::new([]);
        }
    }

    /// Chunks that a pod's table holds.
    pub fn stored_chunks(&self, env: &Env<'_>, pod: usize) -> u32 {
        let slot = self.slots(env).get(pod).copied().flatten();
        slot.map_or(0, |slot| self.table.occupancy(env.store, slot))
    }

    fn candidates<'a>(
        &'a self,
        env: &Env<'_>,
        model: Option<&str>,
        matched: &[u32],
    ) -> Vec<Candidate<'a>> {
        let running = self.running(env);
        let pods = self
            .config
            .pods
            .iter()
            .enumerate()
            .zip(matched)
            .zip(running);
        let all = pods.map(|(((pod, config), matched), running)| Candidate {
            pod,
            name: &config.name,
            matched: *matched,
            running,
        });
        let serves = |candidate: &Candidate<'_>| {
            let pod = self.config.pods.get(candidate.pod);
            pod.is_some_and(|pod| model.is_none_or(|model| pod.serves(model)))
        };
        let (able, rest): (Vec<_>, Vec<_>) = all.partition(serves);
        // A model that no pod is known to serve: vLLM answers its own 404.
        if able.is_empty() {
            rest
        } else {
            able
        }
    }

    fn next_turn(&self) -> u64 {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    /// The table slots of the pods, in the order of the configuration.
    fn slots(&self, env: &Env<'_>) -> Rc<[Option<Slot>]> {
        let Ok(mut slots) = self.slots.try_borrow_mut() else {
            return Rc::new([]);
        };
        if slots.is_empty() {
            let keys: Vec<PodKey> = self
                .config
                .pods
                .iter()
                .map(|pod| PodKey::of(&pod.name))
                .collect();
            // Slots are given once per configuration, and not while Envoy only validates it. Later
            // they are only found: the streams of an old configuration may live for long, and must
            // not take from the new one what it needs.
            let first = !self.settled.replace(true);
            if first {
                self.table.retain(env.store, &keys);
            }
            let slot = |key: &PodKey| match first {
                true => self.table.slot(env.store, *key, &keys),
                false => self.table.find(env.store, *key),
            };
            *slots = keys.iter().map(slot).collect();
        }
        slots.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Silent;
    use crate::prompt;
    use crate::store::MemoryStore;

    fn router(pods: &[&str], more: &str, board: &Rc<LoadBoard>) -> Router {
        let pods: Vec<String> = pods
            .iter()
            .map(|name| format!(r#"{{"name": "{name}"}}"#))
            .collect();
        let text = format!(r#"{{"pods": [{}]{more}}}"#, pods.join(","));
        Router::new(Config::parse(text.as_bytes()).unwrap(), board.clone(), true)
    }

    fn board() -> Rc<LoadBoard> {
        Rc::new(LoadBoard::new("default", 1))
    }

    fn env(store: &MemoryStore) -> Env<'_> {
        Env {
            store,
            meter: &Silent,
            clock: &|| 1000,
        }
    }

    #[test]
    fn only_the_first_look_ups_of_many_prompts_are_kept() {
        let (store, board) = (MemoryStore::default(), board());
        let (env, router) = (env(&store), router(&["a"], "", &board));
        let texts = (0..100).map(|n| format!("{n:03}").repeat(if n % 2 == 0 { 200 } else { 1 }));
        let prompts: Vec<Prompt> = texts
            .flat_map(|text| prompt::raw(text.as_bytes(), None, 256).prompts)
            .collect();
        let chains: Vec<_> = prompts.iter().map(|prompt| prompt.chunks.clone()).collect();
        let chains: Vec<_> = chains.into_iter().filter(|c| !c.is_empty()).collect();
        let whole: usize = chains.iter().map(Vec::len).sum();
        let first = router.choose(&env, None, &prompts).unwrap();
        assert_eq!(
            (first.queries.len(), first.matched),
            (KEPT_QUERIES, vec![0])
        );
        let credit = router.credit(&env, 0, &chains, first.queries).unwrap();
        let matched = |router: &Router| router.choose(&env, None, &prompts).unwrap().matched[0];
        assert_eq!(matched(&router) as usize, whole);
        router.take_back(&env, credit, &chains);
        assert_eq!(matched(&router), 0);
    }

    fn one(text: &str, chunk_bytes: usize) -> Vec<Prompt> {
        prompt::raw(text.repeat(400).as_bytes(), None, chunk_bytes).prompts
    }

    fn credited(
        router: &Router,
        env: &Env<'_>,
        prompts: &[Prompt],
    ) -> (Credit, Vec<Vec<ChunkHash>>) {
        let queries = router.choose(env, None, prompts).unwrap().queries;
        let chains: Vec<_> = prompts.iter().map(|prompt| prompt.chunks.clone()).collect();
        (router.credit(env, 0, &chains, queries).unwrap(), chains)
    }

    /// While a listener drains, the old configuration ticks beside the new one.
    fn old_beside_new(old: Router, new: Router, chunk_bytes: usize) {
        let store = MemoryStore::default();
        let env = env(&store);
        old.running(&env);
        new.running(&env);
        let prompts = one("kept", chunk_bytes);
        let _ = credited(&new, &env, &prompts);
        let before = new.choose(&env, None, &prompts).unwrap().matched;
        assert!(before[0] > 0);
        old.tick(&env);
        old.running(&env);
        assert_eq!(new.choose(&env, None, &prompts).unwrap().matched, before);
    }

    #[test]
    fn an_old_configuration_takes_no_slot_from_the_new_one() {
        let (board, full) = (board(), r#", "max_pods": 1"#);
        let (old, new) = (router(&["a"], full, &board), router(&["b"], full, &board));
        old_beside_new(old, new, 256);
    }

    #[test]
    fn an_old_geometry_does_not_overwrite_the_new_one() {
        let (board, chunks) = (board(), r#", "chunk_bytes": 128"#);
        let (old, new) = (router(&["a"], "", &board), router(&["a"], chunks, &board));
        old_beside_new(old, new, 128);
    }

    #[test]
    fn a_geometry_that_comes_back_twice_revives_nothing() {
        let (store, board) = (MemoryStore::default(), board());
        let env = env(&store);
        let a = |pod| router(&[pod], "", &board);
        let b = || router(&["a"], r#", "chunk_bytes": 128"#, &board);
        let prompts = one("long gone", 256);
        for turn in 0..3 {
            let back = a(["a", "b", "c"][turn]);
            let matched = back.choose(&env, None, &prompts).unwrap().matched;
            assert_eq!(matched, [0], "turn {turn}: a pod that never saw it");
            let _ = credited(&back, &env, &prompts);
            b().running(&env);
        }
    }
}
