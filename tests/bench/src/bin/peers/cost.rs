//! What a router costs: the same instant pods behind each, one connection and many, in turn.

use crate::routers::Router;
use anyhow::Result;
use bench::load::{self, Measured};
use bench::median;
use bench::process::{cpu_time, resident};
use std::sync::Arc;
use std::time::Duration;

/// Connections of the second measurement of a case.
pub const MANY: usize = 16;

/// What was measured through one router.
pub struct Cost {
    pub name: String,
    pub cache_aware: bool,
    /// By body size.
    pub cases: Vec<Case>,
    /// Resident memory in bytes before the first and after the last request.
    pub resident: Option<(u64, u64)>,
}

/// One body size: medians over the rounds.
#[derive(Clone, Copy)]
pub struct Case {
    pub one: Figures,
    pub many: Figures,
    /// CPU of the router in µs for each request, at many connections.
    pub cpu_us: Option<f64>,
}

#[derive(Clone, Copy)]
pub struct Figures {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub per_second: f64,
}

impl Figures {
    fn medians(rounds: &[Measured]) -> Self {
        Self {
            p50_ms: median(rounds.iter().map(|m| m.quantile_ms(0.5))),
            p99_ms: median(rounds.iter().map(|m| m.quantile_ms(0.99))),
            per_second: median(rounds.iter().map(Measured::per_second)),
        }
    }
}

#[derive(Default, Clone)]
struct Samples {
    one: Vec<Measured>,
    many: Vec<Measured>,
    cpu: Vec<f64>,
}

/// Measures every router at every size, `rounds` times; each round starts with another router.
pub fn measure(
    routers: &[Router],
    sizes: &[usize],
    rounds: usize,
    time: Duration,
) -> Result<Vec<Cost>> {
    let memory = || routers.iter().map(|r| r.pid().map(resident).transpose());
    let before: Vec<_> = memory().collect::<Result<_>>()?;
    let mut samples = vec![vec![Samples::default(); sizes.len()]; routers.len()];
    for round in 0..rounds {
        eprintln!("cost, round {} of {rounds}", round + 1);
        for (case, size) in sizes.iter().enumerate() {
            let requests = Arc::new(load::requests(*size));
            for turn in 0..routers.len() {
                let who = (turn + round) % routers.len();
                sample(&routers[who], &mut samples[who][case], time, &requests)?;
            }
        }
    }
    let after: Vec<_> = memory().collect::<Result<_>>()?;
    let all = routers
        .iter()
        .zip(samples)
        .zip(before.into_iter().zip(after));
    let cost = |((router, samples), (before, after)): ((&Router, Vec<Samples>), _)| Cost {
        name: router.name.clone(),
        cache_aware: router.cache_aware,
        cases: samples.iter().map(Samples::case).collect(),
        resident: Option::zip(before, after),
    };
    Ok(all.map(cost).collect())
}

fn sample(
    router: &Router,
    samples: &mut Samples,
    time: Duration,
    requests: &Arc<Vec<Vec<u8>>>,
) -> Result<()> {
    samples
        .one
        .push(load::run(router.address, 1, time, requests)?);
    let cpu = || router.pid().map(cpu_time).transpose();
    let before = cpu()?;
    let many = load::run(router.address, MANY, time, requests)?;
    if let (Some(before), Some(after)) = (before, cpu()?) {
        let used = after.saturating_sub(before).as_secs_f64() * 1e6;
        samples.cpu.push(used / many.latencies.len().max(1) as f64);
    }
    samples.many.push(many);
    Ok(())
}

impl Samples {
    fn case(&self) -> Case {
        Case {
            one: Figures::medians(&self.one),
            many: Figures::medians(&self.many),
            cpu_us: (!self.cpu.is_empty()).then(|| median(self.cpu.iter().copied())),
        }
    }
}
