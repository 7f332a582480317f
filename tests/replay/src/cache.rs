//! A set of prefix blocks of bounded size that evicts the least recently used one.
//!
//! Owns the blocks of one pod as vLLM keeps them: pinned while a request uses them, afterwards
//! given back tail first, so that the tail of a prompt is evicted before its head. The peers'
//! tables are the same set without pins ([`BlockCache::touch`]).
//! Invariant: named blocks and anonymous ones together are at most the capacity; the list holds
//! exactly the named blocks that nobody pins ([`BlockCache::validate`]). Cost: O(1) a block.

use rustc_hash::FxHashMap;

/// A block by the prefix that ends with it.
pub type BlockId = u32;

const NONE: u32 = u32::MAX;
/// Ends of the list of unpinned blocks: `OLDEST.next` is evicted first.
const LIST: u32 = 0;

#[derive(Clone, Copy)]
struct Node {
    id: BlockId,
    pins: u32,
    prev: u32,
    next: u32,
}

/// See the module.
pub struct BlockCache {
    capacity: usize,
    by_id: FxHashMap<BlockId, u32>,
    nodes: Vec<Node>,
    unused: Vec<u32>,
    /// Pinned blocks without a name: being computed, or of an answer.
    anonymous: usize,
    idle: usize,
}

impl BlockCache {
    /// An empty cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let ends = Node {
            id: NONE,
            pins: 1,
            prev: LIST,
            next: LIST,
        };
        Self {
            capacity,
            by_id: FxHashMap::default(),
            nodes: vec![ends],
            unused: Vec::new(),
            anonymous: 0,
            idle: 0,
        }
    }

    /// Number of blocks that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that cannot be evicted now.
    pub fn pinned(&self) -> usize {
        self.by_id.len() - self.idle + self.anonymous
    }

    /// Whether a block is there.
    pub fn holds(&self, id: BlockId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Leading blocks of `chain` that are there; touches nothing.
    pub fn lookup(&self, chain: &[BlockId]) -> usize {
        chain.iter().take_while(|id| self.holds(**id)).count()
    }

    /// Pins `total` blocks for a prompt: the leading hits of `chain`, at most `max_hits`, and
    /// anonymous ones. Returns the hits; `None`, and nothing changed, when too few are free.
    pub fn begin(&mut self, chain: &[BlockId], max_hits: usize, total: usize) -> Option<usize> {
        let mut hits = 0;
        for id in chain.iter().take(max_hits.min(total)) {
            let Some(&node) = self.by_id.get(id) else {
                break;
            };
            self.pin(node);
            hits += 1;
        }
        let fresh = total - hits;
        if self.pinned() + fresh > self.capacity {
            self.unpin(&chain[..hits]);
            return None;
        }
        while self.by_id.len() + self.anonymous + fresh > self.capacity {
            self.evict();
        }
        self.anonymous += fresh;
        Some(hits)
    }

    /// Names the anonymous blocks behind the first `hits`: they have been computed.
    pub fn commit(&mut self, chain: &[BlockId], hits: usize) {
        for id in &chain[hits..] {
            self.anonymous -= 1;
            match self.by_id.get(id) {
                Some(&node) => self.pin(node),
                None => {
                    let node = Node {
                        id: *id,
                        pins: 1,
                        prev: NONE,
                        next: NONE,
                    };
                    let place = match self.unused.pop() {
                        Some(place) => {
                            self.nodes[place as usize] = node;
                            place
                        }
                        None => {
                            self.nodes.push(node);
                            self.nodes.len() as u32 - 1
                        }
                    };
                    self.by_id.insert(*id, place);
                }
            }
        }
    }

    /// Gives back the blocks of a prompt, tail first, and `anonymous` ones.
    pub fn release(&mut self, chain: &[BlockId], anonymous: usize) {
        self.anonymous -= anonymous;
        self.unpin(chain);
    }

    /// Puts a prompt in as the most recently used one: at most the first `capacity` blocks.
    pub fn touch(&mut self, chain: &[BlockId]) {
        let chain = &chain[..chain.len().min(self.capacity)];
        if let Some(hits) = self.begin(chain, chain.len(), chain.len()) {
            self.commit(chain, hits);
            self.unpin(chain);
        }
    }

    fn pin(&mut self, node: u32) {
        let Node {
            pins, prev, next, ..
        } = self.nodes[node as usize];
        if pins == 0 {
            self.nodes[prev as usize].next = next;
            self.nodes[next as usize].prev = prev;
            self.idle -= 1;
        }
        self.nodes[node as usize].pins += 1;
    }

    fn unpin(&mut self, chain: &[BlockId]) {
        for id in chain.iter().rev() {
            let node = self.by_id[id];
            let pins = self.nodes[node as usize].pins - 1;
            self.nodes[node as usize].pins = pins;
            if pins == 0 {
                let newest = self.nodes[LIST as usize].prev;
                self.nodes[newest as usize].next = node;
                self.nodes[LIST as usize].prev = node;
                let node = &mut self.nodes[node as usize];
                (node.prev, node.next) = (newest, LIST);
                self.idle += 1;
            }
        }
    }

    fn evict(&mut self) {
        let oldest = self.nodes[LIST as usize].next;
        self.pin(oldest);
        self.by_id.remove(&self.nodes[oldest as usize].id);
        self.unused.push(oldest);
    }

    /// Panics when an invariant is broken. O(n), for tests.
    pub fn validate(&self) {
        assert!(self.by_id.len() + self.anonymous <= self.capacity);
        let (mut at, mut idle) = (self.nodes[LIST as usize].next, 0);
        while at != LIST {
            let node = self.nodes[at as usize];
            assert_eq!(self.by_id.get(&node.id), Some(&at));
            assert_eq!(node.pins, 0);
            (at, idle) = (node.next, idle + 1);
        }
        assert_eq!(idle, self.idle);
        let unpinned = self.by_id.values().map(|n| self.nodes[*n as usize].pins);
        assert_eq!(unpinned.filter(|pins| *pins == 0).count(), idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_goes_before_the_head_and_the_oldest_prompt_first() {
        let mut cache = BlockCache::new(6);
        cache.touch(&[1, 2, 3]);
        cache.touch(&[4, 5, 6]);
        cache.touch(&[1, 7]);
        cache.validate();
        assert_eq!(cache.lookup(&[1, 2, 3]), 2, "the oldest tail is gone");
        assert_eq!(cache.lookup(&[4, 5, 6]), 3);
        cache.touch(&[8, 9, 10, 11]);
        cache.validate();
        let held: Vec<_> = (1..12).filter(|id| cache.holds(*id)).collect();
        assert_eq!(held, [1, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn what_runs_is_never_evicted_and_what_does_not_fit_waits() {
        let mut cache = BlockCache::new(5);
        assert_eq!(cache.begin(&[1, 2], 2, 3), Some(0));
        cache.commit(&[1, 2], 0);
        assert_eq!(cache.begin(&[1, 3, 4], 3, 4), None, "3 more than 2");
        assert_eq!(cache.begin(&[1, 3], 2, 3), Some(1));
        cache.validate();
        cache.commit(&[1, 3], 1);
        assert_eq!(cache.pinned(), 5);
        cache.release(&[1, 2], 1);
        assert_eq!(cache.pinned(), 3, "the shared head stays pinned");
        cache.release(&[1, 3], 1);
        cache.validate();
        assert_eq!((cache.pinned(), cache.lookup(&[1, 2])), (0, 2));
    }

    #[test]
    fn a_prompt_longer_than_the_table_keeps_its_head() {
        let mut cache = BlockCache::new(2);
        cache.touch(&[1, 2, 3, 4]);
        assert_eq!(cache.lookup(&[1, 2, 3, 4]), 2);
    }
}
