//! The published rules, each from its own description, in blocks of the simulation.
//!
//! Owns the choice as a pure function of a [`View`]. Weights and thresholds are the published
//! defaults; where a default never acts on pools of this size, a lower one stands beside it.
//! Cost: a pass over the pods.

use crate::pod::Pod;
use crate::workload::Request;
use rand::rngs::SmallRng;
use rand::Rng;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// A published rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Any pod.
    Random,
    /// Each in its turn.
    RoundRobin,
    /// The fewest requests in flight; any of equals.
    LeastRequest,
    /// KubeAI: consistent hashing of the first user message, no pod above 125 % of the mean.
    BoundedHash,
    /// SGLang, smg and vllm-router `cache_aware`, with the difference of requests in flight from
    /// which it balances (published: 64; 32 in older versions).
    CacheAware {
        /// That difference.
        gate: u32,
    },
    /// AIBrix prefix-cache.
    Aibrix,
    /// llm-d: queue 2, usage of the cache 2, prefix 3.
    LlmD,
    /// Higress ai-endpoint-picker.
    Higress,
    /// Preble's E2: exploit what is cached, else explore the least load.
    Preble,
    /// NVIDIA Dynamo's KV router at temperature 0.
    Dynamo,
}

/// All of them.
pub const RULES: [Rule; 11] = [
    Rule::Random,
    Rule::RoundRobin,
    Rule::LeastRequest,
    Rule::BoundedHash,
    Rule::CacheAware { gate: 64 },
    Rule::CacheAware { gate: 8 },
    Rule::Aibrix,
    Rule::LlmD,
    Rule::Higress,
    Rule::Preble,
    Rule::Dynamo,
];

/// What a rule may look at. All slices are by pod.
pub struct View<'a> {
    /// Pods that may be chosen.
    pub able: &'a [usize],
    /// The request.
    pub request: &'a Request,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Leading blocks that the gateway's table has of the request.
    pub matched: &'a [usize],
    /// This gateway's requests in flight.
    pub running: &'a [u32],
    /// Uncached tokens of those without a first byte.
    pub prefill: &'a [f64],
    /// Prompt tokens of all of them.
    pub held: &'a [f64],
    /// Uncached tokens of the last three minutes.
    pub recent: &'a [f64],
    /// The pods' own metrics.
    pub pods: &'a [Pod],
    /// Number of this choice.
    pub turn: usize,
}

impl Rule {
    /// In tables and plots.
    pub fn name(self) -> String {
        match self {
            Rule::Random => "random".into(),
            Rule::RoundRobin => "round robin".into(),
            Rule::LeastRequest => "least request".into(),
            Rule::BoundedHash => "bounded hashing".into(),
            Rule::CacheAware { gate } => format!("cache_aware ({gate})"),
            Rule::Aibrix => "AIBrix".into(),
            Rule::LlmD => "llm-d".into(),
            Rule::Higress => "Higress picker".into(),
            Rule::Preble => "Preble".into(),
            Rule::Dynamo => "Dynamo".into(),
        }
    }

    /// Whether it remembers who was sent what.
    pub fn has_table(self) -> bool {
        !matches!(
            self,
            Rule::Random | Rule::RoundRobin | Rule::LeastRequest | Rule::BoundedHash
        )
    }

    /// The pod.
    pub fn choose(self, view: &View<'_>, rng: &mut SmallRng) -> usize {
        match self {
            Rule::Random => view.able[rng.random_range(0..view.able.len())],
            Rule::RoundRobin => view.able[view.turn % view.able.len()],
            Rule::LeastRequest => view.least(rng, |pod| view.running[pod].into()),
            Rule::BoundedHash => view.bounded_hash(),
            Rule::CacheAware { gate } => view.cache_aware(gate, rng),
            Rule::Aibrix => view.aibrix(rng),
            Rule::LlmD => view.llm_d(rng),
            Rule::Higress => view.higress(rng),
            Rule::Preble => view.preble(rng),
            Rule::Dynamo => view.dynamo(rng),
        }
    }
}

impl View<'_> {
    /// The least by `key`; any of equals.
    fn least(&self, rng: &mut SmallRng, key: impl Fn(usize) -> f64) -> usize {
        let (mut best, mut least, mut equals) = (self.able[0], f64::INFINITY, 0);
        for &pod in self.able {
            let key = key(pod);
            if key < least {
                (best, least, equals) = (pod, key, 1);
            } else if key == least {
                equals += 1;
                if rng.random_range(0..equals) == 0 {
                    best = pod;
                }
            }
        }
        best
    }

    /// Least and most of a metric.
    fn range(&self, of: impl Fn(usize) -> f64) -> (f64, f64) {
        let values = self.able.iter().map(|pod| of(*pod));
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        })
    }

    fn load(&self, pod: usize) -> f64 {
        self.running[pod].into()
    }

    fn ratio(&self, pod: usize) -> f64 {
        self.matched[pod] as f64 * f64::from(self.block_tokens) / f64::from(self.request.tokens)
    }

    fn uncached(&self, pod: usize) -> f64 {
        f64::from(self.request.tokens) - self.matched[pod] as f64 * f64::from(self.block_tokens)
    }

    /// 1 for the least of a metric, 0 for the most.
    fn lightness(&self, pod: usize, of: impl Fn(usize) -> f64 + Copy) -> f64 {
        let (low, high) = self.range(of);
        match high > low {
            true => (high - of(pod)) / (high - low),
            false => 1.0,
        }
    }

    /// Pods in the order of their distance on the ring from the key: the first that has room.
    fn bounded_hash(&self) -> usize {
        let key = self.request.chain.get(self.request.user);
        let key = key.map_or(u64::from(self.request.tokens), |id| {
            u64::from(*id) + (1 << 32)
        });
        let mean = (self.able.iter().map(|p| self.running[*p]).sum::<u32>() + 1) as f64
            / self.able.len() as f64;
        let room = |pod: &&usize| f64::from(self.running[**pod]) < (1.25 * mean).ceil();
        let far = |pod: &&usize| {
            let mut hasher = FxHasher::default();
            (key, **pod as u64).hash(&mut hasher);
            hasher.finish().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
        };
        let with_room = self.able.iter().filter(room);
        with_room.min_by_key(far).copied().unwrap_or(self.able[0])
    }

    fn cache_aware(&self, gate: u32, rng: &mut SmallRng) -> usize {
        let (low, high) = self.range(|pod| self.load(pod));
        if high - low > f64::from(gate) && high > 1.1 * low {
            return self.least(rng, |pod| self.load(pod));
        }
        let best = self.least(rng, |pod| -self.ratio(pod));
        match self.ratio(best) > 0.5 {
            true => best,
            false => self.least(rng, |pod| self.load(pod)),
        }
    }

    fn aibrix(&self, rng: &mut SmallRng) -> usize {
        let (low, high) = self.range(|pod| self.load(pod));
        if high - low > 8.0 {
            return self.least(rng, |pod| self.load(pod));
        }
        let pods = self.able.len() as f64;
        let mean = self.able.iter().map(|p| self.load(*p)).sum::<f64>() / pods;
        let square = |pod: &usize| (self.load(*pod) - mean).powi(2);
        let deviation = (self.able.iter().map(square).sum::<f64>() / pods).sqrt();
        let best = self.least(rng, |pod| match self.load(pod) <= mean + deviation {
            // The longest match; of equal ones the fewest requests.
            true => -(self.matched[pod] as f64) * 1e6 + self.load(pod),
            false => f64::INFINITY,
        });
        match self.matched[best] {
            0 => self.least(rng, |pod| self.load(pod)),
            _ => best,
        }
    }

    fn llm_d(&self, rng: &mut SmallRng) -> usize {
        let queue = |pod: usize| self.pods[pod].waiting() as f64;
        self.least(rng, |pod| {
            let usage = 1.0 - self.pods[pod].usage();
            -(2.0 * self.lightness(pod, queue) + 2.0 * usage + 3.0 * self.ratio(pod))
        })
    }

    fn higress(&self, rng: &mut SmallRng) -> usize {
        let queue = |pod: usize| self.pods[pod].waiting() as f64;
        let block = f64::from(self.block_tokens);
        self.least(rng, |pod| {
            // Blocks of 1024 tokens, at most 32 of them.
            let tokens = (self.matched[pod] as f64 * block / 1024.0).floor() * 1024.0;
            let tokens = tokens.min(32.0 * 1024.0);
            let whole = f64::from(self.request.tokens).min(32.0 * 1024.0);
            let prefix = 0.75 * tokens / whole + 0.25 * (tokens / 8192.0).min(1.0).powi(2);
            let usage = 1.0 - self.pods[pod].usage();
            let light = self.lightness(pod, |pod| self.load(pod));
            -(3.0 * prefix + 2.0 * self.lightness(pod, queue) + 2.0 * usage + light)
        })
    }

    fn preble(&self, rng: &mut SmallRng) -> usize {
        let (low, high) = self.range(|pod| self.recent[pod]);
        let best = self.least(rng, |pod| {
            -(self.matched[pod] as f64) * 1e9 + self.recent[pod]
        });
        if self.ratio(best) > 0.5 {
            // Exploit; but relieve the heaviest pod once it has twice the load of the lightest.
            let relieve = self.recent[best] >= high && high > 2.0 * low;
            return match relieve {
                true => self.least(rng, |pod| self.recent[pod]),
                false => best,
            };
        }
        // What it has to evict is about what it has to compute.
        self.least(rng, |pod| {
            let evicted = self.uncached(pod) * self.pods[pod].usage();
            self.recent[pod] + self.uncached(pod) + evicted
        })
    }

    fn dynamo(&self, rng: &mut SmallRng) -> usize {
        let block = f64::from(self.block_tokens);
        self.least(rng, |pod| {
            let prefill = (self.prefill[pod] + self.uncached(pod)) / block;
            let decode = (self.held[pod] + f64::from(self.request.tokens)) / block;
            prefill + decode.floor()
        })
    }
}
