//! Which pods are ejected, and which are new.
//!
//! Owns one value in shared data, `prefix_router/<pool>/standing.1`: an entry for each pod that is
//! not as usual. A pod that could not be reached is ejected on all workers, for 5 s at first and
//! then for twice as long each time, up to 60 s; in between one request at a time tries it again.
//! Who was seen to serve meanwhile, by others than its requests, is tried after a fifth of that.
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
/// The part of an ejection that even a pod which was seen to serve has to wait: one that does not
/// serve prompts for all that gets few of them.
const EARLY: u64 = 5;
/// How long a trial may be without a result before there is another.
const PROBE_MS: u64 = 5_000;
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
    probing: bool,
    forgotten: bool,
    /// Seen to serve since it failed last.
    serves: bool,
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
            Some(entry) if entry.failures > 0 && now_ms < entry.ends_ms() => Standing::Unfit,
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
        let until_ms = (entry.failures > 0).then_some(entry.ends_ms());
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
            entry.until_ms = now_ms.saturating_add(entry.ejection_ms());
            entry.probing = false;
            entry.serves = false;
            Some(())
        });
    }

    /// The pod was seen to serve, by who asked it at `asked_ms`.
    pub fn serves(&self, store: &dyn SharedStore, pod: PodKey, asked_ms: u64) {
        self.update(store, |entries| {
            let entry = entries.iter_mut().find(|entry| entry.pod == pod)?;
            // What was asked before it failed tells nothing, and a trial that is under way tells more.
            let failed_ms = entry.until_ms.saturating_sub(entry.ejection_ms());
            let tells = entry.failures > 0 && !entry.probing && asked_ms > failed_ms;
            (tells && !core::mem::replace(&mut entry.serves, true)).then_some(())
        });
    }

    /// Whether this request may be the one that tries the pod again.
    pub fn claim_probe(&self, store: &dyn SharedStore, pod: PodKey, now_ms: u64) -> bool {
        let claimed = self.update(store, |entries| {
            let entry = entries.iter_mut().find(|entry| entry.pod == pod)?;
            if entry.failures == 0 || now_ms < entry.ends_ms() {
                return None;
            }
            entry.probing = true;
            entry.serves = false;
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
                return None;
            }
            *entry = new_pod(pod, now_ms);
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

fn new_pod(pod: PodKey, now_ms: u64) -> Entry {
    Entry {
        pod,
        since_ms: now_ms,
        until_ms: 0,
        failures: 0,
        probing: false,
        forgotten: false,
        serves: false,
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
    /// How long it is ejected after so many failures.
    fn ejection_ms(&self) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(8);
        let time = FIRST_MS.checked_shl(doublings).unwrap_or(LONGEST_MS);
        time.min(LONGEST_MS)
    }

    /// Until when it is ejected.
    fn ends_ms(&self) -> u64 {
        let time = self.ejection_ms();
        match self.serves {
            true => self
                .until_ms
                .saturating_sub(time.saturating_sub(time / EARLY)),
            false => self.until_ms,
        }
    }

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let flags = u64::from(self.failures)
            | u64::from(self.probing) << 32
            | u64::from(self.forgotten) << 33
            | u64::from(self.serves) << 34;
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
            probing: flags & (1 << 32) != 0,
            forgotten: flags & (1 << 33) != 0,
            serves: flags & (1 << 34) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const POD: PodKey = PodKey(7);

    fn pool() -> (MemoryStore, Standings) {
        (MemoryStore::default(), Standings::new("p", 30_000))
    }

    #[test]
    fn a_failure_ejects_and_one_request_tries_again() {
        let (store, standings) = pool();
        let standing = |now| standings.read(&store).standing(POD, now);
        assert_eq!(standing(0), Standing::Fit);
        for _ in 0..50 {
            standings.failed(&store, POD, 1000);
        }
        assert_eq!(standing(5999), Standing::Unfit);
        assert!(!standings.claim_probe(&store, POD, 5999));
        assert_eq!(standing(6000), Standing::Probe);
        assert!(standings.claim_probe(&store, POD, 6000));
        assert!(!standings.claim_probe(&store, POD, 6000), "only one");
        assert_eq!(standing(6001), Standing::Unfit);
        assert!(!standings.answered(&store, POD, 6500));
        assert_eq!(standing(6500), Standing::Fit);
        assert_eq!(standings.read(&store).cold_share(POD, 6500), 1.0);
    }

    #[test]
    fn ejections_double_up_to_a_minute() {
        let (store, standings) = pool();
        let mut now = 0;
        let mut times = Vec::new();
        for _ in 0..6 {
            standings.failed(&store, POD, now);
            let from = now;
            while standings.read(&store).standing(POD, now) == Standing::Unfit {
                now += 1000;
            }
            times.push((now - from) / 1000);
            assert!(standings.claim_probe(&store, POD, now));
        }
        assert_eq!(times, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn who_is_seen_to_serve_is_tried_earlier() {
        let (store, standings) = pool();
        let fit_at = |mut now| {
            while standings.read(&store).standing(POD, now) == Standing::Unfit {
                now += 100;
            }
            now
        };
        standings.serves(&store, POD, 1);
        assert!(standings.read(&store).is_empty(), "all is well");
        standings.failed(&store, POD, 1000);
        standings.serves(&store, POD, 1000);
        assert_eq!(fit_at(1000), 6000, "asked before it failed");
        standings.serves(&store, POD, 1001);
        standings.serves(&store, POD, 1900);
        assert_eq!(fit_at(1000), 2000, "once, however often it is seen");
        assert!(!standings.claim_probe(&store, POD, 1999));
        assert!(standings.claim_probe(&store, POD, 2000));
        standings.serves(&store, POD, 2100);
        assert!(!standings.claim_probe(&store, POD, 2200), "one at a time");
        // It serves others and not this: twice as long, and a fifth of that again.
        standings.failed(&store, POD, 2300);
        assert_eq!(fit_at(2300), 12_300);
        standings.serves(&store, POD, 2400);
        assert_eq!(fit_at(2300), 4300);
        assert!(standings.claim_probe(&store, POD, 4300));
        standings.answered(&store, POD, 4400);
        assert_eq!(fit_at(4400), 4400);
    }

    #[test]
    fn a_probe_without_a_result_is_followed_by_another() {
        let (store, standings) = pool();
        standings.failed(&store, POD, 0);
        assert!(standings.claim_probe(&store, POD, 5000));
        assert!(!standings.claim_probe(&store, POD, 9999));
        assert!(standings.claim_probe(&store, POD, 10_000));
    }

    #[test]
    fn who_was_gone_is_forgotten_once_and_comes_back_as_new() {
        let (store, standings) = pool();
        standings.failed(&store, POD, 0);
        let gone = |now| standings.read(&store).gone(now).collect::<Vec<_>>();
        assert_eq!(gone(GONE_MS), []);
        assert_eq!(gone(GONE_MS + 1), [POD]);
        standings.forgotten(&store, POD);
        assert_eq!(gone(GONE_MS + 1), []);
        assert!(!standings.answered(&store, POD, 20_000), "was forgotten");
        let share = |now| standings.read(&store).cold_share(POD, now);
        assert_eq!(
            (share(20_000), share(35_000), share(60_000)),
            (0.0, 0.5, 1.0)
        );
        standings.tidy(&store, &[POD], 20_000 + STALE_MS);
        assert!(standings.read(&store).is_empty());
    }

    #[test]
    fn an_answer_after_a_long_silence_says_to_forget() {
        let (store, standings) = pool();
        standings.failed(&store, POD, 0);
        assert!(standings.answered(&store, POD, GONE_MS + 1));
        assert!(!standings.answered(&store, POD, GONE_MS + 2));
    }

    #[test]
    fn there_is_room_for_so_many_and_the_dead_leave() {
        let (store, standings) = pool();
        for pod in 0..2 * MAX_ENTRIES as u64 {
            standings.arrived(&store, PodKey(pod), 0);
        }
        let bytes = || store.get("prefix_router/p/standing.1").unwrap().bytes.len();
        assert_eq!(bytes(), MAX_ENTRIES * ENTRY_BYTES);
        standings.failed(&store, PodKey(1), 1);
        standings.tidy(&store, &[PodKey(1), PodKey(2)], 1);
        assert_eq!(bytes(), MAX_ENTRIES * ENTRY_BYTES, "others may know them");
        standings.failed(&store, PodKey(2), STALE_MS);
        standings.tidy(&store, &[PodKey(1), PodKey(2)], 2 * STALE_MS);
        assert_eq!(bytes(), 2 * ENTRY_BYTES);
        store.set(&standings.key, b"junk", Expect::Any).unwrap();
        assert_eq!(standings.read(&store).standing(PodKey(1), 0), Standing::Fit);
    }
}
