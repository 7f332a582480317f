//! What the published rules have in common: counts of their own requests, a table of who was sent
//! what, and the pods' metrics.
//!
//! Owns the state; the choice is a function of a [`View`] (`rules`). Every rule with a table gets
//! the best one: least recently used per pod, at exactly the pod's own size, whatever its authors
//! ship; every rule knows at once that a pod died, and forgets what
//! it held; metrics are never old.

use super::rules::{Rule, View};
use super::{Gateway, Setting};
use crate::cache::BlockCache;
use crate::pod::Pod;
use crate::workload::Request;
use crate::{Micros, SECOND};
use rand::rngs::SmallRng;
use rand::SeedableRng;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// How far back Preble's load looks.
const WINDOW: Micros = 180 * SECOND;

/// See the module.
pub struct Peer {
    setting: Setting,
    rule: Rule,
    rng: SmallRng,
    turn: usize,
    tables: Vec<BlockCache>,
    running: Vec<u32>,
    up: Vec<bool>,
    /// Tokens of prompts without a first byte, and of all that run: Dynamo's counts.
    prefill: Vec<f64>,
    held: Vec<f64>,
    /// Tokens sent to each pod of late, and when.
    recent: Vec<f64>,
    window: VecDeque<(Micros, usize, f64)>,
    open: FxHashMap<usize, Open>,
}

struct Open {
    pod: usize,
    prefill: f64,
    held: f64,
}

impl Peer {
    /// A gateway that has just started.
    pub fn new(setting: Setting, rule: Rule) -> Self {
        let pods = setting.members.len();
        Self {
            rule,
            rng: SmallRng::seed_from_u64(setting.seed),
            turn: 0,
            tables: (0..pods)
                .map(|_| BlockCache::new(setting.capacity))
                .collect(),
            running: vec![0; pods],
            up: vec![true; pods],
            prefill: vec![0.0; pods],
            held: vec![0.0; pods],
            recent: vec![0.0; pods],
            window: VecDeque::new(),
            open: FxHashMap::default(),
            setting,
        }
    }

    fn forget_old(&mut self, now: Micros) {
        while let Some(&(at, pod, tokens)) = self.window.front() {
            if at + WINDOW >= now {
                break;
            }
            self.recent[pod] -= tokens;
            self.window.pop_front();
        }
    }
}

impl Gateway for Peer {
    fn route(&mut self, now: Micros, id: usize, request: &Request, pods: &[Pod]) -> usize {
        self.forget_old(now);
        let able: Vec<usize> = (0..pods.len())
            .filter(|pod| self.setting.members[*pod] && self.up[*pod])
            .collect();
        let matched = match self.rule.has_table() {
            true => self
                .tables
                .iter()
                .map(|t| t.lookup(&request.chain))
                .collect(),
            false => vec![0; pods.len()],
        };
        self.turn += 1;
        let view = View {
            able: &able,
            request,
            block_tokens: self.setting.block_tokens,
            matched: &matched,
            running: &self.running,
            prefill: &self.prefill,
            held: &self.held,
            recent: &self.recent,
            pods,
            turn: self.turn,
        };
        let pod = self.rule.choose(&view, &mut self.rng);
        let tokens = f64::from(request.tokens);
        let uncached = tokens - matched[pod] as f64 * f64::from(self.setting.block_tokens);
        if self.rule.has_table() {
            self.tables[pod].touch(&request.chain);
        }
        self.running[pod] += 1;
        self.prefill[pod] += uncached;
        self.held[pod] += tokens;
        self.recent[pod] += uncached;
        self.window.push_back((now, pod, uncached));
        let open = Open {
            pod,
            prefill: uncached,
            held: tokens,
        };
        self.open.insert(id, open);
        pod
    }

    fn first_byte(&mut self, _: Micros, id: usize) {
        if let Some(open) = self.open.get_mut(&id) {
            self.prefill[open.pod] -= std::mem::take(&mut open.prefill);
        }
    }

    fn end(&mut self, _: Micros, id: usize) {
        if let Some(open) = self.open.remove(&id) {
            self.running[open.pod] -= 1;
            self.prefill[open.pod] -= open.prefill;
            self.held[open.pod] -= open.held;
        }
    }

    fn failed(&mut self, now: Micros, id: usize) {
        self.end(now, id);
    }

    fn joined(&mut self, _: Micros, pod: usize) {
        self.setting.members[pod] = true;
    }

    fn died(&mut self, pod: usize) {
        self.up[pod] = false;
        self.tables[pod] = BlockCache::new(self.setting.capacity);
    }

    fn back(&mut self, pod: usize) {
        self.up[pod] = true;
    }
}
