//! The tables against a naive exact model, and against crashes, races and junk.

mod crash;
mod model;
mod races;
mod scenarios;

use super::epoch::{Epoch, Stamp};
use super::wire::mix;
use super::*;
use crate::chunk::ChunkHash;
use crate::store::{Conflict, MemoryStore};
use std::collections::{BTreeMap, BTreeSet};

fn geometry(max_pods: u16, max_capacity_chunks: u32) -> Geometry {
    Geometry {
        chunk_bytes: 256,
        max_pods,
        max_capacity_chunks,
    }
}

fn pod(number: usize) -> PodKey {
    PodKey::of(&format!("vllm-{number}"))
}

/// The cumulative hashes of a prompt given as one symbol per chunk.
fn chain(symbols: impl IntoIterator<Item = u64>) -> Vec<ChunkHash> {
    let mut hash = 1;
    let step = |symbol| {
        hash = mix(hash ^ mix(symbol + 1));
        ChunkHash(hash)
    };
    symbols.into_iter().map(step).collect()
}

/// Prompt number `id` that shares `shared` chunks with all others.
fn prompt(shared: usize, id: u64, len: usize) -> Vec<ChunkHash> {
    chain((0..len as u64).map(|i| {
        if i < shared as u64 {
            i
        } else {
            (id + 1) << 32 | i
        }
    }))
}

fn notify(
    table: &Table,
    store: &dyn SharedStore,
    chain: &[ChunkHash],
    slot: Slot,
    capacity: u32,
) -> Notified {
    let query = table.query(store, chain, &[slot]);
    table.notify(store, chain, slot, capacity, query)
}

fn matched(table: &Table, store: &dyn SharedStore, chain: &[ChunkHash], slot: Slot) -> u32 {
    table.query(store, chain, &[slot]).matched()[0]
}

fn slots(table: &Table, store: &dyn SharedStore, number: usize) -> Vec<Slot> {
    let live: Vec<PodKey> = (0..number).map(pod).collect();
    live.iter()
        .map(|p| table.slot(store, *p, &live).expect("a slot"))
        .collect()
}

/// Chunks alive in the pages, by slot, with their newest stamp.
fn alive(table: &Table, store: &dyn SharedStore) -> BTreeMap<u8, BTreeMap<u64, Stamp>> {
    let (view, _) = table.read_slots(store);
    let mut alive: BTreeMap<u8, BTreeMap<u64, Stamp>> = BTreeMap::new();
    for number in 0..table.pages() {
        let (page, _) = table.read_page(store, number);
        page.validate();
        for run in page.runs() {
            for mark in run.marks().filter(|m| m.stamp.covers(view.floor(m.slot))) {
                let chunks = alive.entry(mark.slot).or_default();
                for hash in run.hashes().take(mark.len) {
                    let known = chunks.entry(hash).or_insert(mark.stamp);
                    if mark.stamp.covers(*known) {
                        *known = mark.stamp;
                    }
                }
            }
        }
    }
    alive
}

/// Every invariant of the shared values. `exact`: nothing raced or crashed, so the counts fit.
fn validate(table: &Table, store: &MemoryStore, exact: bool) {
    let footprint = table.footprint();
    assert!(
        store.keys() as u64 <= footprint.keys && store.bytes() as u64 <= footprint.bytes,
        "T1"
    );
    let (view, _) = table.read_slots(store);
    let owners: Vec<u64> = view
        .entries()
        .iter()
        .map(|e| e.owner)
        .filter(|o| *o != 0)
        .collect();
    assert_eq!(
        owners.iter().collect::<BTreeSet<_>>().len(),
        owners.len(),
        "one slot per pod"
    );
    let alive = alive(table, store);
    for (index, entry) in view
        .entries()
        .iter()
        .enumerate()
        .filter(|(_, e)| e.owner != 0)
    {
        let index = index as u8;
        let nothing = BTreeMap::new();
        let chunks = alive.get(&index).unwrap_or(&nothing);
        let (ring, _) = table.read_ring(store, index);
        let Some(ring) = ring.filter(|ring| ring.belongs_to(PodKey(entry.owner))) else {
            // A slot that was about to change hands; the next notify for either mends it.
            assert!(!exact || chunks.is_empty(), "chunks without a ring");
            continue;
        };
        ring.validate();
        // What a ring evicted is dead for readers, but for a crash in between, which heals.
        assert!(!exact || !entry.watermark.is_before(ring.floor()));
        let living = |from: Epoch| {
            chunks
                .values()
                .filter(|s| s.covers(Stamp::floor(from)))
                .count()
        };
        let mut counted = 0;
        for bucket in ring.buckets().iter().rev() {
            counted += bucket.count as usize;
            let living = living(bucket.start);
            assert!(
                counted >= living,
                "counted {counted} of {living} since {:?}: {ring:?}",
                bucket.start
            );
            assert!(
                !exact || counted == living,
                "counted {counted} for {living}: {ring:?}"
            );
        }
        let newest = Stamp::new(ring.current(), true);
        assert!(
            chunks.values().all(|s| newest.covers(*s)),
            "from the future"
        );
    }
}
