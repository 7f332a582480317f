//! The core without Envoy: reading a prompt, looking it up, storing it.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use prefix_router::chunk::ChunkHash;
use prefix_router::prompt::{self, Api, Extent};
use prefix_router::store::MemoryStore;
use prefix_router::table::{Geometry, PodKey, Slot, Table};
use std::hint::black_box;

const GEOMETRY: Geometry = Geometry {
    chunk_bytes: 256,
    max_pods: 64,
    max_capacity_chunks: 32_768,
};

fn chat(size: usize) -> Vec<u8> {
    let text = "some words of a prompt with a line break\\nnow and then ".repeat(46);
    let mut body = String::from(r#"{"model":"m","messages":[{"role":"system","content":"s"}"#);
    while body.len() < size {
        body.push_str(&format!(r#",{{"role":"user","content":"{text}"}}"#));
    }
    body.push_str("]}");
    body.into_bytes()
}

fn chain(seed: u64, length: u64) -> Vec<ChunkHash> {
    let step = |n: u64| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(n + 1);
    (0..length)
        .map(|n| ChunkHash(step(n).wrapping_mul(0xD6E8_FEB8_6659_FD93)))
        .collect()
}

/// A table with `pods` pods that hold `chunks` chunks altogether.
fn filled(store: &MemoryStore, pods: usize, chunks: u64) -> (Table, Vec<Slot>) {
    let table = Table::new("bench", GEOMETRY);
    let names: Vec<String> = (0..pods).map(|n| format!("vllm-{n}")).collect();
    let live: Vec<PodKey> = names.iter().map(|name| PodKey::of(name)).collect();
    let slots: Vec<Slot> = live
        .iter()
        .filter_map(|pod| table.slot(store, *pod, &live))
        .collect();
    for (n, slot) in (0..chunks / 400).zip(slots.iter().cycle()) {
        let prompt = chain(1_000_000 + n, 400);
        let query = table.query(store, &prompt, &slots);
        table.notify(store, &prompt, *slot, 32_768, query);
    }
    (table, slots)
}

fn prompts(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    for size in [1_000, 16_000, 100_000, 500_000] {
        let body = chat(size);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(format!("{} KB", size / 1000), |b| {
            b.iter(|| prompt::read(Api::Chat, black_box(&body), Extent::Whole, 256));
        });
    }
}

fn tables(c: &mut Criterion) {
    let mut group = c.benchmark_group("query and notify of 400 chunks");
    group.sample_size(30);
    for (pods, chunks) in [
        (2, 1_000),
        (16, 1_000),
        (16, 131_072),
        (16, 500_000),
        (64, 500_000),
    ] {
        let store = MemoryStore::default();
        let (table, slots) = filled(&store, pods, chunks);
        let mut n = 0;
        group.bench_function(format!("next turn, {pods} pods, {chunks} stored"), |b| {
            let mut turn = 0;
            b.iter(|| {
                turn += 1;
                let mut prompt = chain(turn % 50, 390);
                prompt.extend(chain(10_000 + turn, 10));
                let query = table.query(&store, &prompt, &slots);
                table.notify(&store, &prompt, slots[0], 32_768, query)
            });
        });
        group.bench_function(format!("cold, {pods} pods, {chunks} stored"), |b| {
            b.iter(|| {
                n += 1;
                let prompt = chain(n << 20, 400);
                let query = table.query(&store, &prompt, &slots);
                table.notify(&store, &prompt, slots[n as usize % pods], 32_768, query)
            });
        });
    }
}

criterion_group!(benches, prompts, tables);
criterion_main!(benches);
