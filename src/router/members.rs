//! Who the pods are, and their places in the tables.
//!
//! Owns the list that requests keep: the pods of the configuration and those of the registry, with
//! their slots. Invariant: slots are given once per configuration, or by who discovers the pods;
//! otherwise they are only found. Cost: once a tick; a request clones one reference.

use super::*;
use crate::pods::keeper::{Keeper, News};

impl Router {
    /// The pods as they are now; to be kept for as long as their indices are.
    pub fn members(&self, env: &Env<'_>) -> Members {
        let Ok(mut members) = self.members.try_borrow_mut() else {
            return Rc::new([]);
        };
        // None at all may be for want of a first answer: any request can be after it.
        if members.as_ref().is_none_or(|members| members.is_empty()) {
            *members = Some(self.find_members(env));
        }
        members.clone().unwrap_or_default()
    }

    /// How discovery is, as of the last tick.
    pub fn discovery(&self) -> Discovered {
        self.discovery.get()
    }

    /// Does what an answer means, and lets all workers see it when it is done.
    pub fn learn(&self, env: &Env<'_>, keeper: &Keeper, news: &News) {
        for pod in &news.restarted {
            self.restarted(env, pod);
        }
        if news.list_changed {
            self.seat(env, keeper.registry());
        }
        for pod in &news.serving {
            if let Some(member) = find(&self.members(env), pod) {
                let (seen_ms, now_ms) = (news.seen_ms, env.now_ms());
                self.standings
                    .serves(env.store, member.key, seen_ms, now_ms);
            }
        }
        if news.changed {
            keeper.save(env.store);
        }
    }

    /// The pods of `registry` get their places in the tables, and those that left lose them. To
    /// be done by its one writer before the others see it.
    pub fn seat(&self, env: &Env<'_>, registry: &Registry) {
        let pods = registry.pods(&self.config);
        let keys: Vec<PodKey> = pods.iter().map(|pod| PodKey::of(&pod.name)).collect();
        self.give_slots(env, &keys, true);
        self.look_again();
    }

    /// The pod is another process than before: it holds nothing.
    pub fn restarted(&self, env: &Env<'_>, pod: &Known) {
        let members = self.members(env);
        if let Some(member) = find(&members, pod) {
            self.forget(env, member);
            self.standings.arrived(env.store, member.key, env.now_ms());
        }
    }

    /// Requests of this gateway in flight on a pod.
    pub fn running_on(&self, env: &Env<'_>, pod: &Known) -> u32 {
        let members = self.members(env);
        let load = find(&members, pod).map(|member| {
            let (loads, _) = self.loads(env, core::slice::from_ref(member));
            loads.first().map_or(0, |load| load.running)
        });
        load.unwrap_or(0)
    }

    pub(super) fn look_again(&self) {
        if let Ok(mut members) = self.members.try_borrow_mut() {
            *members = None;
        }
    }

    pub(super) fn capacity(&self, pod: &Known) -> u32 {
        let most = self.config.max_capacity_chunks;
        match self.config.capacity {
            Capacity::Chunks(chunks) => chunks,
            Capacity::Auto => {
                let said = pod.scraped.as_ref();
                said.and_then(|said| said.capacity_chunks(self.config.chunk_bytes, most))
                    .unwrap_or(most)
            }
        }
    }

    pub(super) fn forget(&self, env: &Env<'_>, member: &Member) -> bool {
        member
            .slot
            .is_none_or(|slot| self.table.forget(env.store, slot))
    }

    /// The pods with their slots. Slots are given once per configuration, and not while Envoy
    /// only validates it. Later they are only found: the streams of an old configuration may live
    /// for long, and must not take from the new one what it needs. Those of discovered pods are
    /// given by who discovers them.
    fn find_members(&self, env: &Env<'_>) -> Members {
        let config = &self.config;
        let asks = config.discovery.is_some() || config.metrics_scrape.is_some();
        let registry = asks.then(|| Registry::load(env.store, &self.registry_key));
        let registry = registry.flatten().unwrap_or_default();
        self.discovery.set(Discovered {
            polled_ms: registry.polled_ms,
            pods: registry.pods.iter().filter(|pod| pod.discovered).count(),
            left_out: registry.left_out,
        });
        let pods = registry.pods(config);
        let keys: Vec<PodKey> = pods.iter().map(|pod| PodKey::of(&pod.name)).collect();
        // Before the first answer of discovery nobody has left.
        let complete = config.discovery.is_none() || registry.polled_ms > 0;
        let slots = match self.settled.get() {
            true => self.table.find(env.store, &keys),
            false => {
                self.settled.set(complete);
                self.give_slots(env, &keys, complete)
            }
        };
        let now_ms = env.now_ms();
        let interval = config
            .metrics_scrape
            .as_ref()
            .map_or(0, |s| s.poll_interval_ms);
        let members = pods.into_iter().zip(keys).zip(slots);
        members
            .map(|((known, key), slot)| Member {
                key,
                slot,
                healthy: known.health.is_healthy(),
                capacity: self.capacity(&known),
                others: known
                    .scraped
                    .map_or(0, |scraped| scraped.others_at(now_ms, interval)),
                pod: Pod {
                    name: known.name,
                    address: known.address,
                    models: known.models,
                },
            })
            .collect()
    }

    /// Gives slots to the pods that have none, and where they are all takes the credit from others.
    fn give_slots(&self, env: &Env<'_>, keys: &[PodKey], all: bool) -> Vec<Option<Slot>> {
        let mut found = self.table.find(env.store, keys);
        // Who joins pods that have work is new; who starts with them is not.
        let joins = self.table.is_in_use(env.store);
        if all {
            self.table.retain(env.store, keys);
        }
        for (slot, key) in found.iter_mut().zip(keys) {
            if slot.is_none() {
                *slot = self.table.slot(env.store, *key, keys);
                if joins {
                    self.standings.arrived(env.store, *key, env.now_ms());
                }
            }
        }
        found
    }
}

fn find<'a>(members: &'a [Member], pod: &Known) -> Option<&'a Member> {
    members.iter().find(|member| {
        member.pod.name == pod.name || (pod.address.is_some() && member.pod.address == pod.address)
    })
}
