//! Quantiles, intervals, ratios.

use crate::sim::Run;
use crate::workload::Workload;

/// The numbers of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measures {
    /// Cached tokens as a share of what a single infinite cache would have had.
    pub hits: f64,
    /// Cached tokens as a share of all.
    pub cached: f64,
    /// Seconds to the first token.
    pub mean: f64,
    /// Its median.
    pub p50: f64,
    /// One in ten is slower.
    pub p90: f64,
    /// One in a hundred is slower.
    pub p99: f64,
    /// Prefill time of the busiest pod over the mean.
    pub imbalance: f64,
    /// The prefill rate that the first gateway learned; 0 of those who do not.
    pub learned_rate: f64,
}

impl Measures {
    /// Of a run; `ideal` is [`Workload::ideal_hits`].
    pub fn of(run: &Run, workload: &Workload, ideal: &[u32]) -> Self {
        let sum = |tokens: &mut dyn Iterator<Item = u32>| tokens.map(u64::from).sum::<u64>() as f64;
        let cached = sum(&mut run.outcomes.iter().map(|o| o.cached));
        let ideal = sum(&mut ideal.iter().copied());
        let tokens = sum(&mut workload.requests.iter().map(|r| r.tokens));
        let mut times: Vec<f64> = run
            .outcomes
            .iter()
            .map(|o| o.first_token as f64 / 1e6)
            .collect();
        times.sort_unstable_by(f64::total_cmp);
        let busiest = run.busy.iter().copied().fold(0.0, f64::max);
        Measures {
            // Where nothing can be hit, nothing is missed.
            hits: if ideal > 0.0 { cached / ideal } else { 1.0 },
            cached: cached / tokens,
            mean: mean(&times),
            p50: quantile(&times, 0.5),
            p90: quantile(&times, 0.9),
            p99: quantile(&times, 0.99),
            imbalance: busiest / mean(&run.busy).max(f64::MIN_POSITIVE),
            learned_rate: run.learned_rate.unwrap_or(0.0),
        }
    }
}

/// Arithmetic mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Geometric mean.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    mean(&logs).exp()
}

/// Nearest rank, of sorted values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Half of the 95 % interval of the mean of a few values (Student's t).
pub fn half_interval(values: &[f64]) -> f64 {
    const T: [f64; 9] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
    ];
    let n = values.len();
    if n < 2 {
        return f64::NAN;
    }
    let center = mean(values);
    let square = values.iter().map(|v| (v - center).powi(2)).sum::<f64>();
    let error = (square / (n - 1) as f64 / n as f64).sqrt();
    T.get(n - 2).copied().unwrap_or(1.96) * error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn against_hand_counts() {
        let values = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(mean(&values), 3.75);
        assert!((geometric_mean(&values) - 8f64.sqrt()).abs() < 1e-12);
        assert_eq!(
            [0.5, 0.75, 0.9, 1.0].map(|q| quantile(&values, q)),
            [2.0, 4.0, 8.0, 8.0]
        );
        // s = 2, n = 4: 3.182 · 2 / 2
        assert!((half_interval(&[1.0, 1.0, 1.0, 5.0]) - 3.182).abs() < 1e-9);
    }
}
