//! One Envoy in front of instant pods, and what was measured through it.

use crate::load::{self, Measured};
use crate::median;
use crate::pods::Pods;
use crate::process::cpu_time;
use anyhow::Result;
use e2e::bootstrap::{Bootstrap, Shipped};
use e2e::envoy::{Envoy, Options};
use std::sync::Arc;
use std::time::Duration;

/// Sockets of the measurements of throughput.
pub const CONNECTIONS: usize = 16;

/// Requests ready to be sent, in turn.
pub type Requests = Arc<Vec<Vec<u8>>>;

/// One Envoy and what was measured through it, by case.
pub struct Subject {
    envoy: Envoy,
    single: Vec<Vec<Measured>>,
    many: Vec<Vec<(Measured, Duration)>>,
}

impl Subject {
    /// A shipped bootstrap in front of `pods`, changed.
    pub async fn start(
        shipped: Shipped,
        pods: &Pods,
        workers: u32,
        cases: usize,
        change: impl FnOnce(Bootstrap) -> Bootstrap,
    ) -> Self {
        let options = Options::new(workers);
        let ports = [pods.ports[0], pods.ports[1], pods.ports[2]];
        let bootstrap = change(Bootstrap::of(shipped).with_ports(&options, ports));
        Self {
            envoy: Envoy::start(&bootstrap, options).await,
            single: vec![Vec::new(); cases],
            many: vec![Vec::new(); cases],
        }
    }

    /// Measures a case once more: over one connection, then over many.
    pub fn measure(&mut self, case: usize, time: Duration, requests: &Requests) -> Result<()> {
        let to = self.envoy.address();
        self.single[case].push(load::run(to, 1, time, requests)?);
        let before = cpu_time(self.envoy.pid())?;
        let many = load::run(to, CONNECTIONS, time, requests)?;
        let cpu = cpu_time(self.envoy.pid())?.saturating_sub(before);
        let each = cpu / u32::try_from(many.latencies.len().max(1))?;
        self.many[case].push((many, each));
        Ok(())
    }

    /// Medians over the rounds: p50 and p99 in ms at one connection, requests/s at many, CPU in µs.
    pub fn medians(&self, case: usize) -> [f64; 4] {
        let single = |q| median(self.single[case].iter().map(|m| m.quantile_ms(q)));
        let many = &self.many[case];
        [
            single(0.5),
            single(0.99),
            median(many.iter().map(|(m, _)| m.per_second())),
            median(many.iter().map(|(_, cpu)| cpu.as_secs_f64() * 1e6)),
        ]
    }
}

/// Requests of each size.
pub fn requests(sizes: &[usize]) -> Vec<Requests> {
    let of = |size: &usize| Arc::new(load::requests(*size));
    sizes.iter().map(of).collect()
}
