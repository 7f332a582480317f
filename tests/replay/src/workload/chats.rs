//! Interleaved chats of several turns, and the same traffic over pods that change.
//!
//! Owns the generator: chats are drawn by a Zipf law, so that a few are hot and many are rare; each
//! turn repeats all before it, with the answer, and adds a message. A chat that has grown long
//! starts anew. All begin with one of a few system prompts.

use super::prompts::{workload, Mint, BLOCK_TOKENS};
use super::{Change, Request, Workload};
use crate::cache::BlockId;
use rand_distr::{Distribution, Zipf};

const SYSTEM_PROMPTS: usize = 4;
const SYSTEM_TOKENS: u32 = 512;
const LONGEST: u32 = 12_000;

struct Chat {
    chain: Vec<BlockId>,
    tokens: u32,
}

/// Chats over pods that are all alike; 16 chats for each pod.
pub fn chats(seed: u64, pods: usize, count: usize) -> Workload {
    let mut mint = Mint::new(seed);
    let mut heads = vec![Vec::new(); SYSTEM_PROMPTS];
    for head in &mut heads {
        mint.extend(head, SYSTEM_TOKENS);
    }
    let users = 16 * pods;
    let start = |user: usize| Chat {
        chain: heads[user % SYSTEM_PROMPTS].clone(),
        tokens: SYSTEM_TOKENS,
    };
    let mut open: Vec<Chat> = (0..users).map(start).collect();
    let zipf = Zipf::new(users as f64, 0.8);
    let mut at = 0;
    let turn = |_| {
        at += mint.gap(1.0);
        let drawn = zipf.map_or(1.0, |zipf| zipf.sample(&mut mint.rng));
        let user = drawn as usize - 1;
        let message = mint.length(400.0, 1.0);
        let output = mint.length(150.0, 0.6).min(1000);
        let chat = &mut open[user];
        if chat.tokens > LONGEST {
            *chat = start(user);
        }
        chat.tokens += message;
        mint.extend(&mut chat.chain, chat.tokens);
        let request = Request {
            at,
            chain: chat.chain.clone(),
            tokens: chat.tokens,
            output,
            user: (SYSTEM_TOKENS / BLOCK_TOKENS) as usize,
        };
        chat.tokens += output;
        request
    };
    let requests = (0..count).map(turn).collect();
    workload(requests, pods)
}

/// The first pod dies in the middle of the run and comes back empty.
pub fn restart(seed: u64, pods: usize, count: usize) -> Workload {
    let changes = vec![Change::Restart {
        pod: 0,
        from: 0.4,
        to: 0.55,
    }];
    Workload {
        changes,
        ..chats(seed, pods, count)
    }
}

/// A quarter of the pods joins when a third of the run is over.
pub fn joining(seed: u64, pods: usize, count: usize) -> Workload {
    let late = pods - pods.div_ceil(4)..pods;
    Workload {
        changes: late.map(|pod| Change::Join { pod, at: 0.33 }).collect(),
        ..chats(seed, pods, count)
    }
}

/// Half of the pods are half as fast.
pub fn uneven(seed: u64, pods: usize, count: usize) -> Workload {
    let speed = |pod: usize| if pod.is_multiple_of(2) { 1.0 } else { 0.5 };
    Workload {
        speeds: (0..pods).map(speed).collect(),
        ..chats(seed, pods, count)
    }
}
