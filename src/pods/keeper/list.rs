//! The answer of the admin listener -> the list of pods.
//!
//! Owns what two lists in a row say of a pod: that it came, moved, was away, or serves again.
//! Invariant: a list that cannot be read changes nothing. Cost: one pass over the hosts.

use super::*;
use crate::pods::admin::{Found, Seen};
use crate::pods::schedule::MAX_PAUSE_MS;
use crate::pods::standing::{GONE_MS, GRACE_MS};

impl Keeper {
    pub(super) fn polled(
        &mut self,
        config: &Config,
        answer: Answer<'_>,
        clock: &dyn Fn() -> u64,
    ) -> News {
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
                self.admin.failed(now, interval, MAX_PAUSE_MS);
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
        let most = config.max_pods as usize;
        let beyond = u32::try_from(found.pods.len().saturating_sub(most)).unwrap_or(u32::MAX);
        let left_out = found.left_out.saturating_add(beyond);
        found.pods.truncate(most);
        let mut news = News {
            changed: true,
            seen_ms: self.registry.polled_ms,
            ..News::default()
        };
        let earlier = core::mem::take(&mut self.returning);
        // Envoy's workers do not know yet that a host is back; who is asked about rarely is not
        // asked about at just that moment.
        let settle_ms = match &config.discovery {
            Some(discovery) if u64::from(discovery.poll_interval_ms) < GRACE_MS => GRACE_MS,
            _ => 0,
        };
        let pods = found.pods.into_iter().map(|seen| {
            let Seen {
                name,
                address,
                mut health,
            } = seen;
            let before = self.registry.pods.iter().find(|pod| pod.name == name);
            let since_ms = earlier.iter().find(|pod| pod.0 == name).map(|pod| pod.1);
            let up_since = since_ms.unwrap_or(now_ms);
            let back = before.is_none_or(|before| before.health.is_found_ill());
            let serves = back && health.is_healthy() && since_ms.is_none();
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
            let settles = now_ms.saturating_sub(up_since) < settle_ms;
            if down_since > 0 && health.is_reachable() && settles {
                self.returning.push((name.clone(), up_since));
                health = known.health;
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
            if serves {
                news.serving.push(known.clone());
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
    pub(super) fn replace(&mut self, config: &Config, discovered: Vec<Known>, now_ms: u64) -> bool {
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
}
