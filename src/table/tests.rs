//! The tables against a naive exact model, and against crashes, races and junk.

use super::*;
use crate::chunk::ChunkHash;
use crate::store::{Conflict, Expect, MemoryStore, Versioned};
use core::cell::RefCell;
use proptest::prelude::*;
use std::collections::BTreeMap;
use twox_hash::XxHash64;

const SMALL: Geometry = Geometry {
    chunk_bytes: 256,
    max_pods: 8,
    max_capacity_chunks: 4096,
};

/// A chain whose hashes are those of its path: chains with a common head share it.
fn chain(path: &[u32]) -> Vec<ChunkHash> {
    let mut seed = 7;
    path.iter()
        .map(|step| {
            seed = XxHash64::oneshot(seed, &step.to_le_bytes());
            ChunkHash(seed)
        })
        .collect()
}

fn run(from: u32, length: u32) -> Vec<u32> {
    (from..from + length).collect()
}

fn table(geometry: Geometry) -> Table {
    Table::new("p", geometry, 0)
}

fn pods(table: &Table, store: &dyn SharedStore, count: usize) -> Vec<Slot> {
    let names: Vec<String> = (0..count).map(|n| format!("pod-{n}")).collect();
    let live: Vec<&str> = names.iter().map(String::as_str).collect();
    live.iter()
        .map(|name| table.slot(store, name, &live).unwrap())
        .collect()
}

fn notify(
    table: &Table,
    store: &dyn SharedStore,
    chain: &[ChunkHash],
    slot: Slot,
    c: u32,
) -> Notified {
    let query = table.query(store, chain, &[slot]);
    table.notify(store, chain, slot, c, query)
}

fn matched(table: &Table, store: &dyn SharedStore, chain: &[ChunkHash], slot: Slot) -> usize {
    table.query(store, chain, &[slot]).matched()[0] as usize
}

/// Every invariant of every value in a store of the pool `p`.
fn validate(table: &Table, store: &MemoryStore, slots: &[Slot], capacity: u32) {
    // Seen by queries, and not yet dropped by the pod's ring: a worker may die in between.
    let mut seen: BTreeMap<u8, u32> = BTreeMap::new();
    let mut counted: BTreeMap<u8, u32> = BTreeMap::new();
    let entries = table.slots(store);
    let watermarks: BTreeMap<u8, u32> = slots
        .iter()
        .map(|s| (s.index, table.ring(store, *s, &entries).watermark()))
        .collect();
    for number in 0..table.pages {
        let page = table.page(store, number);
        page.validate();
        for pair in page
            .all_pairs()
            .filter(|pair| entries.is_alive(pair.slot, pair.epoch))
        {
            *seen.entry(pair.slot).or_default() += 1;
            if watermarks
                .get(&pair.slot)
                .is_some_and(|w| ring::is_alive(pair.epoch, *w))
            {
                *counted.entry(pair.slot).or_default() += 1;
            }
        }
    }
    for slot in slots {
        let of = |counts: &BTreeMap<u8, u32>| counts.get(&slot.index).copied().unwrap_or(0);
        let charged = table.occupancy(store, *slot);
        assert!(
            of(&counted) <= charged,
            "{} held, {charged} charged",
            of(&counted)
        );
        assert!(of(&seen) <= capacity, "T2: {} of {capacity}", of(&seen));
    }
    let footprint = table.footprint();
    assert!(store.keys() as u64 <= footprint.keys && store.bytes() as u64 <= footprint.max_bytes);
    assert_eq!(table.stats().junk_pages, 0);
}

/// The exact LRU of one pod: last touch of each chunk; deeper chunks of one notify are older.
#[derive(Default)]
struct Model {
    touched: BTreeMap<u64, u64>,
    now: u64,
}

impl Model {
    fn notify(&mut self, chain: &[ChunkHash]) {
        for hash in chain.iter().rev() {
            self.now += 1;
            self.touched.insert(hash.0, self.now);
        }
    }

    fn leading(&self, chain: &[ChunkHash]) -> usize {
        chain
            .iter()
            .take_while(|hash| self.touched.contains_key(&hash.0))
            .count()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Notify { pod: usize, path: Vec<u32> },
    NotifyUndone { pod: usize, path: Vec<u32> },
    Query { path: Vec<u32> },
    Forget { pod: usize },
}

/// Paths through a tree that parts now and then, so that prompts share heads.
fn path() -> impl Strategy<Value = Vec<u32>> {
    (0u32..3, 0u32..4, 0u32..12, 1u32..70).prop_map(|(a, b, c, length)| {
        let heads = [(a, 10), (b, 25), (c, 70)];
        let steps = heads.iter().flat_map(|(branch, n)| run(branch * 1000, *n));
        steps.take(length as usize).collect()
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0usize..3, path()).prop_map(|(pod, path)| Op::Notify { pod, path }),
        1 => (0usize..3, path()).prop_map(|(pod, path)| Op::NotifyUndone { pod, path }),
        3 => path().prop_map(|path| Op::Query { path }),
        1 => (0usize..3).prop_map(|pod| Op::Forget { pod }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Under capacity every answer is the model's, exactly.
    #[test]
    fn equals_the_model_while_under_capacity(ops in prop::collection::vec(op(), 1..60)) {
        let (store, table) = (MemoryStore::default(), table(SMALL));
        let slots = pods(&table, &store, 3);
        let mut models: Vec<Model> = (0..3).map(|_| Model::default()).collect();
        for op in ops {
            match op {
                Op::Notify { pod, path } => {
                    let chain = chain(&path);
                    let done = notify(&table, &store, &chain, slots[pod], 4096);
                    prop_assert_eq!((done.stored as usize, done.evicted), (chain.len(), 0));
                    models[pod].notify(&chain);
                }
                Op::NotifyUndone { pod, path } => {
                    let chain = chain(&path);
                    let done = notify(&table, &store, &chain, slots[pod], 4096);
                    table.undo(&store, &chain, done.receipt);
                }
                Op::Query { path } => {
                    let chain = chain(&path);
                    let found = table.query(&store, &chain, &slots);
                    let expected: Vec<u32> = models.iter().map(|m| m.leading(&chain) as u32).collect();
                    prop_assert_eq!(found.matched(), &expected[..]);
                }
                Op::Forget { pod } => {
                    table.forget(&store, slots[pod]);
                    models[pod] = Model::default();
                }
            }
        }
        for (slot, model) in slots.iter().zip(&models) {
            prop_assert_eq!(table.occupancy(&store, *slot) as usize, model.touched.len());
        }
        validate(&table, &store, &slots, 4096);
    }

    /// Over capacity: never more than C seen, at least C - C/8 - a prompt kept, nothing older kept
    /// while something younger by more than the grain is gone.
    #[test]
    fn evicts_like_an_lru_within_its_grain(
        capacity in prop_oneof![Just(16u32), Just(64), Just(200), 16u32..400],
        prompts in prop::collection::vec((0u32..6, 0u32..30, 1u32..60), 20..120),
    ) {
        let (store, table) = (MemoryStore::default(), table(SMALL));
        let slot = pods(&table, &store, 1)[0];
        let mut model = Model::default();
        let mut longest = 0;
        let mut full = false;
        let seen = |model: &Model| -> Vec<(u64, bool)> {
            let entries = table.slots(&store);
            let mut live = std::collections::HashSet::new();
            for number in 0..table.pages {
                let page = table.page(&store, number);
                for hash in model.touched.keys() {
                    let pair = page.pair_of(*hash, slot.index);
                    if pair.is_some_and(|(_, pair)| entries.is_alive(slot.index, pair.epoch)) {
                        live.insert(*hash);
                    }
                }
            }
            let mut by_age: Vec<_> = model.touched.iter().map(|(h, t)| (*t, live.contains(h))).collect();
            by_age.sort_unstable();
            by_age
        };
        for (head, tail, length) in prompts {
            let mut steps = run(head * 1000, 12);
            steps.extend(run(100_000 + tail * 1000, 60));
            steps.truncate(length as usize);
            let mut chain = chain(&steps);
            let done = notify(&table, &store, &chain, slot, capacity);
            full |= done.evicted > 0;
            chain.truncate(capacity as usize);
            prop_assert_eq!(matched(&table, &store, &chain, slot), done.stored as usize);
            let grain = (capacity as usize / 16).max(1);
            prop_assert!(done.stored as usize + grain >= chain.len(), "{} stored", done.stored);
            longest = longest.max(chain.len());
            model.notify(&chain);
        }
        let by_age = seen(&model);
        let kept = by_age.iter().filter(|(_, live)| *live).count();
        prop_assert!(kept <= capacity as usize);
        if full {
            let least = (capacity as usize).saturating_sub(capacity as usize / 8 + longest);
            prop_assert!(kept >= least, "{} kept of {}", kept, capacity);
        }
        // What is gone may be younger than what is kept by two grains and a prompt at most: the
        // span in which it died, and the order inside of the span in which the other lives.
        let grain = (capacity as usize / 16).max(1);
        let youngest_gone = by_age.iter().rposition(|(_, live)| !*live);
        let oldest_kept = by_age.iter().position(|(_, live)| *live);
        if let (Some(gone), Some(kept)) = (youngest_gone, oldest_kept) {
            let inversions = gone.saturating_sub(kept);
            prop_assert!(inversions <= 2 * grain + 1, "{} places apart, grain {}", inversions, grain);
        }
        validate(&table, &store, &[slot], capacity);
    }

    /// A worker that dies between any two host calls of a notify leaves every invariant whole.
    #[test]
    fn a_crash_anywhere_keeps_the_invariants(calls in 0usize..40, capacity in 16u32..200) {
        let (store, table) = (MemoryStore::default(), table(SMALL));
        let slot = pods(&table, &store, 1)[0];
        for n in 0..12 {
            notify(&table, &store, &chain(&run(n * 1000, 30)), slot, capacity);
        }
        let dying = Failing { store: &store, left: Cell::new(calls) };
        let new = chain(&run(3000, 90));
        notify(&self::table(SMALL), &dying, &new, slot, capacity);
        validate(&table, &store, &[slot], capacity);
        let done = notify(&table, &store, &new, slot, capacity);
        let most = new.len().min(capacity as usize) - (capacity as usize / 16).max(1);
        if !done.dropped {
            prop_assert!(matched(&table, &store, &new, slot) >= most);
        }
        notify(&table, &store, &new, slot, capacity);
        prop_assert!(matched(&table, &store, &new, slot) >= most);
        for n in 0..40 {
            notify(&table, &store, &chain(&run(n * 1000, 30)), slot, capacity);
            validate(&table, &store, &[slot], capacity);
        }
    }
}

/// A store whose worker dies after so many calls: later writes do not happen, reads find nothing.
struct Failing<'a> {
    store: &'a MemoryStore,
    left: Cell<usize>,
}

impl Failing<'_> {
    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl SharedStore for Failing<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.lives().then(|| self.store.get(key)).flatten()
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        if self.lives() {
            self.store.set(key, bytes, expect)
        } else {
            Err(Conflict)
        }
    }
}

type Meanwhile<'a> = Box<dyn FnMut(&MemoryStore) + 'a>;

/// A store in which another worker acts right before the n-th call of this one.
struct Interleaved<'a> {
    store: &'a MemoryStore,
    calls: Cell<usize>,
    at: usize,
    other: RefCell<Meanwhile<'a>>,
}

impl<'a> Interleaved<'a> {
    fn new(store: &'a MemoryStore, at: usize, other: impl FnMut(&MemoryStore) + 'a) -> Self {
        Self {
            store,
            calls: Cell::new(0),
            at,
            other: RefCell::new(Box::new(other)),
        }
    }

    fn step(&self) {
        let call = self.calls.get();
        self.calls.set(call + 1);
        if call == self.at {
            (self.other.borrow_mut())(self.store);
        }
    }
}

impl SharedStore for Interleaved<'_> {
    fn get(&self, key: &str) -> Option<Versioned> {
        self.step();
        self.store.get(key)
    }

    fn set(&self, key: &str, bytes: &[u8], expect: Expect) -> Result<(), Conflict> {
        self.step();
        self.store.set(key, bytes, expect)
    }
}

#[test]
fn two_writers_lose_nothing_wherever_they_meet() {
    for at in 0..30 {
        let store = MemoryStore::default();
        let (mine, theirs) = (table(SMALL), table(SMALL));
        let slots = pods(&mine, &store, 2);
        let shared = run(0, 12);
        let path = |tail: u32| [shared.clone(), run(tail, 50)].concat();
        let (a, b) = (chain(&path(1000)), chain(&path(2000)));
        let meeting = Interleaved::new(&store, at, |store| {
            notify(&theirs, store, &b, slots[0], 4096);
            notify(&theirs, store, &a, slots[1], 4096);
        });
        let done = notify(&mine, &meeting, &a, slots[0], 4096);
        assert!(!done.dropped, "at {at}");
        assert_eq!(matched(&mine, &store, &a, slots[0]), a.len(), "at {at}");
        if meeting.calls.get() > at {
            assert_eq!(matched(&mine, &store, &b, slots[0]), b.len(), "at {at}");
            assert_eq!(matched(&mine, &store, &a, slots[1]), a.len(), "at {at}");
            assert_eq!(mine.occupancy(&store, slots[0]), 12 + 50 + 50, "at {at}");
        }
        validate(&mine, &store, &slots, 4096);
    }
}

#[test]
fn a_forgotten_pod_has_no_credit_even_from_a_notify_under_way() {
    for at in 0..30 {
        let store = MemoryStore::default();
        let (mine, theirs) = (table(SMALL), table(SMALL));
        let slot = pods(&mine, &store, 1)[0];
        let old = chain(&run(0, 70));
        notify(&mine, &store, &old, slot, 4096);
        let query = mine.query(&store, &old, &[slot]);
        let meeting = Interleaved::new(&store, at, |store| theirs.forget(store, slot));
        mine.notify(&meeting, &old, slot, 4096, query);
        if meeting.calls.get() > at {
            assert_eq!(matched(&mine, &store, &old, slot), 0, "at {at}");
        }
        // The next life of the pod is whole.
        notify(&mine, &store, &old, slot, 4096);
        notify(&mine, &store, &old, slot, 4096);
        assert_eq!(matched(&mine, &store, &old, slot), 70);
        validate(&mine, &store, &[slot], 4096);
    }
}

#[test]
fn a_forget_that_dies_half_way_is_completed() {
    for calls in 0..8 {
        let (store, table) = (MemoryStore::default(), table(SMALL));
        let slot = pods(&table, &store, 1)[0];
        let old = chain(&run(0, 40));
        notify(&table, &store, &old, slot, 4096);
        self::table(SMALL).forget(
            &Failing {
                store: &store,
                left: Cell::new(calls),
            },
            slot,
        );
        let new = chain(&run(5000, 40));
        notify(&table, &store, &new, slot, 4096);
        notify(&table, &store, &new, slot, 4096);
        assert_eq!(
            matched(&table, &store, &new, slot),
            40,
            "died after {calls} calls"
        );
        validate(&table, &store, &[slot], 4096);
    }
}

#[test]
fn ten_thousand_prompts_behind_one_system_prompt_are_all_found() {
    let geometry = Geometry {
        chunk_bytes: 256,
        max_pods: 4,
        max_capacity_chunks: 262_144,
    };
    let (store, table) = (MemoryStore::default(), table(geometry));
    let slot = pods(&table, &store, 1)[0];
    let prompt = |n: u32| chain(&[run(0, 12), run(1_000_000 + n * 100, 8)].concat());
    for n in 0..10_000 {
        notify(&table, &store, &prompt(n), slot, 262_144);
    }
    for n in 0..10_000 {
        let found = matched(&table, &store, &prompt(n), slot);
        assert_eq!(found, 20, "{n}");
    }
    assert_eq!(table.stats().dropped_chunks, 0);
    assert_eq!(table.occupancy(&store, slot), 12 + 80_000);
}

#[test]
fn full_tables_drop_next_to_nothing() {
    let geometry = Geometry {
        chunk_bytes: 256,
        max_pods: 4,
        max_capacity_chunks: 4096,
    };
    let (store, table) = (MemoryStore::default(), table(geometry));
    let slots = pods(&table, &store, 4);
    for n in 0..800u32 {
        let prompt = chain(&run(n * 1000, 60));
        for slot in &slots {
            // Each pod its own prompts: the worst case for room.
            let own = chain(&run(n * 1000 + 1_000_000 * (slot.index() as u32 + 1), 60));
            notify(&table, &store, &own, *slot, 4096);
        }
        assert_eq!(matched(&table, &store, &prompt, slots[0]), 0);
    }
    validate(&table, &store, &slots, 4096);
    let dropped = table.stats().dropped_chunks;
    assert!(dropped < 800 * 4 * 60 / 1000, "{dropped} dropped");
}

#[test]
fn a_chunk_can_be_held_by_every_pod() {
    for max_pods in [64, 256] {
        let geometry = Geometry {
            chunk_bytes: 256,
            max_pods,
            max_capacity_chunks: 1024,
        };
        let (store, table) = (MemoryStore::default(), table(geometry));
        let slots = pods(&table, &store, max_pods as usize);
        let system = chain(&run(0, 40));
        for slot in &slots {
            notify(&table, &store, &system, *slot, 1024);
        }
        let query = table.query(&store, &system, &slots);
        assert!(
            query.matched().iter().all(|matched| *matched == 40),
            "{:?} {:?}",
            query.matched(),
            table.stats()
        );
        assert_eq!(table.stats().dropped_chunks, 0);
    }
}

#[test]
fn undo_leaves_what_others_touched() {
    let (store, table) = (MemoryStore::default(), table(SMALL));
    let slot = pods(&table, &store, 1)[0];
    let (short, long) = (chain(&run(0, 20)), chain(&run(0, 50)));
    let first = notify(&table, &store, &long, slot, 4096);
    let second = notify(&table, &store, &short, slot, 4096);
    table.undo(&store, &long, first.receipt);
    assert_eq!(
        matched(&table, &store, &long, slot),
        20,
        "the second notify's chunks stay"
    );
    table.undo(&store, &short, second.receipt);
    assert_eq!(
        matched(&table, &store, &short, slot),
        20,
        "it had inserted nothing"
    );
    assert_eq!(table.occupancy(&store, slot), 20);
    let other = chain(&run(9000, 30));
    let third = notify(&table, &store, &other, slot, 4096);
    table.undo(&store, &other, third.receipt);
    assert_eq!(matched(&table, &store, &other, slot), 0);
    assert_eq!(table.occupancy(&store, slot), 20);
}

#[test]
fn a_reused_slot_revives_nothing() {
    let geometry = Geometry {
        max_pods: 2,
        ..SMALL
    };
    let (store, table) = (MemoryStore::default(), table(geometry));
    let prompt = chain(&run(0, 40));
    let a = table.slot(&store, "a", &["a", "b"]).unwrap();
    let b = table.slot(&store, "b", &["a", "b"]).unwrap();
    notify(&table, &store, &prompt, a, 4096);
    assert_eq!(
        table.slot(&store, "c", &["a", "b", "c"]),
        None,
        "all slots have a live owner"
    );
    let c = table.slot(&store, "c", &["b", "c"]).unwrap();
    assert_eq!(c.index(), a.index());
    assert_eq!(
        table.query(&store, &prompt, &[a, b, c]).matched(),
        [0, 0, 0]
    );
    assert_eq!(table.slot(&store, "c", &["b", "c"]), Some(c), "found again");
    let done = notify(&table, &store, &prompt, a, 4096);
    assert_eq!(done.stored, 0, "the old owner's slot is void");
    notify(&table, &store, &prompt, c, 4096);
    assert_eq!(matched(&table, &store, &prompt, c), 40);
}

#[test]
fn junk_is_empty_and_counted() {
    let (store, table) = (MemoryStore::default(), table(SMALL));
    let slot = pods(&table, &store, 1)[0];
    let prompt = chain(&run(0, 40));
    notify(&table, &store, &prompt, slot, 4096);
    for number in 0..table.pages {
        let key = table.page_key(number);
        if let Some(mut page) = store.get(&key) {
            *page.bytes.last_mut().unwrap() ^= 1;
            store.set(&key, &page.bytes, Expect::Any).unwrap();
        }
    }
    assert_eq!(matched(&table, &store, &prompt, slot), 0);
    assert!(table.stats().junk_pages > 0);
    notify(&table, &store, &prompt, slot, 4096);
    assert_eq!(matched(&table, &store, &prompt, slot), 40, "overwritten");
    let other = self::table(Geometry {
        chunk_bytes: 512,
        ..SMALL
    });
    let theirs = pods(&other, &store, 1)[0];
    assert_eq!(
        matched(&other, &store, &prompt, theirs),
        0,
        "another geometry is junk"
    );
}

#[test]
fn a_lost_ring_or_slots_value_revives_nothing() {
    for key in ["prefix_router/p/ring/0", "prefix_router/p/slots"] {
        let (store, table) = (MemoryStore::default(), table(SMALL));
        let slot = pods(&table, &store, 1)[0];
        let old = chain(&run(0, 40));
        notify(&table, &store, &old, slot, 4096);
        store.set(key, b"junk", Expect::Any).unwrap();
        let slot = pods(&table, &store, 1)[0];
        let new = chain(&run(9000, 40));
        notify(&table, &store, &new, slot, 4096);
        notify(&table, &store, &new, slot, 4096);
        assert_eq!(matched(&table, &store, &new, slot), 40, "{key}");
        assert_eq!(matched(&table, &store, &old, slot), 0, "{key}");
    }
}

#[test]
fn unique_prompts_grow_nothing() {
    let (store, table) = (
        MemoryStore::default(),
        table(Geometry {
            max_capacity_chunks: 256,
            ..SMALL
        }),
    );
    let names: Vec<String> = (0..40).map(|n| format!("pod-{n}")).collect();
    for n in 0..20_000u32 {
        let live: Vec<&str> = names
            .iter()
            .skip(n as usize / 1000)
            .take(8)
            .map(String::as_str)
            .collect();
        let slot = table.slot(&store, live[n as usize % 8], &live).unwrap();
        notify(&table, &store, &chain(&run(n * 100, 5)), slot, 256);
    }
    let footprint = table.footprint();
    assert!(
        store.keys() as u64 <= footprint.keys,
        "{} keys",
        store.keys()
    );
    assert!(
        store.bytes() as u64 <= footprint.max_bytes,
        "{} bytes",
        store.bytes()
    );
}

#[test]
fn shared_data_per_chunk_of_capacity_is_bounded() {
    let geometry = Geometry {
        chunk_bytes: 256,
        max_pods: 64,
        max_capacity_chunks: 32_768,
    };
    let footprint = table(geometry).footprint();
    assert!(footprint.max_bytes <= 24 * 64 * 32_768, "{footprint:?}");
}

#[test]
fn a_hot_prompt_is_not_written_again() {
    let (store, table) = (MemoryStore::default(), table(SMALL));
    let slot = pods(&table, &store, 1)[0];
    let prompt = chain(&run(0, 64));
    notify(&table, &store, &prompt, slot, 4096);
    notify(&table, &store, &prompt, slot, 4096);
    let number = place::page(&prompt, 0, 0, table.pages).unwrap();
    let before = store.get(&table.page_key(number)).unwrap().version;
    for _ in 0..10 {
        notify(&table, &store, &prompt, slot, 4096);
    }
    assert_eq!(store.get(&table.page_key(number)).unwrap().version, before);
}

#[test]
fn a_pod_that_was_removed_comes_back_empty() {
    let (store, table) = (MemoryStore::default(), table(SMALL));
    let slots = pods(&table, &store, 3);
    let prompt = chain(&run(0, 40));
    slots
        .iter()
        .for_each(|slot| drop(notify(&table, &store, &prompt, *slot, 4096)));
    table.retain(&store, &["pod-1"]);
    let again = pods(&table, &store, 3);
    assert_eq!(table.query(&store, &prompt, &again).matched(), [0, 40, 0]);
    validate(&table, &store, &again, 4096);
}
