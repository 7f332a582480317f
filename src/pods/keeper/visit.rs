//! The answers of one pod: its metrics and its models.
//!
//! Owns how a pod is reached alone. Invariant: a good answer tells that the pod served when it was
//! asked, or later; any other changes nothing. Cost: one pass over the answer.

use super::*;
use crate::pods::schedule::MAX_PAUSE_MS;

/// Between two looks at a pod's models.
const MODELS_MS: u32 = 10_000;
/// Header that an `override_host` cluster reads by convention, where it is not the destination's.
pub(super) const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

impl Keeper {
    /// An answer of a pod, to the question for its `metrics` or for its models.
    pub(super) fn visited(
        &mut self,
        config: &Config,
        (pod, metrics): (&str, bool),
        answer: Answer<'_>,
        clock: &dyn Fn() -> u64,
        own: &dyn Fn(&Known) -> u32,
    ) -> News {
        let start = clock();
        let (mut scraped, mut models) = (None, None);
        if let Answer::Some(200, body) = answer {
            match metrics {
                true => scraped = scrape::read(body, start),
                false => models = scrape::read_models(body),
            }
        }
        let mut news = News::default();
        let (Some(visit), Some(known)) = (
            self.visits.iter_mut().find(|visit| visit.pod == pod),
            self.registry
                .pods
                .iter_mut()
                .find(|known| known.name == pod),
        ) else {
            return news;
        };
        let now = clock();
        let interval = interval_of(config);
        // A pod that is away is missed, and may be back soon; without models it is as good.
        let (schedule, pause, most) = match metrics {
            true => (&mut visit.metrics, interval, u64::from(interval) << 1),
            false => (&mut visit.models, MODELS_MS, MAX_PAUSE_MS),
        };
        if scraped.is_none() && models.is_none() {
            schedule.failed(now, interval, most);
            return news;
        }
        news.seen_ms = schedule.answered(now, pause, now.saturating_sub(start));
        if let Some(models) = models {
            news.changed = known.models != models;
            known.models = models;
        }
        if let Some(mut scraped) = scraped {
            let all = scraped.running.saturating_add(scraped.waiting);
            scraped.others = all.saturating_sub(own(known));
            news.changed = true;
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
        }
        news.serving.push(known.clone());
        news
    }
}

fn interval_of(config: &Config) -> u32 {
    let scrape = config.metrics_scrape.as_ref();
    scrape.map_or(1000, |scrape| scrape.poll_interval_ms)
}

/// Clusters, and the header that names a host of them.
pub(super) type Reach = ((String, Option<String>), Option<(String, String)>);

/// How to reach this pod alone; nothing where that is not possible.
pub(super) fn reach(config: &Config, pod: &Known) -> Option<Reach> {
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
