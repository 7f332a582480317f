//! One simulated pod: a queue, one prefill at a time, bounded decode.
//!
//! Owns the order of work. A request waits until it is its turn, there is a place among the
//! running ones, and its blocks fit; then it looks the cache up, as vLLM does when it schedules,
//! pins its blocks, and computes what was not found. It holds place and blocks until its last
//! token. Nobody overtakes. Decode does not slow prefill down.
//! Invariant: what is pinned belongs to running requests. Cost: O(blocks) a request.

use crate::cache::BlockCache;
use crate::workload::Request;
use crate::{Micros, SECOND};
use std::collections::VecDeque;

/// What all pods have in common.
#[derive(Debug, Clone, Copy)]
pub struct PodSettings {
    /// Tokens of prefill per second.
    pub rate: f64,
    /// Requests that run at the same time.
    pub max_running: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Time between two tokens of an answer.
    pub decode: Micros,
}

/// A request that has its blocks.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// Which one.
    pub id: usize,
    /// Leading blocks that were found.
    pub hits: usize,
    /// When its first token is there.
    pub first_token: Micros,
}

/// See the module.
pub struct Pod {
    settings: PodSettings,
    rate: f64,
    cache: BlockCache,
    waiting: VecDeque<usize>,
    prefill: Option<(Started, Micros)>,
    decoding: Vec<(usize, usize)>,
    /// Whether it answers at all.
    pub up: bool,
    /// Restarts so far; what was scheduled before one means nothing after it.
    pub life: u32,
    /// Time spent on prefill.
    pub busy: Micros,
}

impl Pod {
    /// An empty one.
    pub fn new(settings: PodSettings, speed: f64) -> Self {
        Self {
            settings,
            rate: settings.rate * speed,
            cache: BlockCache::new(settings.blocks),
            waiting: VecDeque::new(),
            prefill: None,
            decoding: Vec::new(),
            up: true,
            life: 0,
            busy: 0,
        }
    }

    /// Its prefix cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Requests that wait for their prefill.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that it has.
    pub fn requests(&self) -> usize {
        self.waiting.len() + usize::from(self.prefill.is_some()) + self.decoding.len()
    }

    /// Share of the cache that cannot be evicted: what vLLM reports as its usage.
    pub fn usage(&self) -> f64 {
        self.cache.pinned() as f64 / self.cache.capacity() as f64
    }

    /// Tokens of the prefill under way that are done.
    pub fn progress(&self, now: Micros) -> f64 {
        self.prefill.map_or(0.0, |(_, since)| {
            (now - since) as f64 * self.rate / SECOND as f64
        })
    }

    /// A request arrives.
    pub fn push(&mut self, id: usize) {
        self.waiting.push_back(id);
    }

    /// Starts the next prefill, if there is one and it may.
    pub fn start(&mut self, now: Micros, requests: &[Request]) -> Option<Started> {
        if self.prefill.is_some() || self.decoding.len() >= self.settings.max_running {
            return None;
        }
        let (id, block) = (*self.waiting.front()?, self.settings.block_tokens);
        let request = &requests[id];
        let (most, total) = (request.most_hits(block), self.total(request));
        let hits = self.cache.begin(&request.chain, most, total)?;
        self.waiting.pop_front();
        let computed = request.tokens - hits as u32 * block;
        let took = (f64::from(computed) / self.rate * SECOND as f64) as Micros;
        self.busy += took;
        let started = Started {
            id,
            hits,
            first_token: now + took,
        };
        self.prefill = Some((started, now));
        Some(started)
    }

    /// The prefill under way ends: the first token is there. Returns when the last one will be.
    pub fn first_token(&mut self, now: Micros, requests: &[Request]) -> Micros {
        let Some((Started { id, hits, .. }, _)) = self.prefill.take() else {
            return now;
        };
        let request = &requests[id];
        self.cache.commit(&request.chain, hits);
        self.decoding
            .push((id, self.total(request) - request.chain.len()));
        now + self.settings.decode * Micros::from(request.output)
    }

    /// A request ends.
    pub fn end(&mut self, id: usize, requests: &[Request]) {
        if let Some(at) = self.decoding.iter().position(|(other, _)| *other == id) {
            let (id, anonymous) = self.decoding.swap_remove(at);
            self.cache.release(&requests[id].chain, anonymous);
        }
    }

    /// The process dies: returns those that had no first token yet, and those that did.
    pub fn die(&mut self, now: Micros) -> (Vec<usize>, Vec<usize>) {
        let mut lost: Vec<usize> = Vec::new();
        if let Some((started, _)) = self.prefill.take() {
            self.busy -= started.first_token - now;
            lost.push(started.id);
        }
        lost.extend(self.waiting.drain(..));
        let cut = self.decoding.drain(..).map(|(id, _)| id).collect();
        self.cache = BlockCache::new(self.settings.blocks);
        self.up = false;
        self.life += 1;
        (lost, cut)
    }

    fn total(&self, request: &Request) -> usize {
        request
            .blocks(self.settings.block_tokens)
            .min(self.settings.blocks)
    }
}
