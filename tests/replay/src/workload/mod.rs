//! Requests as chains of prefix blocks, and what happens to the pods meanwhile.
//!
//! Owns the common form of traces and generators. A block id stands for a whole prefix: equal ids
//! mean equal prompts up to the end of that block. Arrival times are relative; [`Workload::paced`]
//! stretches them to the load that a cell asks for.
//! Invariant: requests are in the order of their arrival; a chain holds whole blocks only.

pub mod chats;
pub mod mooncake;
pub mod prompts;

use crate::cache::BlockId;
use crate::Micros;
use rustc_hash::FxHashSet;

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it arrives.
    pub at: Micros,
    /// Whole blocks of its prompt.
    pub chain: Vec<BlockId>,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Tokens of its answer.
    pub output: u32,
    /// Block in which its first user message begins: what session hashing hashes.
    pub user: usize,
}

/// What happens to a pod during the run, at a share of its duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Its process dies and another one with an empty cache comes up.
    Restart {
        /// Which one.
        pod: usize,
        /// When it dies.
        from: f64,
        /// When it is back.
        to: f64,
    },
    /// It joins the pool.
    Join {
        /// Which one.
        pod: usize,
        /// When.
        at: f64,
    },
}

/// A trace.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// In the order of arrival.
    pub requests: Vec<Request>,
    /// What happens to the pods.
    pub changes: Vec<Change>,
    /// Speed of each pod; 1 is usual.
    pub speeds: Vec<f64>,
}

impl Workload {
    /// Tokens that a single cache of infinite size would hold, for each request as it arrives.
    pub fn ideal_hits(&self) -> Vec<u32> {
        let mut seen: FxHashSet<BlockId> = FxHashSet::default();
        let hit = |request: &Request| {
            let hits = request.chain.iter().take_while(|id| seen.contains(*id));
            let hits = hits.count().min(request.most_hits(self.block_tokens));
            seen.extend(&request.chain);
            hits as u32 * self.block_tokens
        };
        self.requests.iter().map(hit).collect()
    }

    /// Stretches the arrivals so that the tokens which even a single infinite cache would not hold
    /// keep all pods busy for `utilisation` of the time, at `rate` tokens per second and pod.
    pub fn paced(mut self, utilisation: f64, rate: f64) -> Self {
        let tokens: u64 = self.requests.iter().map(|r| u64::from(r.tokens)).sum();
        let hits: u64 = self.ideal_hits().into_iter().map(u64::from).sum();
        let capacity = rate * self.speeds.iter().sum::<f64>();
        let duration = (tokens - hits) as f64 / (capacity * utilisation);
        let last = self.requests.last().map_or(1, |r| r.at.max(1));
        let stretch = duration * 1e6 / last as f64;
        for request in &mut self.requests {
            request.at = (request.at as f64 * stretch) as Micros;
        }
        self
    }

    /// When the last request arrives.
    pub fn duration(&self) -> Micros {
        self.requests.last().map_or(0, |request| request.at)
    }
}

impl Request {
    /// Most blocks that can be found: at least one token is always computed.
    pub fn most_hits(&self, block_tokens: u32) -> usize {
        (self.tokens.saturating_sub(1) / block_tokens) as usize
    }

    /// Blocks of prompt and answer.
    pub fn blocks(&self, block_tokens: u32) -> usize {
        (self.tokens + self.output).div_ceil(block_tokens) as usize
    }
}
