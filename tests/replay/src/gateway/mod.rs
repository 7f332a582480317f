//! Who chooses the pod.
//!
//! | file | idea |
//! |---|---|
//! | `filter` | the filter's own router, over tables in memory |
//! | `oracle` | the filter's rule, knowing what the pods really hold |
//! | `peers` | what the published rules have in common: a table, counts, a choice |
//! | `rules` | the published rules, a function each |
//! | `scraper` | what the filter learns from the pods' own metrics |
//!
//! Owns the interface between the event loop and a gateway. A gateway sees what it would see in a
//! deployment: its own requests and, where the published rule reads the pods' metrics, those.

mod filter;
mod oracle;
mod peers;
mod rules;
mod scraper;

pub use filter::Filter;
pub use oracle::Oracle;
pub use peers::Peer;
pub use rules::{Rule, RULES};

use crate::pod::Pod;
use crate::workload::Request;
use crate::Micros;

/// One gateway.
pub trait Gateway {
    /// Chooses a pod for a request and counts it there.
    fn route(&mut self, now: Micros, id: usize, request: &Request, pods: &[Pod]) -> usize;
    /// The first byte of its answer.
    fn first_byte(&mut self, now: Micros, id: usize);
    /// It is over, after its first byte.
    fn end(&mut self, now: Micros, id: usize);
    /// The pod was not there, or is gone before the first byte.
    fn failed(&mut self, now: Micros, id: usize);
    /// A pod joins the pool.
    fn joined(&mut self, now: Micros, pod: usize);
    /// A pod dies; who checks health knows at once.
    fn died(&mut self, _pod: usize) {}
    /// A pod is back.
    fn back(&mut self, _pod: usize) {}
    /// Once a second: who reads the pods' metrics may do so now.
    fn tick(&mut self, _now: Micros, _pods: &[Pod]) {}
    /// Tokens of prefill per second as it has learned, if it learns that.
    fn learned_rate(&mut self, _now: Micros) -> Option<f64> {
        None
    }
}

/// What every gateway is told at its start.
#[derive(Debug, Clone)]
pub struct Setting {
    /// For all random choices of this gateway.
    pub seed: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks that a table keeps per pod: as many as the pod has.
    pub capacity: usize,
    /// Pods that are in the pool from the start.
    pub members: Vec<bool>,
    /// Tokens of prefill per second of an average pod. Only the oracle is told.
    pub rate: f64,
}
