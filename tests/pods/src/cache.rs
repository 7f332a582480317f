//! The prefix cache: a fixed number of blocks, named by the hash of all tokens up to their end.
//!
//! As in vLLM, a block is pinned while a request uses it; afterwards it keeps its name and waits
//! in a queue of free blocks, oldest first, until it is taken for something else. A request puts
//! its blocks back tail first, so that the tail of a prompt is lost before its head.
//!
//! Invariant: a block is in the free queue exactly when no request pins it, and a name belongs to
//! one block ([`KvCache::validate`]). Cost: O(log n) a block.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Default)]
struct Block {
    name: Option<u64>,
    pins: u32,
    /// Place in the free queue, when not pinned.
    freed_at: u64,
}

/// The blocks that one request has pinned, in prompt order.
#[derive(Debug, Default)]
pub struct Lease {
    blocks: Vec<u32>,
    hits: usize,
}

impl Lease {
    /// Leading blocks that were found in the cache.
    pub fn hits(&self) -> usize {
        self.hits
    }
}

/// The block pool of one pod.
pub struct KvCache {
    blocks: Vec<Block>,
    by_name: HashMap<u64, u32>,
    free: BTreeMap<u64, u32>,
    clock: u64,
}

impl KvCache {
    /// An empty cache of `num_blocks` blocks.
    pub fn new(num_blocks: usize) -> Self {
        let blocks = (0..num_blocks as u64).map(|i| Block {
            freed_at: i,
            ..Block::default()
        });
        Self {
            blocks: blocks.collect(),
            by_name: HashMap::new(),
            free: (0..num_blocks).map(|i| (i as u64, i as u32)).collect(),
            clock: num_blocks as u64,
        }
    }

    /// Number of blocks in all.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks pinned by requests.
    pub fn pinned(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Blocks that hold something that can be found.
    pub fn named(&self) -> usize {
        self.by_name.len()
    }

    /// Leading blocks of `chain` that are present; touches nothing.
    pub fn lookup(&self, chain: &[u64]) -> usize {
        chain
            .iter()
            .take_while(|name| self.by_name.contains_key(name))
            .count()
    }

    /// Pins `total` blocks for a prompt: the leading hits of `chain` (at most `max_hits`), then
    /// blocks taken from the free queue. `None`, and nothing changed, when too few are free.
    pub fn begin(&mut self, chain: &[u64], max_hits: usize, total: usize) -> Option<Lease> {
        let hits: Vec<u32> = chain
            .iter()
            .take(max_hits.min(total))
            .map_while(|n| self.by_name.get(n).copied())
            .collect();
        let idle_hits = hits
            .iter()
            .filter(|&&b| self.blocks[b as usize].pins == 0)
            .count();
        if self.free.len() - idle_hits < total - hits.len() {
            return None;
        }
        let mut lease = Lease {
            hits: hits.len(),
            blocks: hits,
        };
        for &block in &lease.blocks {
            self.pin(block);
        }
        while lease.blocks.len() < total {
            lease.blocks.extend(self.take());
        }
        Some(lease)
    }

    /// Names the blocks of a lease whose content has been computed. A name that another block
    /// already has stays with that one.
    pub fn commit(&mut self, lease: &Lease, chain: &[u64]) {
        for (&block, &name) in lease.blocks.iter().zip(chain) {
            let slot = &mut self.blocks[block as usize];
            if slot.name.is_none() && !self.by_name.contains_key(&name) {
                slot.name = Some(name);
                self.by_name.insert(name, block);
            }
        }
    }

    /// Grows a lease to `total` blocks, as far as blocks are free.
    pub fn extend(&mut self, lease: &mut Lease, total: usize) {
        while lease.blocks.len() < total {
            match self.take() {
                Some(block) => lease.blocks.push(block),
                None => return,
            }
        }
    }

    /// Gives the blocks of a lease back, tail first.
    pub fn release(&mut self, lease: Lease) {
        for &block in lease.blocks.iter().rev() {
            let slot = &mut self.blocks[block as usize];
            slot.pins -= 1;
            if slot.pins == 0 {
                slot.freed_at = self.clock;
                self.free.insert(self.clock, block);
                self.clock += 1;
            }
        }
    }

    fn pin(&mut self, block: u32) {
        let slot = &mut self.blocks[block as usize];
        if slot.pins == 0 {
            self.free.remove(&slot.freed_at);
        }
        slot.pins += 1;
    }

    /// Takes the block that has been free for the longest, and its name with it.
    fn take(&mut self) -> Option<u32> {
        let (_, block) = self.free.pop_first()?;
        let slot = &mut self.blocks[block as usize];
        slot.pins = 1;
        if let Some(name) = slot.name.take() {
            self.by_name.remove(&name);
        }
        Some(block)
    }

    /// Panics when an invariant is broken. O(n), for tests.
    pub fn validate(&self) {
        for (i, block) in self.blocks.iter().enumerate() {
            let queued = self.free.get(&block.freed_at) == Some(&(i as u32));
            assert_eq!(
                queued,
                block.pins == 0,
                "block {i} is free or pinned, not both"
            );
            if let Some(name) = block.name {
                assert_eq!(
                    self.by_name.get(&name),
                    Some(&(i as u32)),
                    "block {i} is found by its name"
                );
            }
        }
        let named = self.blocks.iter().filter(|b| b.name.is_some()).count();
        assert_eq!(named, self.by_name.len(), "every name has its block");
        assert_eq!(
            self.free.len(),
            self.blocks.iter().filter(|b| b.pins == 0).count()
        );
    }
}

#[cfg(test)]
mod tests;
