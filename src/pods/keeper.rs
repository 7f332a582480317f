//! The one worker that keeps the registry: whom to ask now, and what an answer changes.
//!
//! Owns its copy of the [`Registry`] while it holds the lease, and the calls that are under way.
//! Invariant: whatever fails, the last good list stays, and shows its age; an answer that comes
//! when the lease is lost changes nothing. Cost: nothing on the path of a request; on the holder
//! one admin call an interval, and for each pod one call an interval, [`PARALLEL`] at a time.

use super::admin::{self, Found, Seen, ONLY};
use super::lease::Lease;
use super::registry::{Known, Registry};
use super::schedule::Schedule;
use super::scrape;
use super::standing::GONE_MS;
use crate::config::{Config, DestinationMode};
use crate::store::SharedStore;

/// Most calls to pods under way at once.
const PARALLEL: usize = 8;
/// Between two looks at a pod's models.
const MODELS_MS: u32 = 10_000;
/// Envoy's workers hear of a host's health up to a second after its main thread, which merges such
/// news: a host that is back is taken for away for so long.
const SETTLE_MS: u64 = 1_500;
/// Header that an `override_host` cluster reads by convention, where it is not the destination's.
const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

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
    /// Pods that serve, as was asked at this time.
    pub serving: Vec<(Known, u64)>,
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
            Question::Metrics(pod) => self.scraped(config, &pod, answer, clock, own),
            Question::Models(pod) => self.listed(config, &pod, answer, clock),
        }
    }

    fn polled(&mut self, config: &Config, answer: Answer<'_>, clock: &dyn Fn() -> u64) -> News {
        let Some(discovery) = &config.discovery else {
            return News::default();
        };
        let start = clock();
        let found = match answer {
            Answer::NoCluster => Err("is no cluster of this Envoy"),
            Answer::None => Err("does not answer"),
            Answer::TooLong => Err("answers more than 16 MiB"),
            Answer::Some(200, body) => {
                admin::read(body, &discovery.cluster).ok_or("answers something else than clusters")
            }
            Answer::Some(..) => Err("refuses"),
        };
        let now = clock();
        let interval = discovery.poll_interval_ms;
        match found {
            Ok(found) => {
                self.admin
                    .answered(now, interval, now.saturating_sub(start));
                self.found(config, found, now)
            }
            Err(trouble) => {
                self.admin.failed(now, interval);
                let line = (self.trouble != trouble).then(|| {
                    format!(
                        "discovery: {} {trouble}; the last list stays",
                        discovery.admin_cluster
                    )
                });
                self.trouble = trouble;
                News {
                    failed_poll: true,
                    line,
                    ..News::default()
                }
            }
        }
    }

    /// A new list of pods.
    fn found(&mut self, config: &Config, mut found: Found, now_ms: u64) -> News {
        let asked_ms = self.admin.asked_ms();
        let most = config.max_pods as usize;
        let beyond = u32::try_from(found.pods.len().saturating_sub(most)).unwrap_or(u32::MAX);
        let left_out = found.left_out.saturating_add(beyond);
        found.pods.truncate(most);
        let mut news = News {
            changed: true,
            ..News::default()
        };
        let earlier = core::mem::take(&mut self.returning);
        // Who is asked rarely is not asked at just the wrong moment.
        let settle_ms = match &config.discovery {
            Some(discovery) if u64::from(discovery.poll_interval_ms) < SETTLE_MS => SETTLE_MS,
            _ => 0,
        };
        let pods = found.pods.into_iter().map(|seen| {
            let Seen {
                name,
                address,
                mut health,
            } = seen;
            let before = self.registry.pods.iter().find(|pod| pod.name == name);
            let mut known = match before {
                // The same name at another address is another process.
                Some(before) if before.discovered && before.address.as_ref() != Some(&address) => {
                    news.restarted.push(before.clone());
                    Known::default()
                }
                Some(before) => before.clone(),
                None => Known::default(),
            };
            let down_since = known.down_since_ms;
            let mut up_since = now_ms;
            if down_since > 0 && health.is_reachable() {
                let since = earlier.iter().find(|pod| pod.0 == name);
                up_since = since.map_or(now_ms, |pod| pod.1);
                if now_ms.saturating_sub(up_since) < settle_ms {
                    self.returning.push((name.clone(), up_since));
                    health = known.health;
                }
            }
            known.down_since_ms = match health.is_reachable() {
                true => 0,
                false if down_since == 0 => now_ms.max(1),
                false => down_since,
            };
            let back = down_since > 0 && known.down_since_ms == 0;
            if back && up_since.saturating_sub(down_since) > GONE_MS {
                news.restarted.push(known.clone());
            }
            known.name = name;
            known.address = Some(address);
            known.health = health;
            known.discovered = true;
            // That Envoy likes it tells nothing where it checks nothing: that it does so again does.
            if back {
                news.serving.push((known.clone(), asked_ms));
            }
            known
        });
        let pods: Vec<Known> = pods.collect();
        // A pod of the configuration stays when Envoy has it no more, and holds nothing.
        let left = self.registry.pods.iter().filter(|old| {
            let stays = config.pods.iter().any(|own| own.name == old.name);
            stays && old.discovered && !pods.iter().any(|new| new.name == old.name)
        });
        news.restarted.extend(left.cloned());
        let first = self.registry.polled_ms == 0;
        let other_rest = self.registry.left_out != left_out || self.refused != found.refused;
        self.registry.polled_ms = now_ms.max(1);
        self.registry.left_out = left_out;
        self.refused = found.refused;
        news.list_changed = self.replace(config, pods, now_ms) || first;
        let recovered = !core::mem::take(&mut self.trouble).is_empty();
        if news.list_changed || other_rest || recovered {
            let count = self
                .registry
                .pods
                .iter()
                .filter(|pod| pod.discovered)
                .count();
            news.line = Some(format!(
                "discovery: {count} pods; {left_out} more than max_pods are left out; {} hosts or clusters have no ip:port or no name that a header can carry",
                found.refused
            ));
        }
        news
    }

    /// Puts the discovered pods into the registry, and those of the configuration that are not
    /// among them. True when the names are others than before.
    fn replace(&mut self, config: &Config, discovered: Vec<Known>, now_ms: u64) -> bool {
        let mut pods = discovered;
        for pod in &config.pods {
            let own = Known {
                name: pod.name.clone(),
                address: pod.address.clone(),
                ..Known::default()
            };
            if !pods.iter().any(|known| known.is(&own)) {
                let mut before = self.registry.pods.iter();
                let before = before.find(|known| known.name == own.name).cloned();
                pods.push(Known {
                    discovered: false,
                    health: Default::default(),
                    address: own.address.clone(),
                    ..before.unwrap_or(own)
                });
            }
        }
        for pod in &mut pods {
            if pod.since_ms == 0 {
                pod.since_ms = now_ms.max(1);
            }
        }
        let names = |pods: &[Known]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
        let (before, after) = (names(&self.registry.pods), names(&pods));
        self.registry.pods = pods;
        self.visits.retain(|visit| after.contains(&visit.pod));
        for pod in &after {
            if !self.visits.iter().any(|visit| visit.pod == *pod) {
                self.visits.push(Visit {
                    pod: pod.clone(),
                    metrics: Schedule::default(),
                    models: Schedule::default(),
                });
            }
        }
        let changed = before != after;
        if changed {
            self.registry.generation = self.registry.generation.wrapping_add(1);
        }
        changed
    }

    fn scraped(
        &mut self,
        config: &Config,
        pod: &str,
        answer: Answer<'_>,
        clock: &dyn Fn() -> u64,
        own: &dyn Fn(&Known) -> u32,
    ) -> News {
        let interval = interval_of(config);
        let start = clock();
        let scraped = match answer {
            Answer::Some(200, body) => scrape::read(body, start),
            _ => None,
        };
        let (Some(visit), Some(known)) = (
            self.visits.iter_mut().find(|visit| visit.pod == pod),
            self.registry
                .pods
                .iter_mut()
                .find(|known| known.name == pod),
        ) else {
            return News::default();
        };
        let now = clock();
        let Some(mut scraped) = scraped else {
            visit.metrics.failed(now, interval);
            return News::default();
        };
        visit
            .metrics
            .answered(now, interval, now.saturating_sub(start));
        let all = scraped.running.saturating_add(scraped.waiting);
        scraped.others = all.saturating_sub(own(known));
        let mut news = News {
            changed: true,
            serving: vec![(known.clone(), visit.metrics.asked_ms())],
            ..News::default()
        };
        let before = known
            .scraped
            .replace(scraped)
            .map_or(0, |before| before.started_ms);
        if before != 0 && scraped.started_ms != 0 && before != scraped.started_ms {
            // A new process has an empty cache, and perhaps other models.
            visit.models = Schedule::default();
            news.line = Some(format!("pod {pod} has restarted"));
            news.restarted.push(known.clone());
        }
        news
    }

    fn listed(
        &mut self,
        config: &Config,
        pod: &str,
        answer: Answer<'_>,
        clock: &dyn Fn() -> u64,
    ) -> News {
        let start = clock();
        let models = match answer {
            Answer::Some(200, body) => scrape::read_models(body),
            _ => None,
        };
        let (Some(visit), Some(known)) = (
            self.visits.iter_mut().find(|visit| visit.pod == pod),
            self.registry
                .pods
                .iter_mut()
                .find(|known| known.name == pod),
        ) else {
            return News::default();
        };
        let now = clock();
        let Some(models) = models else {
            visit.models.failed(now, interval_of(config));
            return News::default();
        };
        visit
            .models
            .answered(now, MODELS_MS, now.saturating_sub(start));
        let changed = known.models != models;
        known.models = models;
        News {
            changed,
            ..News::default()
        }
    }
}

fn interval_of(config: &Config) -> u32 {
    let scrape = config.metrics_scrape.as_ref();
    scrape.map_or(1000, |scrape| scrape.poll_interval_ms)
}

/// Clusters, and the header that names a host of them.
type Reach = ((String, Option<String>), Option<(String, String)>);

/// How to reach this pod alone; nothing where that is not possible.
fn reach(config: &Config, pod: &Known) -> Option<Reach> {
    let scrape = config.metrics_scrape.as_ref()?;
    let destination = &config.destination;
    let named = |cluster: &str, header: &str| {
        let host = (header.to_owned(), pod.address.clone()?);
        Some(((cluster.to_owned(), None), Some(host)))
    };
    match (&scrape.cluster, destination.mode) {
        (Some(cluster), DestinationMode::OverrideHost) => named(cluster, &destination.header),
        (Some(cluster), _) => named(cluster, ENDPOINT_HEADER),
        (None, DestinationMode::OverrideHost) => {
            let discovered = config.discovery.as_ref().map(|found| &found.cluster);
            let cluster = discovered.or(config.scope.clusters.first())?;
            named(cluster, &destination.header)
        }
        // An aggregate cluster answers for another pod when its own is away.
        (None, DestinationMode::ClusterHeader) if !pod.name.ends_with(ONLY) => {
            let only = format!("{}{ONLY}", pod.name);
            Some(((only, Some(pod.name.clone())), None))
        }
        (None, DestinationMode::ClusterHeader) => Some(((pod.name.clone(), None), None)),
        (None, DestinationMode::StatefulSession) => None,
    }
}

#[cfg(test)]
mod tests;
