//! The calls to Envoy's admin listener and to the pods, and their answers.
//!
//! Owns this VM's [`Keeper`] of one configuration. Invariant: of the configurations of a pool in one
//! VM only one asks: the newest of those that also ask the pods, if any does. Cost: see the keeper.

use super::abi::{self, Buffer, Headers, Uncalled};
use super::stream::Instance;
use crate::config::{Config, DestinationMode};
use crate::metrics::{Meter, Metric};
use crate::pods::keeper::{Answer, Call, Keeper, Question};
use crate::pods::schedule::TIMEOUT_MS;
use crate::pods::{admin, scrape};
use core::cell::{Cell, RefCell};

thread_local! {
    /// The askers of this VM: pool, whether it asks the pods too, number.
    static ASKERS: RefCell<Vec<(String, (bool, u64))>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub struct Asker {
    pool: String,
    rank: (bool, u64),
    keeper: RefCell<Keeper>,
    warned: Cell<bool>,
}

impl Asker {
    /// One for a configuration that has something to ask. `owner`: this VM's random number;
    /// `filter`: Envoy is 1.38 or later.
    pub fn new(config: &Config, owner: u64, filter: bool) -> Option<Self> {
        if config.discovery.is_none() && config.metrics_scrape.is_none() {
            return None;
        }
        let unknown = config.destination.mode == DestinationMode::OverrideHost
            && config.discovery.is_none()
            && config.scope.clusters.is_empty();
        if unknown
            && config
                .metrics_scrape
                .as_ref()
                .is_some_and(|s| s.cluster.is_none())
        {
            abi::log(3, "metrics_scrape: no pod is read without `cluster`, the one that takes a host's address from the destination header");
        }
        let rank = ASKERS.with(|askers| {
            let mut askers = askers.try_borrow_mut().ok()?;
            let newest = askers.iter().map(|asker| asker.1 .1).max().unwrap_or(0);
            let rank = (config.metrics_scrape.is_some(), newest.wrapping_add(1));
            askers.push((config.pool.clone(), rank));
            Some(rank)
        })?;
        Some(Self {
            pool: config.pool.clone(),
            rank,
            keeper: RefCell::new(Keeper::new(&config.pool, owner, filter)),
            warned: Cell::new(false),
        })
    }

    fn is_newest(&self) -> bool {
        ASKERS.with(|askers| {
            askers.try_borrow().is_ok_and(|askers| {
                let own = askers.iter().filter(|asker| asker.0 == self.pool);
                own.map(|asker| asker.1).max() == Some(self.rank)
            })
        })
    }

    /// Renews the lease, and asks what is due.
    pub fn tick(&self, instance: &Instance) {
        let (config, now_ms) = (instance.router.config(), abi::monotonic_ms());
        let held = self.is_newest() && {
            let keeper = self.keeper.try_borrow_mut();
            keeper.is_ok_and(|mut keeper| keeper.hold(instance.env().store, config, now_ms))
        };
        if held {
            self.ask(instance);
        }
    }

    /// An answer came, or the news that there is none: without headers.
    pub fn answered(&self, instance: &Instance, token: u32, headers: usize, size: usize) {
        let question = self.keeper.try_borrow_mut().ok();
        let question = question.and_then(|mut k| k.question(token, abi::monotonic_ms()));
        let Some(question) = question.filter(|_| self.is_newest()) else {
            return;
        };
        let most = match question {
            Question::Pods => admin::MAX_BYTES,
            Question::Metrics(_) | Question::Models(_) => scrape::MAX_BYTES,
        };
        let mut body = Vec::new();
        let answer = if headers == 0 {
            Answer::None
        } else if size > most {
            Answer::TooLong
        } else {
            if size > 0 {
                body = abi::buffer(Buffer::CallAnswer, size).unwrap_or_default();
            }
            let status = abi::header(Headers::CallAnswer, ":status");
            let status = status.and_then(|s| core::str::from_utf8(&s).ok()?.parse().ok());
            Answer::Some(status.unwrap_or(0), &body)
        };
        self.take(instance, question, answer);
        self.ask(instance);
    }

    fn ask(&self, instance: &Instance) {
        let config = instance.router.config();
        let calls = match self.keeper.try_borrow_mut() {
            Ok(mut keeper) => keeper.calls(config, abi::monotonic_ms()),
            Err(_) => return,
        };
        for call in calls {
            let (first, second) = &call.clusters;
            let token = match (send(&call, first), second) {
                (Err(Uncalled::NoCluster), Some(second)) => send(&call, second),
                (token, _) => token,
            };
            match token {
                Ok(token) => {
                    if let Ok(mut keeper) = self.keeper.try_borrow_mut() {
                        keeper.called(call.question, token);
                    }
                }
                // It failed at once: the cluster has no host.
                Err(Uncalled::Failed) => self.take(instance, call.question, Answer::None),
                Err(Uncalled::NoCluster) => {
                    if call.question != Question::Pods && !self.warned.replace(true) {
                        let cluster = second.as_ref().unwrap_or(first);
                        abi::log(3, &format!("metrics_scrape: no cluster {cluster} to call"));
                    }
                    self.take(instance, call.question, Answer::NoCluster);
                }
            }
        }
    }

    fn take(&self, instance: &Instance, question: Question, answer: Answer<'_>) {
        let (router, env) = (&instance.router, instance.env());
        let Ok(mut keeper) = self.keeper.try_borrow_mut() else {
            return;
        };
        let own = |pod: &_| router.running_on(&env, pod);
        let news = keeper.answer(router.config(), question, answer, env.clock, &own);
        router.learn(&env, &keeper, &news);
        if news.failed_poll {
            instance.meter.count(Metric::FailedPolls, 1);
        }
        if let Some(line) = &news.line {
            abi::log(if news.failed_poll { 3 } else { 2 }, line);
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        ASKERS.with(|askers| {
            if let Ok(mut askers) = askers.try_borrow_mut() {
                askers.retain(|asker| asker.1 != self.rank);
            }
        });
    }
}

fn send(call: &Call, cluster: &str) -> Result<u32, Uncalled> {
    let mut headers = vec![
        (":method", "GET"),
        (":path", call.path.as_str()),
        (":authority", call.authority.as_str()),
    ];
    if let Some((name, value)) = &call.host {
        headers.push((name, value));
    }
    abi::call(cluster, &headers, TIMEOUT_MS)
}
