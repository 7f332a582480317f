//! Replays request traces, event by event, over simulated pods: the filter's own policy and tables
//! beside rules that others have published.
//!
//! | module | idea |
//! |---|---|
//! | [`workload`] | a trace or a seeded generator -> requests as chains of prefix blocks |
//! | [`cache`] | the blocks of one pod, least recently used, running requests pinned |
//! | [`pod`] | one pod: a queue, one prefill at a time, bounded decode |
//! | [`gateway`] | who chooses the pod: the filter, the peers, an oracle |
//! | [`sim`] | the event loop |
//! | [`grid`] | the cells, and all their runs on all cores |
//! | [`stats`] | quantiles, intervals, ratios |
//! | [`report`] | CSV, Markdown, SVG |
//!
//! Time is simulated, in whole microseconds; every random choice comes from the seed, so a run
//! gives the same numbers on every machine.

pub mod cache;
pub mod gateway;
pub mod grid;
pub mod pod;
pub mod report;
pub mod sim;
pub mod stats;
pub mod workload;

/// Microseconds since the run began.
pub type Micros = u64;

/// Microseconds in a second.
pub const SECOND: Micros = 1_000_000;
