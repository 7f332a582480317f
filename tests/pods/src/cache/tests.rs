use super::*;
use proptest::prelude::*;

fn prompt(id: u64, blocks: usize) -> Vec<u64> {
    (0..blocks as u64).map(|i| id * 1000 + i).collect()
}

/// One request from start to end.
fn run(cache: &mut KvCache, chain: &[u64]) -> usize {
    let lease = cache.begin(chain, usize::MAX, chain.len()).unwrap();
    let hits = lease.hits();
    cache.commit(&lease, chain);
    cache.release(lease);
    cache.validate();
    hits
}

#[test]
fn a_prefix_is_found_and_only_a_prefix() {
    let mut cache = KvCache::new(10);
    assert_eq!(run(&mut cache, &prompt(1, 4)), 0);
    assert_eq!(run(&mut cache, &prompt(1, 6)), 4);
    assert_eq!(
        cache.lookup(&[1001, 1002]),
        2,
        "names are of whole prefixes, so any name is found"
    );
    assert_eq!(
        cache.lookup(&[1000, 7, 1002]),
        1,
        "the first gap ends the match"
    );
}

#[test]
fn nothing_is_found_before_it_is_computed() {
    let mut cache = KvCache::new(10);
    let chain = prompt(1, 4);
    let lease = cache.begin(&chain, 4, 4).unwrap();
    assert_eq!(cache.lookup(&chain), 0);
    cache.release(lease);
    assert_eq!(cache.lookup(&chain), 0, "an aborted prefill leaves nothing");
}

#[test]
fn the_least_recently_used_prompt_goes_first() {
    let mut cache = KvCache::new(12);
    for id in 1..=3 {
        run(&mut cache, &prompt(id, 4));
    }
    run(&mut cache, &prompt(1, 4));
    run(&mut cache, &prompt(4, 4));
    let kept: Vec<usize> = (1..=4).map(|id| cache.lookup(&prompt(id, 4))).collect();
    assert_eq!(kept, [4, 0, 4, 4]);
}

#[test]
fn the_tail_of_a_prompt_goes_before_its_head() {
    let mut cache = KvCache::new(8);
    run(&mut cache, &prompt(1, 8));
    run(&mut cache, &prompt(2, 3));
    assert_eq!(cache.lookup(&prompt(1, 8)), 5);
    let kept: Vec<bool> = prompt(1, 8)
        .iter()
        .map(|n| cache.lookup(&[*n]) == 1)
        .collect();
    assert_eq!(kept, [true, true, true, true, true, false, false, false]);
}

#[test]
fn pinned_blocks_stay() {
    let mut cache = KvCache::new(8);
    let chain = prompt(1, 4);
    let running = cache.begin(&chain, 4, 4).unwrap();
    cache.commit(&running, &chain);
    for id in 2..9 {
        run(&mut cache, &prompt(id, 4));
    }
    assert_eq!(cache.lookup(&chain), 4);
    assert!(cache.begin(&prompt(9, 5), 5, 5).is_none(), "four are free");
    let shared = cache.begin(&chain, 4, 4).unwrap();
    cache.release(running);
    assert_eq!(cache.pinned(), 4, "the second request still pins them");
    cache.release(shared);
    assert_eq!(cache.pinned(), 0);
    cache.validate();
}

#[test]
fn hits_are_never_taken_to_make_room_for_the_same_prompt() {
    let mut cache = KvCache::new(4);
    run(&mut cache, &prompt(1, 3));
    assert!(cache.begin(&prompt(1, 5), 5, 5).is_none());
    assert_eq!(
        cache.lookup(&prompt(1, 3)),
        3,
        "a refused request changes nothing"
    );
    assert_eq!(run(&mut cache, &prompt(1, 4)), 3);
}

/// The same rules, told naively: a list of unpinned blocks, oldest first.
#[derive(Default)]
struct Model {
    free: Vec<Option<u64>>,
}

impl Model {
    fn run(&mut self, chain: &[u64]) -> usize {
        let hits = chain
            .iter()
            .take_while(|n| self.free.contains(&Some(**n)))
            .count();
        self.free
            .retain(|slot| !chain[..hits].iter().any(|n| *slot == Some(*n)));
        self.free.drain(..chain.len() - hits);
        let named: Vec<Option<u64>> = chain
            .iter()
            .map(|n| (!self.free.contains(&Some(*n))).then_some(*n))
            .collect();
        self.free.extend(named.into_iter().rev());
        hits
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn agrees_with_a_naive_model(
        capacity in 8usize..40,
        requests in prop::collection::vec((0u64..6, 1usize..8), 1..60),
    ) {
        let mut cache = KvCache::new(capacity);
        let mut model = Model { free: vec![None; capacity] };
        for (id, len) in requests {
            let chain = prompt(id, len);
            prop_assert_eq!(run(&mut cache, &chain), model.run(&chain));
        }
    }
}
