//! The filter's own router over tables in memory: the code that runs inside Envoy, driven by
//! simulated events in place of Envoy's.
//!
//! Owns one Envoy with one worker: shared data, router, load board, and the requests under way. A
//! prefix block is a chunk; its hash stands for the prefix, as the real ones do.

use super::scraper::Scraper;
use super::{Gateway, Setting};
use crate::pod::Pod;
use crate::workload::Request;
use crate::Micros;
use prefix_router::chunk::{ChunkHash, HOME_BYTES};
use prefix_router::config::{Config, Policy};
use prefix_router::metrics::Silent;
use prefix_router::pods::load::{LoadBoard, Ticket};
use prefix_router::pods::{Member, Members};
use prefix_router::prompt::Prompt;
use prefix_router::router::{Credit, Env, Question, Router};
use prefix_router::store::MemoryStore;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Bytes of a prompt that make a token, as the filter reckons.
const BYTES_PER_TOKEN: usize = 4;

struct Open {
    members: Members,
    pod: usize,
    ticket: Option<Ticket>,
    credit: Option<Credit>,
    chains: Vec<Vec<ChunkHash>>,
}

/// See the module.
pub struct Filter {
    setting: Setting,
    policy: Policy,
    store: MemoryStore,
    board: Rc<LoadBoard>,
    router: Router,
    scraper: Scraper,
    /// Index in the pool -> pod of the simulation.
    pods: Vec<usize>,
    open: FxHashMap<usize, Open>,
}

impl Filter {
    /// A gateway that has just started.
    pub fn new(setting: Setting, policy: Policy) -> Self {
        let board = Rc::new(LoadBoard::new("default", setting.seed | 1));
        let (router, pods) = router(&setting, policy, &board);
        Self {
            policy,
            store: MemoryStore::default(),
            board,
            router,
            scraper: Scraper::new(setting.seed | 1),
            pods,
            open: FxHashMap::default(),
            setting,
        }
    }

    fn with<T>(&mut self, now: Micros, act: impl FnOnce(&mut Self, &Env<'_>) -> T) -> T {
        let store = std::mem::take(&mut self.store);
        // The monotonic clock of a machine that has been up for a while.
        let clock = || 1_000_000 + now / 1000;
        let env = Env::new(&store, &Silent, &clock);
        let result = act(self, &env);
        self.store = store;
        result
    }
}

pub(super) fn name(pod: usize) -> String {
    format!("vllm-{pod}")
}

/// The router of the pods that are members now, and which pods they are.
fn router(setting: &Setting, policy: Policy, board: &Rc<LoadBoard>) -> (Router, Vec<usize>) {
    let members = setting.members.iter().enumerate();
    let pods: Vec<usize> = members.filter(|(_, m)| **m).map(|(pod, _)| pod).collect();
    let names: Vec<String> = pods
        .iter()
        .map(|pod| format!(r#"{{"name": "{}"}}"#, name(*pod)))
        .collect();
    let text = format!(
        r#"{{"pods": [{}], "metrics_scrape": {{}}, "chunk_bytes": {}, "capacity_chunks": {}, "match_bytes": 16777216, "hold_bytes": 16777216}}"#,
        names.join(","),
        setting.block_tokens as usize * BYTES_PER_TOKEN,
        setting.capacity,
    );
    match Config::parse(text.as_bytes()) {
        Ok(config) => {
            let config = Config { policy, ..config };
            (Router::new(config, board.clone(), true), pods)
        }
        Err(error) => panic!("{error:?}: {text}"),
    }
}

/// SplitMix64: ids in a row become hashes that have nothing to do with each other.
fn hash(id: u64) -> u64 {
    let mut z = id.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What names the head of a prompt: its first 8 KiB, or all of it.
pub(super) fn home(id: usize, request: &Request, block_tokens: u32) -> u64 {
    let blocks = HOME_BYTES / (block_tokens as usize * BYTES_PER_TOKEN);
    match request.chain.get(blocks.saturating_sub(1)) {
        Some(block) => hash(u64::from(*block)),
        // What is shorter ends in text of its own.
        None => hash(!(id as u64)),
    }
}

impl Gateway for Filter {
    fn route(&mut self, now: Micros, id: usize, request: &Request, _: &[Pod]) -> usize {
        let chunks = request.chain.iter().map(|id| ChunkHash(hash((*id).into())));
        let prompt = Prompt {
            chunks: chunks.collect(),
            identity: 0,
            home: home(id, request, self.setting.block_tokens),
            bytes: request.tokens as usize * BYTES_PER_TOKEN,
        };
        self.with(now, |this, env| {
            let (members, prompts) = (this.router.members(env), [prompt]);
            let question = Question {
                prompts: &prompts,
                ..Question::default()
            };
            let choice = this.router.choose(env, &members, question);
            let Some((choice, pod)) = choice
                .and_then(|c| Some((*c.ranking.pods.first()?, c)))
                .map(|(pod, choice)| (choice, pod))
            else {
                panic!("a pool without pods");
            };
            let tokens = this.router.uncached(choice.bytes, choice.matched[pod]);
            let [prompt] = prompts;
            let chains: Vec<_> = [prompt.chunks]
                .into_iter()
                .filter(|c| !c.is_empty())
                .collect();
            let open = Open {
                credit: this
                    .router
                    .credit(env, &members, pod, &chains, choice.queries),
                ticket: this.router.begin(env, &members[pod], tokens),
                members,
                pod,
                chains,
            };
            this.open.insert(id, open);
            this.pods[pod]
        })
    }

    fn first_byte(&mut self, now: Micros, id: usize) {
        self.with(now, |this, env| {
            if let Some(open) = this.open.get_mut(&id) {
                this.router.reached(env, &open.members[open.pod]);
                if let Some(ticket) = &mut open.ticket {
                    this.router.first_byte(env, ticket, true);
                }
            }
        });
    }

    fn end(&mut self, now: Micros, id: usize) {
        self.with(now, |this, env| {
            let ticket = this.open.remove(&id).and_then(|open| open.ticket);
            if let Some(ticket) = ticket {
                this.router.end(env, ticket);
            }
        });
    }

    fn failed(&mut self, now: Micros, id: usize) {
        self.with(now, |this, env| {
            let Some(open) = this.open.remove(&id) else {
                return;
            };
            let member: &Member = &open.members[open.pod];
            this.router.unreachable(env, member);
            if let Some(credit) = open.credit {
                this.router.take_back(env, credit, &open.chains);
            }
            if let Some(ticket) = open.ticket {
                this.router.end(env, ticket);
            }
        });
    }

    fn joined(&mut self, _: Micros, pod: usize) {
        self.setting.members[pod] = true;
        // A new configuration over the same shared data, as Envoy would start it.
        (self.router, self.pods) = router(&self.setting, self.policy, &self.board);
        self.scraper = Scraper::new(self.setting.seed | 1);
    }

    fn tick(&mut self, now: Micros, pods: &[Pod]) {
        self.with(now, |this, env| {
            this.router.tick(env);
            this.scraper.tick(&this.router, env, &this.pods, pods);
        });
    }

    fn learned_rate(&mut self, now: Micros) -> Option<f64> {
        self.with(now, |this, env| {
            let members = this.router.members(env);
            Some(this.router.loads(env, &members).1)
        })
    }
}
