//! Random operations against an exact LRU that knows when each chunk was last touched.

use super::*;
use proptest::prelude::*;

/// A pod's chunks with the number of the operation that last touched them.
#[derive(Debug, Default, Clone)]
struct ExactPod {
    touched: BTreeMap<u64, usize>,
}

impl ExactPod {
    fn matched(&self, chain: &[ChunkHash]) -> u32 {
        chain
            .iter()
            .take_while(|c| self.touched.contains_key(&c.0))
            .count() as u32
    }
}

#[derive(Debug, Clone)]
enum Op {
    Notify {
        pod: usize,
        prompt: Vec<u64>,
    },
    /// Takes the nth last notify back.
    Undo(usize),
    Forget(usize),
    /// Comes up with a pod of another name, while this one is gone.
    Replace(usize),
}

/// Prompts from a small tree: runs of chunks that are shared or part anywhere.
fn prompts() -> impl Strategy<Value = Vec<u64>> {
    let piece = (0u64..4, 1usize..24).prop_map(|(symbol, len)| vec![symbol; len]);
    prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat())
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (0usize..3, prompts()).prop_map(|(pod, prompt)| Op::Notify { pod, prompt }),
        4 => (0usize..4).prop_map(Op::Undo),
        1 => (0usize..3).prop_map(Op::Forget),
        1 => (0usize..3).prop_map(Op::Replace),
    ];
    prop::collection::vec(op, 1..60)
}

struct Pod {
    name: usize,
    slot: Slot,
    exact: ExactPod,
}

struct Undoable {
    name: usize,
    chain: Vec<ChunkHash>,
    receipt: Option<Receipt>,
    inserted: Vec<u64>,
    at: usize,
}

/// Runs `ops`; `capacity` is that of every pod.
fn run(ops: Vec<Op>, capacity: u32, max_pods: u16) {
    let store = MemoryStore::default();
    let table = Table::new("p", geometry(max_pods, 512));
    let mut pods: Vec<Pod> = slots(&table, &store, 3)
        .into_iter()
        .enumerate()
        .map(|(name, slot)| Pod {
            name,
            slot,
            exact: ExactPod::default(),
        })
        .collect();
    let mut next_name = pods.len();
    let mut undoable: Vec<Undoable> = Vec::new();
    for (now, op) in ops.into_iter().enumerate() {
        match op {
            Op::Notify { pod, prompt } => {
                let chain = chain(prompt);
                let pod = &mut pods[pod];
                let done = notify(&table, &store, &chain, pod.slot, capacity);
                let kept = &chain[..chain.len().min(capacity as usize)];
                assert_eq!(
                    (done.stored as usize, done.dropped),
                    (kept.len(), 0),
                    "T2: the first C"
                );
                let mut inserted = Vec::new();
                for chunk in kept {
                    if pod.exact.touched.insert(chunk.0, now).is_none() {
                        inserted.push(chunk.0);
                    }
                }
                settle(&table, &store, pod, capacity, kept.len(), done.evicted, now);
                undoable.push(Undoable {
                    name: pod.name,
                    chain,
                    receipt: done.receipt,
                    inserted,
                    at: now,
                });
            }
            Op::Undo(back) => {
                let Some(at) = undoable.len().checked_sub(back + 1) else {
                    continue;
                };
                let Undoable {
                    name,
                    chain,
                    receipt,
                    inserted,
                    at,
                } = undoable.remove(at);
                let removed = receipt.map_or(0, |receipt| table.undo(&store, &chain, receipt));
                let Some(pod) = pods.iter_mut().find(|pod| pod.name == name) else {
                    assert!(removed == 0 || max_pods > 3, "T8: its slot is another's");
                    continue;
                };
                let before = pod.exact.touched.len();
                let untouched = |c: &u64| pod.exact.touched.get(c) == Some(&at);
                let gone: Vec<u64> = inserted.into_iter().filter(untouched).collect();
                pod.exact.touched.retain(|c, _| !gone.contains(c));
                assert_eq!(removed as usize, before - pod.exact.touched.len(), "T8");
            }
            Op::Forget(pod) => {
                assert!(table.forget(&store, pods[pod].slot));
                pods[pod].exact = ExactPod::default();
                assert_eq!(table.occupancy(&store, pods[pod].slot), 0, "T7");
            }
            Op::Replace(at) => {
                let name = next_name;
                next_name += 1;
                let mut live: Vec<PodKey> = pods.iter().map(|p| super::pod(p.name)).collect();
                live[at] = super::pod(name);
                let slot = table
                    .slot(&store, live[at], &live)
                    .expect("a slot of the gone");
                let old = std::mem::replace(
                    &mut pods[at],
                    Pod {
                        name,
                        slot,
                        exact: ExactPod::default(),
                    },
                );
                let still = table.read_slots(&store).0.find(super::pod(old.name));
                assert!(still.is_none() || max_pods > 3, "its slot was taken");
            }
        }
        validate(&table, &store, true);
        for pod in &pods {
            let held = pod.exact.touched.len() as u32;
            assert_eq!(table.occupancy(&store, pod.slot), held);
            for chain in undoable.iter().map(|u| &u.chain) {
                assert_eq!(
                    matched(&table, &store, chain, pod.slot),
                    pod.exact.matched(chain),
                    "T3"
                );
            }
        }
        // All pods in one query give the same answers (T6: from a table that has just started).
        let other = Table::new("p", geometry(max_pods, 512));
        let all: Vec<Slot> = pods.iter().map(|p| p.slot).collect();
        if let Some(last) = undoable.last() {
            let exact: Vec<u32> = pods.iter().map(|p| p.exact.matched(&last.chain)).collect();
            assert_eq!(other.query(&store, &last.chain, &all).matched(), exact);
        }
    }
    assert_eq!(
        table.stats(),
        Stats {
            overflows: table.stats().overflows,
            ..Stats::default()
        }
    );
}

/// Checks what the notify evicted against the model, and takes it out there.
fn settle(
    table: &Table,
    store: &MemoryStore,
    pod: &mut Pod,
    capacity: u32,
    prompt: usize,
    evicted: u32,
    now: usize,
) {
    let alive = alive(table, store)
        .remove(&pod.slot.index)
        .unwrap_or_default();
    let full = pod.exact.touched.len();
    if full <= capacity as usize {
        assert_eq!(evicted, 0, "under capacity nothing goes");
        assert_eq!(alive.len(), full);
        return;
    }
    assert!(alive.len() <= capacity as usize, "T2: at most C");
    let least = (capacity - capacity / 8) as usize;
    assert!(
        alive.len() + prompt >= least,
        "T2: {} kept of {capacity}",
        alive.len()
    );
    let gone: Vec<u64> = pod
        .exact
        .touched
        .keys()
        .filter(|c| !alive.contains_key(c))
        .copied()
        .collect();
    assert_eq!(gone.len() as u32, evicted);
    let newest_gone = gone
        .iter()
        .map(|c| pod.exact.touched[c])
        .max()
        .expect("some");
    pod.exact.touched.retain(|c, _| !gone.contains(c));
    let oldest_kept = pod.exact.touched.values().min().expect("some");
    assert!(
        newest_gone <= *oldest_kept && newest_gone < now,
        "T4: {newest_gone} went before {oldest_kept}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_as_an_exact_lru(ops in ops(), capacity in 1u32..=512) {
        run(ops, capacity, 8);
    }

    #[test]
    fn answers_as_an_exact_lru_when_slots_are_scarce(ops in ops(), capacity in 200u32..=512) {
        run(ops, capacity, 3);
    }
}
