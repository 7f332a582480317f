//! What is known of the pods.
//!
//! | file | idea |
//! |---|---|
//! | `load`, and its `lane` and `rate` | requests in flight, prefill that waits, how fast it goes |
//! | `standing` | who is ejected, who is new |
//! | `registry` | what Envoy and the pods say of them: one value in shared data |
//! | `health` | Envoy's own view of a host |
//! | `admin`, `scrape` | the answers of the admin listener and of the pods |
//! | `keeper` | the one worker that asks, and what an answer changes |
//! | `lease`, `schedule` | which worker asks, and when |
//!
//! Owns [`Member`], a pod as a request sees it. Invariant: a request keeps the list that it was
//! decided on, so its indices mean the same pods all its life, whoever comes or goes.

pub mod admin;
pub mod health;
pub mod keeper;
mod lane;
pub mod lease;
pub mod load;
mod rate;
pub mod registry;
pub mod schedule;
pub mod scrape;
pub mod standing;

use crate::config::Pod;
use crate::table::{PodKey, Slot};
use std::rc::Rc;

/// One pod of a pool.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name, address and models.
    pub pod: Pod,
    /// Its key in the tables.
    pub key: PodKey,
    /// Its place in the tables; without one nothing is counted or stored for it.
    pub slot: Option<Slot>,
    /// Whether Envoy takes it for able to serve, as far as Envoy was asked.
    pub healthy: bool,
    /// Chunks that its table may hold.
    pub capacity: u32,
    /// Requests on it that this gateway did not send, as far as it was asked of late.
    pub others: u32,
}

/// The pods of a pool at one moment.
pub type Members = Rc<[Member]>;
