//! Simulated vLLM pods: the answers of vLLM's HTTP servers, a real block-level prefix cache,
//! simulated time, and faults on request.
//!
//! A request passes the modules in this order:
//!
//! | module | owns |
//! |---|---|
//! | [`pod`] | one pod from start to stop: the handle that tests hold |
//! | `connection` | accepting, HTTP/1 or HTTP/2, resets |
//! | `server` | the choice of endpoint |
//! | `received` | reading bodies; the log of what arrived |
//! | [`faults`] | misbehaviour that a test asked for |
//! | `template` | body to prompt: rendered bytes and the keys that change every block |
//! | [`tokens`] | bytes to pseudo-tokens and block hashes |
//! | [`cache`] | the blocks: LRU, pins, prefix look-up |
//! | `queue` | slots, FIFO prefill, decode time |
//! | `openai`, `responses`, `anthropic` | shapes of answers |
//! | `answer` | answer bodies, whole or paced as events |
//! | `metrics`, `control`, `echo` | `/metrics`, `/sim/…`, echo and upgrades |
//!
//! The cache is the pod's own: nothing here reads what a router decided.

mod answer;
mod anthropic;
pub mod cache;
mod config;
mod connection;
mod control;
mod echo;
pub mod faults;
mod metrics;
mod openai;
pub mod pod;
mod queue;
mod received;
mod responses;
mod server;
mod template;
pub mod tokens;

pub use config::PodConfig;
pub use faults::{Cut, Fault};
pub use metrics::Stats;
pub use pod::SimPod;
pub use received::Received;
