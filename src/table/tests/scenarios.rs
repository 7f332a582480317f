//! Loads that broke simpler layouts, and values that are not ours.

use super::*;

#[test]
fn ten_thousand_prompts_share_a_system_prompt() {
    let store = MemoryStore::default();
    let capacity = 32768;
    let table = Table::new("p", geometry(16, capacity));
    let slots = slots(&table, &store, 16);
    // 12 chunks of 256 bytes are 3 KB; 30 more each make 18,750 chunks a pod.
    for id in 0..10_000u64 {
        let chain = prompt(12, id, 42);
        let done = notify(&table, &store, &chain, slots[(id % 16) as usize], capacity);
        assert_eq!((done.stored, done.evicted), (42, 0));
    }
    for id in 0..10_000u64 {
        let chain = prompt(12, id, 42);
        let query = table.query(&store, &chain, &slots);
        for (number, matched) in query.matched().iter().enumerate() {
            let expected = if number as u64 == id % 16 { 42 } else { 12 };
            assert_eq!(*matched, expected, "prompt {id}, pod {number}");
        }
    }
    assert_eq!(table.stats().dropped_chunks, 0);
    assert!(
        table.stats().overflows > 0,
        "the page of the system prompt is full"
    );
    validate(&table, &store, true);
}

#[test]
fn every_pod_shares_a_prompt() {
    for pods in [64usize, 256] {
        let store = MemoryStore::default();
        let table = Table::new("p", geometry(pods as u16, 1024));
        let slots = slots(&table, &store, pods);
        let chain = prompt(40, 0, 40);
        for round in 0..3 {
            for slot in &slots {
                assert_eq!(
                    notify(&table, &store, &chain, *slot, 1024).stored,
                    40,
                    "round {round}"
                );
            }
        }
        assert!(table
            .query(&store, &chain, &slots)
            .matched()
            .iter()
            .all(|m| *m == 40));
        assert_eq!(table.stats().dropped_chunks, 0);
        validate(&table, &store, true);
    }
}

#[test]
fn a_pod_finds_room_in_a_page_that_others_have_filled() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(4, 32768));
    let slots = slots(&table, &store, 4);
    // Prompts that part at chunk 13, in the middle of a group of 4: its page fills up as well.
    let per_level: Vec<u64> = (0..1000)
        .map(|id| {
            let before = table.stats().overflows;
            assert_eq!(
                notify(&table, &store, &prompt(13, id, 16), slots[0], 8192).stored,
                16
            );
            table.stats().overflows - before
        })
        .collect();
    assert_eq!(per_level[0], 0, "the first fits its page");
    assert!(per_level.contains(&1), "then the page of the group of 4");
    assert!(per_level.iter().any(|n| *n > 1), "then pages of their own");
    for slot in &slots[1..] {
        notify(&table, &store, &prompt(13, 2000, 16), *slot, 8192);
    }
    for id in 0..1000 {
        assert_eq!(
            matched(&table, &store, &prompt(13, id, 16), slots[0]),
            16,
            "prompt {id}"
        );
    }
    assert_eq!(
        table.query(&store, &prompt(13, 2000, 16), &slots).matched(),
        [13, 16, 16, 16]
    );
    validate(&table, &store, true);
}

#[test]
fn a_table_without_room_drops_and_counts() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 1));
    let both = slots(&table, &store, 2);
    let table = Table {
        geometry: geometry(2, 1 << 20),
        ..table
    };
    let mut dropped = 0;
    for id in 0..400 {
        // Thirty families part in the middle of a group; with so few pages, levels fall together.
        let (family, own) = ((id % 30) << 32, (id + 100) << 32);
        let chain = chain((0..40).map(|i| if i < 13 { family | i } else { own | i }));
        let slot = both[id as usize / 200];
        let done = notify(&table, &store, &chain, slot, 1 << 20);
        assert_eq!(done.stored + done.dropped, 40);
        let seen = matched(&table, &store, &chain, slot);
        assert!(seen >= done.stored, "T3");
        let floor = table.read_slots(&store).0.floor(slot.index);
        let mut held = vec![None; 40];
        table.held(
            &store,
            &mut Default::default(),
            &chain,
            slot.index,
            floor,
            &mut held,
        );
        let held = held.iter().take_while(|stamp| stamp.is_some()).count();
        assert_eq!(held as u32, seen, "a notify sees what a query sees");
        dropped += u64::from(done.dropped);
        // A touch that finds no room moves its count and stays where it was.
        validate(&table, &store, false);
    }
    assert!(dropped > 0);
    assert_eq!(table.stats().dropped_chunks, dropped);
}

#[test]
fn a_million_chunks_pass_and_nothing_grows() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(4, 1024));
    let capacity = 1000;
    let mut last = None;
    for id in 0..12_000u64 {
        let name = (id / 500) as usize;
        let live: Vec<PodKey> = (name.saturating_sub(3)..=name).map(pod).collect();
        let slot = table.slot(&store, pod(name), &live).expect("a slot");
        let done = notify(&table, &store, &prompt(0, id, 84), slot, capacity);
        assert_eq!(done.stored, 84);
        last = Some(slot);
    }
    let kept = table.occupancy(&store, last.unwrap());
    assert!(
        kept <= capacity && kept >= capacity - capacity / 8 - 84,
        "T2: {kept}"
    );
    assert_eq!(table.stats().dropped_chunks, 0);
    validate(&table, &store, true);
}

#[test]
fn the_dead_are_swept() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 1024));
    let both = slots(&table, &store, 2);
    for id in 0..10 {
        notify(&table, &store, &prompt(0, id, 100), both[0], 1024);
    }
    let full = store.bytes();
    assert!(table.forget(&store, both[0]));
    // One page goes with each step of the clock, 64 chunks here.
    for id in 0..u64::from(table.pages()) * 2 {
        notify(&table, &store, &prompt(0, 100 + id, 64), both[1], 64);
    }
    assert!(
        store.bytes() < full / 2,
        "{} of {full} bytes left",
        store.bytes()
    );
}

#[test]
fn an_old_chunk_outlives_a_hot_prompt() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 1024));
    let slot = slots(&table, &store, 1)[0];
    let (old, hot) = (prompt(0, 0, 1), prompt(0, 1, 500));
    notify(&table, &store, &old, slot, 1000);
    for _ in 0..200 {
        notify(&table, &store, &hot, slot, 1000);
    }
    assert_eq!(
        matched(&table, &store, &old, slot),
        1,
        "501 of 1000 chunks lose none"
    );
    validate(&table, &store, true);
}

#[test]
fn epochs_wrap() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 64));
    let slot = slots(&table, &store, 1)[0];
    let near = Epoch::new(u32::MAX).after(0).raw() - 40;
    let (mut view, at) = table.read_slots(&store);
    for half in [near / 2, near] {
        view.raise(slot.index, Epoch::new(half));
    }
    assert!(table.write_slots(&store, &view, at));
    for id in 0..60 {
        notify(&table, &store, &prompt(0, id, 4), slot, 64);
        for recent in 0..12.min(id) {
            let chain = prompt(0, id - recent, 4);
            assert_eq!(
                matched(&table, &store, &chain, slot),
                4,
                "{recent} before {id}"
            );
        }
        validate(&table, &store, true);
    }
    let now = table
        .read_ring(&store, slot.index)
        .0
        .unwrap()
        .current()
        .raw();
    assert!(now < 1000, "it went round: {now}");
}

/// Replaces every value whose key contains `part`.
fn spoil(table: &Table, store: &MemoryStore, part: &str, spoil: impl Fn(&mut Vec<u8>)) -> u64 {
    let mut keys = vec!["prefix_router/p/slots".to_owned()];
    keys.extend((0..table.geometry.slots()).map(|n| format!("prefix_router/p/ring/{n}")));
    keys.extend((0..table.pages()).map(|n| format!("prefix_router/p/page/{n}")));
    let mut spoiled = 0;
    for key in keys.iter().filter(|key| key.contains(part)) {
        if let Some(mut value) = store.get(key) {
            spoil(&mut value.bytes);
            store.set(key, &value.bytes, Expect::Any).unwrap();
            spoiled += 1;
        }
    }
    spoiled
}

#[test]
fn junk_counts_as_empty_and_heals() {
    let spoilers: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(5),
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| *bytes = vec![0xff; 9000],
    ];
    for part in ["slots", "ring", "page", "prefix_router"] {
        for spoiler in spoilers {
            let store = MemoryStore::default();
            let table = Table::new("p", geometry(2, 256));
            let slot = slots(&table, &store, 2)[0];
            let chain = prompt(0, 0, 70);
            notify(&table, &store, &chain, slot, 256);
            assert!(spoil(&table, &store, part, spoiler) > 0);
            let before = matched(&table, &store, &chain, slot);
            assert!(before == 0 || part == "ring", "{part}");
            let slot = slots(&table, &store, 2)[0];
            let done = notify(&table, &store, &chain, slot, 256);
            assert_eq!((done.stored, done.dropped), (70, 0), "{part}");
            assert_eq!(matched(&table, &store, &chain, slot), 70, "{part}");
            assert!(table.stats().junk_pages > 0, "{part}");
            assert!(table.forget(&store, slot));
            assert_eq!(matched(&table, &store, &chain, slot), 0, "{part}");
            validate(&table, &store, false);
        }
    }
}

#[test]
fn another_geometry_is_junk() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 256));
    let slot = slots(&table, &store, 1)[0];
    let chain = prompt(0, 0, 40);
    notify(&table, &store, &chain, slot, 256);
    let other = Table::new(
        "p",
        Geometry {
            chunk_bytes: 128,
            ..geometry(2, 256)
        },
    );
    assert_eq!(matched(&other, &store, &chain, slot), 0);
    assert_eq!(other.stats().junk_pages, 1);
    let elsewhere = Table::new("q", geometry(2, 256));
    assert_eq!(matched(&elsewhere, &store, &chain, slot), 0);
    assert_eq!(matched(&table, &store, &chain, slot), 40);
}

#[test]
fn a_hot_prompt_is_not_written_again() {
    struct ReadOnly<'a>(&'a MemoryStore);
    impl SharedStore for ReadOnly<'_> {
        fn get(&self, key: &str) -> Option<Versioned> {
            self.0.get(key)
        }
        fn set(&self, key: &str, _: &[u8], _: Expect) -> Result<(), Conflict> {
            panic!("wrote {key}")
        }
    }
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 8192));
    let slot = slots(&table, &store, 1)[0];
    let chain = prompt(0, 0, 100);
    notify(&table, &store, &chain, slot, 8192);
    notify(&table, &store, &chain, slot, 8192);
    assert_eq!(
        notify(&table, &ReadOnly(&store), &chain, slot, 8192).stored,
        100
    );
}

#[test]
fn a_query_stops_where_no_candidate_is_left() {
    struct Counting<'a>(&'a MemoryStore, Cell<u32>);
    impl SharedStore for Counting<'_> {
        fn get(&self, key: &str) -> Option<Versioned> {
            self.1.set(self.1.get() + 1);
            self.0.get(key)
        }
        fn set(&self, _: &str, _: &[u8], _: Expect) -> Result<(), Conflict> {
            panic!("a query writes nothing")
        }
    }
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 8192));
    let both = slots(&table, &store, 2);
    notify(&table, &store, &prompt(0, 0, 70), both[0], 8192);
    let counting = Counting(&store, Cell::new(0));
    assert_eq!(
        table.query(&counting, &prompt(0, 0, 8000), &both).matched(),
        [70, 0]
    );
    assert_eq!(counting.1.get(), 3, "slots and two pages");
    counting.1.set(0);
    assert_eq!(
        table.query(&counting, &prompt(0, 0, 8000), &[]).matched(),
        [0u32; 0]
    );
    assert_eq!(counting.1.get(), 1, "slots");
}

#[test]
fn a_smaller_capacity_takes_effect_at_once() {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(2, 1024));
    let slot = slots(&table, &store, 1)[0];
    for id in 0..10 {
        notify(&table, &store, &prompt(0, id, 100), slot, 1024);
    }
    let done = notify(&table, &store, &prompt(0, 10, 10), slot, 200);
    assert_eq!(done.stored, 10);
    assert!(table.occupancy(&store, slot) <= 200);
    validate(&table, &store, true);
}
