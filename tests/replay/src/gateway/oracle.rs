//! The filter's rule for one who knows everything: what the pods hold, what waits for them to be
//! computed, how much of it is done, and how fast they are. What tables and estimates lose is lost
//! against this.

use super::filter::home;
use super::{Gateway, Setting};
use crate::cache::BlockId;
use crate::pod::Pod;
use crate::workload::Request;
use crate::Micros;
use prefix_router::config::Policy;
use prefix_router::policy::{self, Candidate, Standing};
use rustc_hash::FxHashMap;

struct Waiting {
    pod: usize,
    chain: Vec<BlockId>,
    tokens: f64,
    first_byte: bool,
}

/// See the module. There is one for all gateways.
pub struct Oracle {
    setting: Setting,
    policy: Policy,
    names: Vec<String>,
    /// Blocks that each pod is going to hold, by the requests that will bring them.
    promised: Vec<FxHashMap<BlockId, u32>>,
    backlog: Vec<f64>,
    open: FxHashMap<usize, Waiting>,
}

impl Oracle {
    /// At the start of a run.
    pub fn new(setting: Setting, policy: Policy) -> Self {
        let pods = setting.members.len();
        Self {
            policy,
            names: (0..pods).map(|pod| format!("vllm-{pod}")).collect(),
            promised: vec![FxHashMap::default(); pods],
            backlog: vec![0.0; pods],
            open: FxHashMap::default(),
            setting,
        }
    }

    fn arrived(&mut self, id: usize) {
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.first_byte) else {
            return;
        };
        open.first_byte = true;
        self.backlog[open.pod] -= open.tokens;
        let promised = &mut self.promised[open.pod];
        for block in open.chain.drain(..) {
            if let Some(count) = promised.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    promised.remove(&block);
                }
            }
        }
    }
}

impl Gateway for Oracle {
    fn route(&mut self, now: Micros, id: usize, request: &Request, pods: &[Pod]) -> usize {
        let block = self.setting.block_tokens;
        let holds = |pod: usize, id: &BlockId| {
            pods[pod].cache().holds(*id) || self.promised[pod].contains_key(id)
        };
        let hits = |pod: usize| request.chain.iter().take_while(|id| holds(pod, id)).count();
        let uncached = |hits: usize| f64::from(request.tokens) - hits as f64 * f64::from(block);
        let able = (0..pods.len()).filter(|pod| self.setting.members[*pod] && pods[*pod].up);
        let candidates = able.map(|pod| Candidate {
            pod,
            name: &self.names[pod],
            standing: Standing::Fit,
            cold_share: 1.0,
            matched: hits(pod) as u32,
            uncached: uncached(hits(pod)),
            backlog: (self.backlog[pod] - pods[pod].progress(now)).max(0.0),
            running: pods[pod].requests() as u32,
        });
        let home = home(id, request, block);
        let ranking = policy::rank(&self.policy, candidates.collect(), self.setting.rate, home);
        let pod = ranking.and_then(|r| r.pods.first().copied()).unwrap_or(0);
        let tokens = uncached(hits(pod));
        self.backlog[pod] += tokens;
        for block in &request.chain {
            *self.promised[pod].entry(*block).or_default() += 1;
        }
        let open = Waiting {
            pod,
            chain: request.chain.clone(),
            tokens,
            first_byte: false,
        };
        self.open.insert(id, open);
        pod
    }

    fn first_byte(&mut self, _: Micros, id: usize) {
        self.arrived(id);
    }

    fn end(&mut self, _: Micros, id: usize) {
        self.open.remove(&id);
    }

    fn failed(&mut self, _: Micros, id: usize) {
        self.arrived(id);
        self.open.remove(&id);
    }

    fn joined(&mut self, _: Micros, pod: usize) {
        self.setting.members[pod] = true;
    }
}
