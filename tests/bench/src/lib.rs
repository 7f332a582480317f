//! What the benches share: bodies, the load generator, simulated pods, figures of a process, and
//! the block of README that a bench owns.

pub mod bodies;
pub mod load;
pub mod pods;
pub mod process;
pub mod readme;
pub mod subject;

/// The middle of some values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
