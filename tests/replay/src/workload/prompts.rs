//! Generators of single prompts: behind a shared system prompt, in cold bursts, all unique.
//!
//! Owns the minting of block ids ([`Mint`]) and the arrival processes.

use super::{Request, Workload};
use crate::cache::BlockId;
use crate::{Micros, SECOND};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp, LogNormal};

/// Tokens of a block in generated prompts.
pub const BLOCK_TOKENS: u32 = 128;

/// Hands out block ids that nobody has yet, and draws lengths and times.
pub struct Mint {
    next: BlockId,
    /// Where all of it comes from.
    pub rng: SmallRng,
}

impl Mint {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            next: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Appends blocks that nobody else has, up to a prompt of `tokens`.
    pub fn extend(&mut self, chain: &mut Vec<BlockId>, tokens: u32) {
        while (chain.len() as u32 + 1) * BLOCK_TOKENS <= tokens {
            chain.push(self.next);
            self.next += 1;
        }
    }

    /// A length with this median and a tail to the right, at least 1.
    pub fn length(&mut self, median: f64, sigma: f64) -> u32 {
        let drawn = LogNormal::new(median.ln(), sigma).map(|d| d.sample(&mut self.rng));
        drawn.unwrap_or(median).clamp(1.0, median * 16.0) as u32
    }

    /// Time to the next event of a Poisson process of `per_second`.
    pub fn gap(&mut self, per_second: f64) -> Micros {
        let drawn = Exp::new(per_second).map(|d| d.sample(&mut self.rng));
        (drawn.unwrap_or(1.0) * SECOND as f64) as Micros
    }

    /// A prompt of `tokens` behind `head`.
    pub fn request(&mut self, at: Micros, head: &[BlockId], tokens: u32) -> Request {
        let tokens = head.len() as u32 * BLOCK_TOKENS + tokens;
        let mut chain = head.to_vec();
        self.extend(&mut chain, tokens);
        Request {
            at,
            chain,
            tokens,
            output: self.length(150.0, 0.6).min(1000),
            user: head.len(),
        }
    }
}

/// One system prompt of 2048 tokens, then a question that nobody else asks.
pub fn system_prompt(seed: u64, pods: usize, count: usize) -> Workload {
    let mut mint = Mint::new(seed);
    let mut head = Vec::new();
    mint.extend(&mut head, 2048);
    let mut at = 0;
    let requests = (0..count).map(|_| {
        at += mint.gap(1.0);
        let tokens = mint.length(600.0, 0.8);
        mint.request(at, &head, tokens)
    });
    workload(requests.collect(), pods)
}

/// Prompts that share nothing, in batches of 32 within a second.
pub fn unique(seed: u64, pods: usize, count: usize) -> Workload {
    let mut mint = Mint::new(seed);
    let mut at = 0;
    let mut requests = Vec::with_capacity(count);
    while requests.len() < count {
        at += mint.gap(1.0 / 32.0);
        for _ in 0..32 {
            let tokens = mint.length(1500.0, 0.8);
            let within = mint.rng.random_range(0..SECOND);
            requests.push(mint.request(at + within, &[], tokens));
        }
    }
    workload(requests, pods)
}

/// A background of unique prompts, and every 64 of them a burst of 24 requests that share 6000
/// tokens which nobody has seen, all within half a second.
pub fn bursts(seed: u64, pods: usize, count: usize) -> Workload {
    let mut mint = Mint::new(seed);
    let mut at = 0;
    let mut requests = Vec::with_capacity(count);
    while requests.len() < count {
        for _ in 0..64 {
            at += mint.gap(1.0);
            let tokens = mint.length(1000.0, 0.8);
            requests.push(mint.request(at, &[], tokens));
        }
        let mut head = Vec::new();
        mint.extend(&mut head, 6000);
        for _ in 0..24 {
            let within = mint.rng.random_range(0..SECOND / 2);
            let tokens = mint.length(100.0, 0.5);
            requests.push(mint.request(at + within, &head, tokens));
        }
    }
    workload(requests, pods)
}

/// In the order of arrival, on pods that are all alike.
pub fn workload(mut requests: Vec<Request>, pods: usize) -> Workload {
    requests.sort_by_key(|request| request.at);
    Workload {
        block_tokens: BLOCK_TOKENS,
        requests,
        changes: Vec::new(),
        speeds: vec![1.0; pods],
    }
}
