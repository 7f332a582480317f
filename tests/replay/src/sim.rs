//! The event loop.
//!
//! Owns time and what came of every request. Events of the same microsecond happen in the order in
//! which they were scheduled. A request that its pod refuses or loses before its first token is
//! routed again at once, as Envoy's retry does; one that is cut later counts as answered.
//! Invariant: every request gets exactly one first token ([`Outcome`] checks it by its type).
//! Cost: a few heap operations and one route per request.

use crate::gateway::Gateway;
use crate::pod::{Pod, PodSettings};
use crate::workload::{Change, Workload};
use crate::{Micros, SECOND};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What came of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Microseconds from its arrival to its first token.
    pub first_token: Micros,
    /// Tokens of its prompt that the pod had.
    pub cached: u32,
    /// Who served it.
    pub pod: usize,
}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// In the order of arrival.
    pub outcomes: Vec<Outcome>,
    /// Share of the run's time that each pod spent on prefill.
    pub busy: Vec<f64>,
    /// Requests on each pod, once a second.
    pub series: Vec<Vec<u32>>,
    /// The rate that the first gateway learned, if it learns one.
    pub learned_rate: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Down(usize),
    Up(usize),
    Join(usize),
    Tick,
    Arrival(usize),
    FirstToken { pod: usize, life: u32, id: usize },
    End { pod: usize, life: u32, id: usize },
}

struct Sim<'a> {
    workload: &'a Workload,
    pods: Vec<Pod>,
    gateways: &'a mut [Box<dyn Gateway>],
    outcomes: Vec<Option<Outcome>>,
    open: usize,
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    scheduled: u64,
    hits: Vec<u32>,
    series: Vec<Vec<u32>>,
}

/// Runs a workload through gateways that take turns; `None` of an impossible one: a request that no
/// pod ever takes.
pub fn run(
    workload: &Workload,
    settings: PodSettings,
    gateways: &mut [Box<dyn Gateway>],
) -> Option<Run> {
    let pods = workload.speeds.iter();
    let pods = pods.map(|speed| Pod::new(settings, *speed)).collect();
    let count = workload.requests.len();
    let mut sim = Sim {
        workload,
        pods,
        gateways,
        outcomes: vec![None; count],
        open: count,
        events: BinaryHeap::new(),
        scheduled: 0,
        hits: vec![0; count],
        series: Vec::new(),
    };
    let duration = workload.duration() as f64;
    for change in &workload.changes {
        match *change {
            Change::Restart { pod, from, to } => {
                sim.schedule((duration * from) as Micros, Event::Down(pod));
                sim.schedule((duration * to) as Micros, Event::Up(pod));
            }
            Change::Join { pod, at } => {
                sim.pods[pod].up = false;
                sim.schedule((duration * at) as Micros, Event::Join(pod));
            }
        }
    }
    sim.schedule(0, Event::Tick);
    if count > 0 {
        sim.schedule(workload.requests[0].at, Event::Arrival(0));
    }
    let mut now = 0;
    while sim.open > 0 {
        let Reverse((at, _, event)) = sim.events.pop()?;
        now = at;
        sim.handle(now, event)?;
    }
    let busy = |pod: &Pod| pod.busy as f64 / now.max(1) as f64;
    Some(Run {
        busy: sim.pods.iter().map(busy).collect(),
        outcomes: sim.outcomes.into_iter().collect::<Option<_>>()?,
        series: sim.series,
        learned_rate: sim.gateways.first_mut().and_then(|g| g.learned_rate(now)),
    })
}

impl Sim<'_> {
    fn schedule(&mut self, at: Micros, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn gateway(&mut self, id: usize) -> &mut dyn Gateway {
        let gateways = self.gateways.len();
        self.gateways[id % gateways].as_mut()
    }

    fn handle(&mut self, now: Micros, event: Event) -> Option<()> {
        match event {
            Event::Arrival(id) => {
                if let Some(next) = self.workload.requests.get(id + 1) {
                    self.schedule(next.at, Event::Arrival(id + 1));
                }
                self.route(now, id)?;
            }
            Event::FirstToken { pod, life, id } if life == self.pods[pod].life => {
                let requests = &self.workload.requests;
                let last = self.pods[pod].first_token(now, requests);
                self.outcomes[id] = Some(Outcome {
                    first_token: now - requests[id].at,
                    cached: self.hits[id] * self.workload.block_tokens,
                    pod,
                });
                self.open -= 1;
                self.gateway(id).first_byte(now, id);
                self.schedule(last, Event::End { pod, life, id });
                self.start(now, pod);
            }
            Event::End { pod, life, id } if life == self.pods[pod].life => {
                self.pods[pod].end(id, &self.workload.requests);
                self.gateway(id).end(now, id);
                self.start(now, pod);
            }
            // Of a pod that has died since.
            Event::FirstToken { .. } | Event::End { .. } => {}
            Event::Down(pod) => {
                let (lost, cut) = self.pods[pod].die(now);
                self.gateways.iter_mut().for_each(|g| g.died(pod));
                for id in cut {
                    self.gateway(id).end(now, id);
                }
                for id in lost {
                    self.gateway(id).failed(now, id);
                    self.route(now, id)?;
                }
            }
            Event::Up(pod) => {
                self.pods[pod].up = true;
                self.gateways.iter_mut().for_each(|g| g.back(pod));
            }
            Event::Join(pod) => {
                self.pods[pod].up = true;
                self.gateways.iter_mut().for_each(|g| g.joined(now, pod));
            }
            Event::Tick => {
                let requests = self.pods.iter().map(|pod| pod.requests() as u32);
                self.series.push(requests.collect());
                let pods = &self.pods;
                self.gateways.iter_mut().for_each(|g| g.tick(now, pods));
                self.schedule(now + SECOND, Event::Tick);
            }
        }
        Some(())
    }

    /// Asks the gateway until it names a pod that is up.
    fn route(&mut self, now: Micros, id: usize) -> Option<()> {
        let gateways = self.gateways.len();
        for _ in 0..=self.pods.len() {
            let request = &self.workload.requests[id];
            let gateway = &mut self.gateways[id % gateways];
            let pod = gateway.route(now, id, request, &self.pods);
            if self.pods[pod].up {
                self.pods[pod].push(id);
                self.start(now, pod);
                return Some(());
            }
            gateway.failed(now, id);
        }
        None
    }

    fn start(&mut self, now: Micros, pod: usize) {
        if let Some(started) = self.pods[pod].start(now, &self.workload.requests) {
            self.hits[started.id] = started.hits as u32;
            let (life, id) = (self.pods[pod].life, started.id);
            self.schedule(started.first_token, Event::FirstToken { pod, life, id });
        }
    }
}
