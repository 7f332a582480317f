//! The cells, and all their runs on all cores.
//!
//! Owns what is compared with what. A cell is a workload on so many pods at a utilisation, with a
//! cache size and a number of gateways; every chooser runs in it on the same requests, once per
//! seed. Utilisation counts the tokens that even a single infinite cache would not hold, so that
//! 1.1 is too much for anybody and 0.8 is too much for who hits little.

use crate::gateway::{Filter, Gateway, Oracle, Peer, Rule, Setting, RULES};
use crate::pod::PodSettings;
use crate::sim::{self, Run};
use crate::stats::Measures;
use crate::workload::{chats, mooncake, prompts, Request, Workload};
use crate::Micros;
use prefix_router::config::{Balanced, Policy};
use rayon::prelude::*;

/// Runs of each cell, seeds 0 and up.
pub const SEEDS: u64 = 5;
/// Tokens of prefill per second and pod. The filter starts from its default, 8000, and learns.
pub const RATE: f64 = 4000.0;
/// Requests that a pod runs at the same time.
pub const MAX_RUNNING: usize = 64;
/// Between two tokens of an answer.
pub const DECODE: Micros = 20_000;
/// Generated requests, per pod.
pub const REQUESTS_PER_POD: usize = 300;

/// Where requests come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The trace in the Mooncake schema.
    Mooncake,
    /// [`chats::chats`]
    Chats,
    /// [`prompts::system_prompt`]
    SystemPrompt,
    /// [`prompts::bursts`]
    Bursts,
    /// [`prompts::unique`]
    Unique,
    /// [`chats::restart`]
    Restart,
    /// [`chats::joining`]
    Joining,
    /// [`chats::uneven`]
    Uneven,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::Mooncake,
        Kind::Chats,
        Kind::SystemPrompt,
        Kind::Bursts,
        Kind::Unique,
        Kind::Restart,
        Kind::Joining,
        Kind::Uneven,
    ];

    /// In tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mooncake => "Mooncake conversations",
            Kind::Chats => "chats",
            Kind::SystemPrompt => "shared system prompt",
            Kind::Bursts => "cold bursts",
            Kind::Unique => "unique prompts in batches",
            Kind::Restart => "chats, a pod restarts",
            Kind::Joining => "chats, pods join",
            Kind::Uneven => "chats, uneven pods",
        }
    }

    fn block_tokens(self) -> u32 {
        match self {
            Kind::Mooncake => mooncake::BLOCK_TOKENS,
            _ => prompts::BLOCK_TOKENS,
        }
    }

    /// Tokens of a pod's cache, small and large: about the half and the double of what is in use.
    pub fn cache_tokens(self) -> [u32; 2] {
        match self {
            Kind::Mooncake => [262_144, 1_048_576],
            _ => [65_536, 262_144],
        }
    }

    fn workload(self, seed: u64, pods: usize, trace: &[Request]) -> Workload {
        let count = REQUESTS_PER_POD * pods;
        match self {
            Kind::Mooncake => mooncake::window(trace, seed, SEEDS as usize, pods),
            Kind::Chats => chats::chats(seed, pods, count),
            Kind::SystemPrompt => prompts::system_prompt(seed, pods, count),
            Kind::Bursts => prompts::bursts(seed, pods, count),
            Kind::Unique => prompts::unique(seed, pods, count),
            Kind::Restart => chats::restart(seed, pods, count),
            Kind::Joining => chats::joining(seed, pods, count),
            Kind::Uneven => chats::uneven(seed, pods, count),
        }
    }
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The traffic.
    pub kind: Kind,
    /// How many pods.
    pub pods: usize,
    /// Offered load; see the module.
    pub utilisation: f64,
    /// Tokens of each pod's cache.
    pub cache_tokens: u32,
    /// Gateways that share nothing and take turns.
    pub gateways: usize,
}

/// The whole grid; without a trace, less that.
pub fn cells(trace: bool) -> Vec<Cell> {
    let kinds = Kind::ALL.into_iter();
    let kinds = kinds.filter(|kind| trace || *kind != Kind::Mooncake);
    let mut cells = Vec::new();
    for kind in kinds {
        for gateways in [1, 2] {
            for pods in [4, 8, 16] {
                for utilisation in [0.5, 0.8, 1.1] {
                    for cache_tokens in kind.cache_tokens() {
                        // Two gateways only in the middle of the grid.
                        if gateways == 1 || (pods == 8 && cache_tokens == kind.cache_tokens()[1]) {
                            cells.push(Cell {
                                kind,
                                pods,
                                utilisation,
                                cache_tokens,
                                gateways,
                            });
                        }
                    }
                }
            }
        }
    }
    cells
}

/// Who chooses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Chooser {
    /// The filter.
    Filter(Policy),
    /// The filter's rule over what is really there.
    Oracle,
    /// A published rule.
    Peer(Rule),
}

impl Chooser {
    /// The filter as it ships.
    pub fn default_filter() -> Self {
        Chooser::Filter(Policy::Balanced(Balanced::default()))
    }

    /// The filter as it should be set where several gateways share nothing.
    pub fn agreeing_filter() -> Self {
        Chooser::Filter(Policy::Balanced(Balanced {
            home_discount: 0.5,
            ..Balanced::default()
        }))
    }

    /// Whether it is one of those that a cell's best is chosen from.
    pub fn competes(self) -> bool {
        self != Chooser::Oracle && self != Self::agreeing_filter()
    }

    /// The filter and its RFC mode, the oracle, and all peers.
    pub fn all() -> Vec<Self> {
        let ours = [
            Self::default_filter(),
            Self::agreeing_filter(),
            Chooser::Filter(Policy::LongestPrefix),
            Chooser::Oracle,
        ];
        ours.into_iter()
            .chain(RULES.into_iter().map(Chooser::Peer))
            .collect()
    }

    /// In tables and plots.
    pub fn name(self) -> String {
        match self {
            _ if self == Self::agreeing_filter() => "prefix-router, home_discount 0.5".into(),
            Chooser::Filter(Policy::Balanced(_)) => "prefix-router".into(),
            Chooser::Filter(Policy::LongestPrefix) => "RFC longest prefix".into(),
            Chooser::Oracle => "oracle".into(),
            Chooser::Peer(rule) => rule.name(),
        }
    }

    fn gateway(self, setting: Setting) -> Box<dyn Gateway> {
        match self {
            Chooser::Filter(policy) => Box::new(Filter::new(setting, policy)),
            Chooser::Oracle => {
                let policy = Policy::Balanced(Balanced::default());
                Box::new(Oracle::new(setting, policy))
            }
            Chooser::Peer(rule) => Box::new(Peer::new(setting, rule)),
        }
    }
}

/// What one chooser got in one run.
#[derive(Debug, Clone)]
pub struct Score {
    /// The cell.
    pub cell: Cell,
    /// The seed.
    pub seed: u64,
    /// Index of the chooser.
    pub chooser: usize,
    /// The numbers.
    pub measures: Measures,
}

impl Cell {
    /// The cell's requests of a seed.
    pub fn workload(&self, seed: u64, trace: &[Request]) -> Workload {
        let workload = self.kind.workload(seed, self.pods, trace);
        workload.paced(self.utilisation, RATE)
    }

    /// One run. `None` when a request was never served.
    pub fn run(&self, workload: &Workload, seed: u64, chooser: Chooser) -> Option<Run> {
        let block_tokens = self.kind.block_tokens();
        let blocks = (self.cache_tokens / block_tokens) as usize;
        let settings = PodSettings {
            rate: RATE,
            max_running: MAX_RUNNING,
            blocks,
            block_tokens,
            decode: DECODE,
        };
        let joins = |pod: usize| {
            let mut changes = workload.changes.iter();
            changes.any(|change| matches!(change, crate::workload::Change::Join { pod: p, .. } if *p == pod))
        };
        let setting = |gateway: u64| Setting {
            seed: seed * 64 + gateway,
            block_tokens,
            capacity: blocks,
            members: (0..self.pods).map(|pod| !joins(pod)).collect(),
            rate: RATE * workload.speeds.iter().sum::<f64>() / self.pods as f64,
        };
        let gateways = match chooser {
            Chooser::Oracle => 1,
            _ => self.gateways as u64,
        };
        let mut gateways: Vec<_> = (0..gateways).map(|g| chooser.gateway(setting(g))).collect();
        sim::run(workload, settings, &mut gateways)
    }
}

/// All runs of `cells` on all cores.
pub fn run(cells: &[Cell], choosers: &[Chooser], trace: &[Request]) -> Vec<Score> {
    let jobs: Vec<(Cell, u64)> = cells
        .iter()
        .flat_map(|cell| (0..SEEDS).map(|seed| (*cell, seed)))
        .collect();
    let scores = jobs.par_iter().map(|(cell, seed)| {
        let workload = cell.workload(*seed, trace);
        let ideal = workload.ideal_hits();
        let score = |(index, chooser): (usize, &Chooser)| {
            let run = cell.run(&workload, *seed, *chooser)?;
            Some(Score {
                cell: *cell,
                seed: *seed,
                chooser: index,
                measures: Measures::of(&run, &workload, &ideal),
            })
        };
        let scores = choosers.iter().enumerate().filter_map(score);
        scores.collect::<Vec<_>>()
    });
    scores.flatten().collect()
}
