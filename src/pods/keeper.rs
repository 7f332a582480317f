//! The one worker that keeps the registry: whom to ask now, and what an answer changes.
//!
//! Owns its copy of the [`Registry`] while it holds the lease, and the calls that are under way;
//! `list` reads what Envoy answers, `visit` what a pod does.
//! Invariant: whatever fails, the last good list stays, and shows its age; an answer that comes
//! when the lease is lost changes nothing. Cost: nothing on the path of a request; on the holder
//! one admin call an interval, and for each pod one call an interval, [`PARALLEL`] at a time.

mod list;
mod visit;

use super::admin::{self, ONLY};
use super::lease::Lease;
use super::registry::{Known, Registry};
use super::schedule::Schedule;
use super::scrape;
use crate::config::{Config, DestinationMode};
use crate::store::SharedStore;
use visit::reach;

/// Most calls to pods under way at once.
const PARALLEL: usize = 8;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Envoy, for the pods.
    Pods,
    /// A pod, for its metrics.
    Metrics(String),
    /// A pod, for its models.
    Models(String),
}

/// A call to make, a GET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What for.
    pub question: Question,
    /// The cluster to call, and the one to call if there is no such cluster.
    pub clusters: (String, Option<String>),
    /// `:authority`.
    pub authority: String,
    /// `:path`.
    pub path: String,
    /// The header that names a host of the cluster.
    pub host: Option<(String, String)>,
}

/// An answer, if there was one.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// There is no such cluster.
    NoCluster,
    /// The call failed.
    None,
    /// It was answered by something that is too long to read.
    TooLong,
    /// Status and body.
    Some(u16, &'a [u8]),
}

/// What the rest of the gateway has to do about an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The registry has changed: to be saved when all else is done.
    pub changed: bool,
    /// Pods came or went: their places in the tables have to follow.
    pub list_changed: bool,
    /// Pods that hold nothing any more.
    pub restarted: Vec<Known>,
    /// Pods of which it is now known that they serve.
    pub serving: Vec<Known>,
    /// Since when that is new: it tells nothing of a failure after this.
    pub seen_ms: u64,
    /// The poll of the admin listener failed.
    pub failed_poll: bool,
    /// For the log.
    pub line: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    lease: Lease,
    key: String,
    filter: bool,
    held_until: u64,
    registry: Registry,
    admin: Schedule,
    visits: Vec<Visit>,
    calls: Vec<(u32, Question)>,
    /// Pods that were away, and since when they are back.
    returning: Vec<(String, u64)>,
    trouble: &'static str,
    refused: u32,
}

/// When to ask one pod.
#[derive(Debug)]
struct Visit {
    pod: String,
    metrics: Schedule,
    models: Schedule,
}

impl Keeper {
    /// One for this VM, whose random number is `owner`. `filter`: see [`admin::path`].
    pub fn new(pool: &str, owner: u64, filter: bool) -> Self {
        Self {
            lease: Lease::new(pool, owner),
            key: Registry::key(pool),
            filter,
            held_until: 0,
            registry: Registry::default(),
            admin: Schedule::default(),
            visits: Vec::new(),
            calls: Vec::new(),
            returning: Vec::new(),
            trouble: "",
            refused: 0,
        }
    }

    /// What is known, while the lease is held.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Writes it for all workers.
    pub fn save(&self, store: &dyn SharedStore) {
        self.registry.save(store, &self.key);
    }

    /// Takes or renews the lease; false: another VM has it.
    pub fn hold(&mut self, store: &dyn SharedStore, config: &Config, now_ms: u64) -> bool {
        let held = now_ms < self.held_until;
        let until = self.lease.hold(store, now_ms);
        self.held_until = until.unwrap_or(0);
        if !held && until.is_some() {
            // What was asked under an earlier lease is void.
            self.calls.clear();
            self.visits.clear();
            self.admin = Schedule::default();
            self.registry = Registry::load(store, &self.key).unwrap_or_default();
            let finds = config.discovery.is_some();
            let discovered = self
                .registry
                .pods
                .iter()
                .filter(|pod| finds && pod.discovered);
            let discovered = discovered.cloned().collect();
            self.replace(config, discovered, now_ms);
        }
        until.is_some()
    }

    /// Who is to be asked now.
    pub fn calls(&mut self, config: &Config, now_ms: u64) -> Vec<Call> {
        let mut calls = Vec::new();
        if now_ms >= self.held_until {
            return calls;
        }
        if let Some(discovery) = &config.discovery {
            if self.admin.is_due(now_ms) {
                self.admin.asked(now_ms);
                calls.push(Call {
                    question: Question::Pods,
                    clusters: (discovery.admin_cluster.clone(), None),
                    authority: discovery.admin_cluster.clone(),
                    path: admin::path(&discovery.cluster, &discovery.admin_cluster, self.filter),
                    host: None,
                });
            }
        }
        let Some(scrape) = &config.metrics_scrape else {
            return calls;
        };
        let waits = |visit: &&Visit| visit.metrics.is_under_way() || visit.models.is_under_way();
        let mut room = PARALLEL.saturating_sub(self.visits.iter().filter(waits).count());
        for visit in &mut self.visits {
            let known = self.registry.pods.iter().find(|pod| pod.name == visit.pod);
            let Some((known, reach)) = known.and_then(|known| Some((known, reach(config, known)?)))
            else {
                continue;
            };
            let name = || visit.pod.clone();
            let questions = [
                (
                    &mut visit.metrics,
                    Question::Metrics(name()),
                    scrape.path.as_str(),
                ),
                (
                    &mut visit.models,
                    Question::Models(name()),
                    scrape::MODELS_PATH,
                ),
            ];
            for (schedule, question, path) in questions {
                if room == 0 || !schedule.is_due(now_ms) {
                    continue;
                }
                schedule.asked(now_ms);
                room = room.saturating_sub(1);
                calls.push(Call {
                    question,
                    clusters: reach.0.clone(),
                    authority: known.address.as_ref().unwrap_or(&known.name).clone(),
                    path: path.to_owned(),
                    host: reach.1.clone(),
                });
            }
        }
        calls
    }

    /// The call was made, and its answer will carry this token.
    pub fn called(&mut self, question: Question, token: u32) {
        self.calls.push((token, question));
    }

    /// What the answer of this token is about; nothing when it is of no interest any more.
    pub fn question(&mut self, token: u32, now_ms: u64) -> Option<Question> {
        let at = self.calls.iter().position(|call| call.0 == token)?;
        let (_, question) = self.calls.swap_remove(at);
        (now_ms < self.held_until).then_some(question)
    }

    /// An answer, or that there is none. `own`: requests of this gateway in flight on a pod.
    pub fn answer(
        &mut self,
        config: &Config,
        question: Question,
        answer: Answer<'_>,
        clock: &dyn Fn() -> u64,
        own: &dyn Fn(&Known) -> u32,
    ) -> News {
        match question {
            Question::Pods => self.polled(config, answer, clock),
            Question::Metrics(pod) => self.visited(config, (&pod, true), answer, clock, own),
            Question::Models(pod) => self.visited(config, (&pod, false), answer, clock, own),
        }
    }
}

#[cfg(test)]
mod tests;
