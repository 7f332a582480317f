//! Which pod made which response of the Responses API, and thereby alone has it.
//!
//! Owns [`PAGES`] values in shared data, `prefix_router/<pool>/response.1/<page>`, each a list of
//! ids' hashes, least recently used first. An id is learned from the answer that made it
//! ([`Sniffer`]), and lives for [`LIFE_MS`] after its last use unless its page is full before.
//! Invariant: a fixed number of keys of at most 4 KiB each, whatever the traffic; an id has one
//! entry at most. What is not found is no error: the request is decided as any other.
//! Cost: a `get` and a `set` for a request that names an id, and for an answer that makes one.

mod sniff;

pub use sniff::{Sniffer, SNIFFED_BYTES};

use crate::store::{Expect, SharedStore};
use crate::table::PodKey;
use twox_hash::XxHash64;

/// How long an id is known after its last use, in milliseconds: a day.
pub const LIFE_MS: u64 = 86_400_000;
/// Number of keys.
const PAGES: u64 = 64;
const ENTRY_BYTES: usize = 24;
/// 4 KiB of entries: the most that a read costs no more for.
const MAX_ENTRIES: usize = 170;
const RETRIES: u32 = 8;

/// The hash of a response's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseKey(u64);

impl ResponseKey {
    /// Of an id as it is spelled.
    pub fn of(id: &[u8]) -> Self {
        Self(XxHash64::oneshot(0, id))
    }

    /// Of the id in the path `…/v1/responses/{id}`, whatever follows it by one segment (`cancel`).
    pub fn in_path(path: &[u8]) -> Option<Self> {
        let path = path.split(|&byte| byte == b'?').next()?;
        let mut segments = path.rsplit(|&byte| byte == b'/').filter(|s| !s.is_empty());
        let mut last = [segments.next()?, segments.next()?, segments.next()?];
        if last.get(1..) != Some(&[b"responses", b"v1"]) {
            let [_, id, responses] = last;
            last = [id, responses, segments.next()?];
        }
        let [id, responses, v1] = last;
        (responses == b"responses" && v1 == b"v1").then(|| Self::of(id))
    }
}

/// The responses that the pods of a pool have made.
#[derive(Debug)]
pub struct Responses {
    prefix: String,
}

type Entry = [u64; ENTRY_BYTES / 8];

impl Responses {
    /// Those of a pool.
    pub fn new(pool: &str) -> Self {
        Self {
            prefix: format!("prefix_router/{pool}/response.1/"),
        }
    }

    /// The pod that made a response, which is thereby used.
    pub fn find(
        &self,
        store: &dyn SharedStore,
        response: ResponseKey,
        now_ms: u64,
    ) -> Option<PodKey> {
        self.renew(store, response, None, now_ms)
    }

    /// The same, for who only wants to know.
    pub fn peek(
        &self,
        store: &dyn SharedStore,
        response: ResponseKey,
        now_ms: u64,
    ) -> Option<PodKey> {
        let page = store.get(&self.key(response))?;
        let mut live = entries(&page.bytes).into_iter();
        let found = live.find(|[id, _, until]| *id == response.0 && *until > now_ms);
        found.map(|[_, pod, _]| PodKey(pod))
    }

    fn key(&self, response: ResponseKey) -> String {
        format!("{}{}", self.prefix, response.0 % PAGES)
    }

    /// A pod has made a response.
    pub fn made(&self, store: &dyn SharedStore, response: ResponseKey, pod: PodKey, now_ms: u64) {
        self.renew(store, response, Some(pod), now_ms);
    }

    /// Puts the response's entry last, with this pod or else its own.
    fn renew(
        &self,
        store: &dyn SharedStore,
        response: ResponseKey,
        pod: Option<PodKey>,
        now_ms: u64,
    ) -> Option<PodKey> {
        let key = self.key(response);
        let mut found = None;
        for _ in 0..RETRIES {
            let (mut entries, expect) = match store.get(&key) {
                Some(page) => (entries(&page.bytes), Expect::Version(page.version)),
                None => (Vec::new(), Expect::Absent),
            };
            let known = entries.iter().position(|[id, ..]| *id == response.0);
            let known = known.map(|index| entries.remove(index));
            let live = known.filter(|[.., until]| *until > now_ms);
            found = pod.or(live.map(|[_, pod, _]| PodKey(pod)));
            let pod = found?;
            let surplus = entries.len().saturating_sub(MAX_ENTRIES.saturating_sub(1));
            entries.drain(..surplus);
            entries.push([response.0, pod.0, now_ms.saturating_add(LIFE_MS)]);
            let bytes: Vec<u8> = entries
                .iter()
                .flatten()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            if store.set(&key, &bytes, expect).is_ok() {
                break;
            }
        }
        found
    }
}

fn entries(page: &[u8]) -> Vec<Entry> {
    let entry = |bytes: &[u8; ENTRY_BYTES]| {
        let mut words = Entry::default();
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    };
    page.as_chunks::<ENTRY_BYTES>()
        .0
        .iter()
        .map(entry)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Conflict, MemoryStore, Versioned};
    use core::cell::Cell;

    fn id(n: u32) -> ResponseKey {
        ResponseKey::of(format!("resp_{n}").as_bytes())
    }

    fn pod(name: &str) -> PodKey {
        PodKey::of(name)
    }

    #[test]
    fn an_id_is_found_until_it_is_forgotten() {
        let (store, responses) = (MemoryStore::default(), Responses::new("p"));
        assert_eq!(responses.find(&store, id(1), 0), None);
        assert_eq!(store.keys(), 0, "a look-up leaves nothing behind");
        responses.made(&store, id(1), pod("a"), 0);
        responses.made(&store, id(2), pod("b"), 0);
        assert_eq!(responses.find(&store, id(1), 1), Some(pod("a")));
        assert_eq!(Responses::new("q").find(&store, id(1), 1), None);
        assert_eq!(responses.find(&store, id(2), LIFE_MS), None, "expired");
        assert_eq!(
            responses.find(&store, id(1), LIFE_MS),
            Some(pod("a")),
            "used at 1"
        );
        responses.made(&store, id(1), pod("b"), LIFE_MS);
        assert_eq!(responses.find(&store, id(1), LIFE_MS), Some(pod("b")));
    }

    #[test]
    fn any_number_of_ids_takes_a_fixed_room_and_the_last_used_stay() {
        let (store, responses) = (MemoryStore::default(), Responses::new("p"));
        responses.made(&store, id(0), pod("kept"), 0);
        for n in 1..=24_000 {
            responses.made(&store, id(n), pod("a"), n.into());
            if n % 100 == 0 {
                assert_eq!(responses.find(&store, id(0), n.into()), Some(pod("kept")));
            }
        }
        assert_eq!(store.keys(), PAGES as usize);
        let most = PAGES as usize * MAX_ENTRIES * ENTRY_BYTES;
        assert_eq!(
            (store.bytes(), MAX_ENTRIES * ENTRY_BYTES <= 4096),
            (most, true)
        );
        let known = |n: &u32| responses.find(&store, id(*n), 50_000).is_some();
        assert!((20_000..=24_000).all(|n| known(&n)));
        assert_eq!((1..=8_000).filter(known).count(), 0);
    }

    #[test]
    fn junk_is_no_entry() {
        let (store, responses) = (MemoryStore::default(), Responses::new("p"));
        for page in 0..PAGES {
            let key = format!("prefix_router/p/response.1/{page}");
            store.set(&key, &[7; 100], Expect::Any).unwrap();
        }
        assert_eq!(responses.find(&store, id(1), 0), None);
        responses.made(&store, id(1), pod("a"), 0);
        assert_eq!(responses.find(&store, id(1), 0), Some(pod("a")));
    }

    /// A store in which another worker always writes first, a few times.
    struct Contended {
        store: MemoryStore,
        conflicts: Cell<u32>,
    }

    impl SharedStore for Contended {
        fn get(&self, key: &str) -> Option<Versioned> {
            self.store.get(key)
        }

        fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
            if self.conflicts.get() > 0 {
                self.conflicts.set(self.conflicts.get() - 1);
                let other = [self.conflicts.get().into(), 1, u64::MAX];
                let mut all = entries(&self.store.get(key).map_or(vec![], |v| v.bytes));
                all.push(other);
                let bytes: Vec<u8> = all.iter().flatten().flat_map(|w| w.to_le_bytes()).collect();
                self.store.set(key, &bytes, Expect::Any)?;
            }
            self.store.set(key, bytes, expect)
        }
    }

    #[test]
    fn what_another_worker_wrote_stays() {
        let contended = Contended {
            store: MemoryStore::default(),
            conflicts: Cell::new(RETRIES - 1),
        };
        let responses = Responses::new("p");
        responses.made(&contended, id(1), pod("a"), 0);
        assert_eq!(responses.find(&contended, id(1), 0), Some(pod("a")));
        let bytes = contended.store.bytes();
        assert_eq!(bytes, RETRIES as usize * ENTRY_BYTES, "theirs and ours");
        // More than the retries: ours is lost, and it ends.
        contended.conflicts.set(RETRIES);
        responses.made(&contended, id(2), pod("a"), 0);
        assert_eq!(responses.find(&contended, id(2), 0), None);
    }

    #[test]
    fn the_id_stands_in_the_path() {
        for path in [
            "/v1/responses/resp_1",
            "//gateway/v1//responses/resp_1/?stream=true&x=/v1/responses/resp_2",
            "/v1/responses/resp_1/cancel",
            "/team/v1/responses/resp_1/input_items?limit=2",
        ] {
            assert_eq!(ResponseKey::in_path(path.as_bytes()), Some(id(1)), "{path}");
        }
        for path in [
            "/v1/responses",
            "/responses/resp_1",
            "/v1/chat/resp_1",
            "/v1/responses/resp_1/a/b",
            "",
        ] {
            assert_eq!(ResponseKey::in_path(path.as_bytes()), None, "{path}");
        }
    }
}
