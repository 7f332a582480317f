//! Which pods are ejected, and which are new.
//!
//! Owns one value in shared data, `prefix_router/<pool>/standing.1`: an entry for each pod that is
//! not as usual. A pod that could not be reached is ejected on all workers, for 5 s at first and
//! then for twice as long each time, up to 60 s; in between one request at a time tries it again.
//! Evidence that it serves, from after its last failure, brings that trial forward: the first time
//! to [`GRACE_MS`] from then, the next to no less than 5 s after the failure, doubling as ejections
//! do. So at most five trials between two answers are early, and a pod that answers all but
//! requests has just one trial more than without evidence.
//! One that was unreachable for longer than [`GONE_MS`] has restarted: the table forgets it, and
//! it comes back as a new one, which takes its share of the cold prompts little by little.
//! Invariant: at most one entry a pod, at most [`MAX_ENTRIES`]; of a pod without one, all is well.
//! Cost: one `get` (of an absent key, as a rule) per decision and per answer.

use crate::policy::Standing;
use crate::store::{Expect, SharedStore};
use crate::table::PodKey;

/// How long a pod has to be unreachable to be taken for restarted, in milliseconds.
pub const GONE_MS: u64 = 10_000;
const FIRST_MS: u64 = 5_000;
const LONGEST_MS: u64 = 60_000;
/// How long a trial may be without a result before there is another.
const PROBE_MS: u64 = 5_000;
/// Between evidence and the trial: Envoy's own checks, and all its workers, which hear of health up
/// to a second later, shall have seen the pod too by then, or the trial is sent elsewhere.
pub const GRACE_MS: u64 = 1_500;
/// Age of an entry that is of no use to any configuration.
const STALE_MS: u64 = 600_000;
const MAX_ENTRIES: usize = 256;
const ENTRY_BYTES: usize = 32;
const RETRIES: u32 = 8;

/// What is unusual of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pod: PodKey,
    /// Since when.
    since_ms: u64,
    /// Ejected until then.
    until_ms: u64,
    /// Failed attempts in a row; 0: it is not ejected but new.
    failures: u32,
    /// Trials that evidence brought forward since it last answered one.
    hastened: u8,
    probing: bool,
    forgotten: bool,
}

/// The unusual pods of one pool.
#[derive(Debug)]
pub struct Standings {
    key: String,
    slow_start_ms: u64,
}

/// What was read of them.
#[derive(Debug)]
pub struct Book {
    entries: Vec<Entry>,
    slow_start_ms: u64,
}

impl Book {
    /// Whether nothing is unusual.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the pod may be chosen.
    pub fn standing(&self, pod: PodKey, now_ms: u64) -> Standing {
        match self.find(pod) {
            Some(entry) if entry.failures > 0 && now_ms < entry.until_ms => Standing::Unfit,
            Some(entry) if entry.failures > 0 => Standing::Probe,
            _ => Standing::Fit,
        }
    }

    /// The share of the cold prompts that it takes, 0 to 1.
    pub fn cold_share(&self, pod: PodKey, now_ms: u64) -> f64 {
        match self.find(pod) {
            Some(entry) if entry.failures == 0 && self.slow_start_ms > 0 => {
                let age = now_ms.saturating_sub(entry.since_ms) as f64;
                (age / self.slow_start_ms as f64).min(1.0)
            }
            _ => 1.0,
        }
    }

    /// Pods that have been unreachable for so long that they must have restarted.
    pub fn gone(&self, now_ms: u64) -> impl Iterator<Item = PodKey> + '_ {
        let gone = move |e: &&Entry| {
            e.failures > 0 && !e.forgotten && now_ms.saturating_sub(e.since_ms) > GONE_MS
        };
        self.entries.iter().filter(gone).map(|entry| entry.pod)
    }

    /// Of an unusual pod: since when it is, and until when it is ejected, if it is.
    pub fn times(&self, pod: PodKey) -> Option<(u64, Option<u64>)> {
        let entry = self.find(pod)?;
        let until_ms = (entry.failures > 0).then_some(entry.until_ms);
        Some((entry.since_ms, until_ms))
    }

    fn find(&self, pod: PodKey) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.pod == pod)
    }
}

impl Standings {
    /// Those of a pool, whose new pods take `slow_start_ms` to get their full share.
    pub fn new(pool: &str, slow_start_ms: u32) -> Self {
        Self {
            key: format!("prefix_router/{pool}/standing.1"),
            slow_start_ms: slow_start_ms.into(),
        }
    }

    /// How they are now.
    pub fn read(&self, store: &dyn SharedStore) -> Book {
        Book {
            entries: self.load(store).0,
            slow_start_ms: self.slow_start_ms,
        }
    }

    /// The pod could not be reached.
    pub fn failed(&self, store: &dyn SharedStore, pod: PodKey, now_ms: u64) {
        self.update(store, |entries| {
            let entry = find_or_add(entries, pod, now_ms)?;
            if entry.failures == 0 {
                entry.since_ms = now_ms;
            } else if now_ms < entry.until_ms && !entry.probing {
                // One of the burst that ejected it.
                return None;
            }
            entry.failures = entry.failures.saturating_add(1);
            entry.until_ms = now_ms.saturating_add(period_ms(entry.failures));
            entry.probing = false;
            Some(())
        });
    }

    /// The pod serves, as was seen after `seen_ms`: if it failed before that, it may be tried soon.
    pub fn serves(&self, store: &dyn SharedStore, pod: PodKey, seen_ms: u64, now_ms: u64) {
        self.update(store, |entries| {
            let entry = entries.iter_mut().find(|entry| entry.pod == pod)?;
            let tried_ms = now_ms.saturating_add(GRACE_MS);
            if entry.probing || tried_ms >= entry.until_ms {
                return None;
            }
            let failed_ms = entry.until_ms.saturating_sub(period_ms(entry.failures));
            let earliest_ms = failed_ms.saturating_add(period_ms(entry.hastened.into()));
            if seen_ms <= failed_ms || now_ms < earliest_ms {
                return None;
            }
            entry.until_ms = tried_ms;
            entry.hastened = entry.hastened.saturating_add(1);
            Some(())
        });
    }

    /// Whether this request may be the one that tries the pod again.
    pub fn claim_probe(&self, store: &dyn SharedStore, pod: PodKey, now_ms: u64) -> bool {
        let claimed = self.update(store, |entries| {
            let entry = entries.iter_mut().find(|entry| entry.pod == pod)?;
            if entry.failures == 0 || now_ms < entry.until_ms {
                return None;
            }
            entry.probing = true;
            entry.until_ms = now_ms.saturating_add(PROBE_MS);
            Some(())
        });
        claimed.is_some()
    }

    /// The pod answered. True: it had been gone for so long that it must be forgotten first.
    pub fn answered(&self, store: &dyn SharedStore, pod: PodKey, now_ms: u64) -> bool {
        let restarted = self.update(store, |entries| {
            let index = entries
                .iter()
                .position(|e| e.pod == pod && e.failures > 0)?;
            let entry = entries.swap_remove(index);
            let gone = now_ms.saturating_sub(entry.since_ms) > GONE_MS;
            if gone || entry.forgotten {
                entries.push(new_pod(pod, now_ms));
            }
            Some(gone && !entry.forgotten)
        });
        restarted.unwrap_or(false)
    }

    /// Notes that the table has forgotten a pod that was gone.
    pub fn forgotten(&self, store: &dyn SharedStore, pod: PodKey) {
        self.update(store, |entries| {
            let entry = entries.iter_mut().find(|entry| entry.pod == pod)?;
            (!core::mem::replace(&mut entry.forgotten, true)).then_some(())
        });
    }

    /// The pod has just come, or holds nothing any more.
    pub fn arrived(&self, store: &dyn SharedStore, pod: PodKey, now_ms: u64) {
        if self.slow_start_ms == 0 {
            return;
        }
        self.update(store, |entries| {
            let entry = find_or_add(entries, pod, now_ms)?;
            if entry.failures > 0 {
                // It comes back as a new one.
                entry.forgotten = true;
            } else {
                *entry = new_pod(pod, now_ms);
            }
            Some(())
        });
    }

    /// Drops the entries of pods that are new no more, or not `live` for long: another
    /// configuration may know them, while the streams of an old one drain.
    pub fn tidy(&self, store: &dyn SharedStore, live: &[PodKey], now_ms: u64) {
        self.update(store, |entries| {
            let before = entries.len();
            entries.retain(|entry| {
                let age = now_ms.saturating_sub(entry.since_ms.max(entry.until_ms));
                let ejected = entry.failures > 0 && live.contains(&entry.pod);
                ejected || age < self.slow_start_ms.max(STALE_MS)
            });
            (entries.len() != before).then_some(())
        });
    }

    fn load(&self, store: &dyn SharedStore) -> (Vec<Entry>, Expect) {
        match store.get(&self.key) {
            Some(found) => {
                let entries = found.bytes.as_chunks::<ENTRY_BYTES>().0.iter();
                let entries = entries.take(MAX_ENTRIES).map(Entry::from_bytes).collect();
                (entries, Expect::Version(found.version))
            }
            None => (Vec::new(), Expect::Absent),
        }
    }

    /// Changes the entries, unless `change` has nothing to change.
    fn update<T>(
        &self,
        store: &dyn SharedStore,
        change: impl Fn(&mut Vec<Entry>) -> Option<T>,
    ) -> Option<T> {
        for _ in 0..RETRIES {
            let (mut entries, expect) = self.load(store);
            let result = change(&mut entries)?;
            let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
            if store.set(&self.key, &bytes, expect).is_ok() {
                return Some(result);
            }
        }
        None
    }
}

/// How long the last of so many ejections in a row lasts.
fn period_ms(count: u32) -> u64 {
    let doublings = count.checked_sub(1);
    doublings.map_or(0, |n| (FIRST_MS << n.min(8)).min(LONGEST_MS))
}

fn new_pod(pod: PodKey, now_ms: u64) -> Entry {
    Entry {
        pod,
        since_ms: now_ms,
        until_ms: 0,
        failures: 0,
        hastened: 0,
        probing: false,
        forgotten: false,
    }
}

fn find_or_add(entries: &mut Vec<Entry>, pod: PodKey, now_ms: u64) -> Option<&mut Entry> {
    let index = match entries.iter().position(|entry| entry.pod == pod) {
        Some(index) => index,
        None if entries.len() < MAX_ENTRIES => {
            entries.push(new_pod(pod, now_ms));
            entries.len().saturating_sub(1)
        }
        None => return None,
    };
    entries.get_mut(index)
}

impl Entry {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let flags = u64::from(self.failures)
            | u64::from(self.probing) << 32
            | u64::from(self.forgotten) << 33
            | u64::from(self.hastened) << 40;
        let mut bytes = [0; ENTRY_BYTES];
        let words = [self.pod.0, self.since_ms, self.until_ms, flags];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut words = [0u64; ENTRY_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [pod, since_ms, until_ms, flags] = words;
        Entry {
            pod: PodKey(pod),
            since_ms,
            until_ms,
            failures: flags as u32,
            hastened: (flags >> 40) as u8,
            probing: flags & (1 << 32) != 0,
            forgotten: flags & (1 << 33) != 0,
        }
    }
}

#[cfg(test)]
mod tests;
