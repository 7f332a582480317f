//! The ring by itself.

use super::*;

fn pod() -> PodKey {
    PodKey::of("vllm-0")
}

/// Inserts `n` new chunks and returns their stamps.
fn insert(ring: &mut Ring, n: usize, capacity: u32) -> Vec<Stamp> {
    let reserved = ring.reserve(&vec![None; n], capacity);
    ring.validate();
    assert!(ring.total() <= capacity);
    reserved.targets
}

fn had(stamps: &[Stamp]) -> Vec<Option<Stamp>> {
    stamps.iter().copied().map(Some).collect()
}

#[test]
fn survives_encoding() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    insert(&mut ring, 100, 160);
    let bytes = ring.encode(3);
    assert!(bytes.len() <= RING_MAX);
    assert_eq!(Ring::decode(3, &bytes), Some(ring));
    assert_eq!(Ring::decode(4, &bytes), None);
    assert_eq!(Ring::decode(3, &[]), None);
}

#[test]
fn the_head_is_never_older_than_the_tail() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    let stamps = insert(&mut ring, 25, 160);
    assert!(stamps.windows(2).all(|pair| pair[0].covers(pair[1])));
    assert_eq!(stamps[0].epoch().since(stamps[24].epoch()), 2);
    assert_eq!(
        ring.buckets().iter().map(|b| b.count).collect::<Vec<_>>(),
        [10, 10, 5]
    );
}

#[test]
fn a_touch_in_the_same_epoch_writes_nothing() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    let stamps = insert(&mut ring, 4, 160);
    let before = ring.clone();
    let again = ring.reserve(&had(&stamps), 160);
    assert!(!again.changed);
    assert_eq!(ring, before);
    assert!(again
        .targets
        .iter()
        .all(|s| *s == Stamp::new(before.current(), true)));
}

#[test]
fn eviction_takes_the_oldest_grain() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    let first = insert(&mut ring, 10, 160);
    insert(&mut ring, 150, 160);
    let reserved = ring.reserve(&[None], 160);
    assert_eq!((reserved.evicted, ring.total()), (10, 151));
    assert!(first[0].epoch().is_before(ring.floor()));
}

#[test]
fn a_prompt_as_large_as_the_pod_replaces_all_but_itself() {
    for capacity in [1u32, 2, 15, 16, 17, 160, 1000] {
        let mut ring = Ring::new(pod(), Epoch::new(5));
        insert(&mut ring, 3.min(capacity as usize), capacity);
        let stamps = insert(&mut ring, capacity as usize, capacity);
        assert_eq!(ring.total(), capacity);
        assert!(stamps.iter().all(|s| s.covers(Stamp::floor(ring.floor()))));
    }
}

#[test]
fn merging_never_loses_an_old_chunk() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    insert(&mut ring, 1, 160);
    let mut hot = insert(&mut ring, 100, 160);
    for _ in 0..1000 {
        let reserved = ring.reserve(&had(&hot), 160);
        ring.validate();
        assert_eq!((reserved.evicted, ring.total()), (0, 101));
        hot = reserved.targets;
    }
    assert_eq!(ring.floor(), Epoch::new(5));
    assert!(ring.buckets().iter().all(|bucket| bucket.count <= 10));
}

#[test]
fn what_is_too_old_to_compare_is_dropped() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    insert(&mut ring, 1, 160);
    let far = ring.current().after(MAX_SPAN);
    ring.buckets.push(Bucket {
        start: far,
        count: 10,
    });
    let reserved = ring.reserve(&[None], 160);
    ring.validate();
    assert_eq!((reserved.evicted, ring.total()), (1, 11));
    assert_eq!(ring.floor(), far);
}

#[test]
fn a_smaller_capacity_evicts_down_to_it() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    insert(&mut ring, 1600, 1600);
    ring.reserve(&[None], 160);
    ring.validate();
    assert!(ring.total() <= 160 && ring.total() >= 1);
}

#[test]
fn sweeping_keeps_pace_with_the_clock() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    assert_eq!(ring.advance_sweep(0, 10), (0, 0));
    assert_eq!(ring.advance_sweep(1, 10), (0, 1));
    assert_eq!(ring.advance_sweep(17, 10), (1, 1));
    assert_eq!(ring.advance_sweep((SWEEP_SPAN / 4) as u32, 10), (2, 3));
    assert_eq!(ring.advance_sweep(u32::MAX, 10), (5, 10));
}

#[test]
fn a_watermark_ahead_of_the_floor_is_caught_up_with() {
    let mut ring = Ring::new(pod(), Epoch::new(5));
    insert(&mut ring, 25, 160);
    ring.raise(Epoch::new(6));
    assert_eq!((ring.floor(), ring.total()), (Epoch::new(6), 15));
    ring.raise(Epoch::new(100));
    assert_eq!((ring.current(), ring.total()), (Epoch::new(100), 0));
    ring.raise(Epoch::new(50));
    assert_eq!(ring.floor(), Epoch::new(100));
}
