//! Time: who runs, who waits, how long prefill and decode take.
//!
//! A request waits for one of `max_num_seqs` slots, then in arrival order for the single prefill,
//! where it looks the cache up (as vLLM does: when it is scheduled, not when it arrives), pins
//! blocks and computes what was not found. It holds slot and blocks until its last token.
//! A request that is dropped at any point gives both back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep_until, Instant};

use crate::cache::{KvCache, Lease};
use crate::config::PodConfig;
use crate::metrics::{Counters, Gauge};
use crate::tokens::{generate, Prompt, TOKEN_BYTES};

/// One cache and how many times the pod was restarted before it.
struct Generation {
    number: u64,
    cache: KvCache,
}

pub struct Engine {
    config: Arc<PodConfig>,
    generation: Mutex<Generation>,
    blocks_freed: Notify,
    slots: Arc<Semaphore>,
    /// When the prefill that was scheduled last ends; the lock is fair, so it is the queue.
    prefill: tokio::sync::Mutex<Instant>,
    pub counters: Counters,
    request_ids: AtomicU64,
}

/// A prompt that can never run here.
#[derive(Debug)]
pub enum Refused {
    Empty,
    TooLong { tokens: usize, limit: usize },
}

impl Engine {
    pub fn new(config: Arc<PodConfig>) -> Arc<Self> {
        let generation = Generation {
            number: 0,
            cache: KvCache::new(config.num_gpu_blocks),
        };
        Arc::new(Self {
            generation: Mutex::new(generation),
            blocks_freed: Notify::new(),
            slots: Arc::new(Semaphore::new(config.max_num_seqs)),
            prefill: tokio::sync::Mutex::new(Instant::now()),
            counters: Counters::default(),
            request_ids: AtomicU64::new(0),
            config,
        })
    }

    /// Forgets everything, as a new process would. Requests under way go on, and cache nothing.
    pub fn restart(&self) {
        let mut generation = self.lock();
        generation.number += 1;
        generation.cache = KvCache::new(self.config.num_gpu_blocks);
        drop(generation);
        self.counters.reset();
        self.blocks_freed.notify_waiters();
    }

    /// A number that no other request of this pod has.
    pub fn next_id(&self) -> u64 {
        self.request_ids.fetch_add(1, Relaxed)
    }

    /// Pinned blocks, named blocks, all blocks.
    pub fn blocks(&self) -> (usize, usize, usize) {
        let generation = self.lock();
        (
            generation.cache.pinned(),
            generation.cache.named(),
            generation.cache.capacity(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Generation> {
        self.generation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Longest prompt that fits the model and the cache, in tokens.
    pub fn max_prompt_tokens(&self) -> usize {
        self.config
            .max_model_len
            .min(self.config.num_gpu_blocks * self.config.block_size)
    }

    /// Refuses a prompt that can never run, before anything is spent on it.
    pub fn check(&self, prompt: &Prompt) -> Result<(), Refused> {
        let (tokens, limit) = (prompt.tokens(), self.max_prompt_tokens());
        match tokens {
            0 => Err(Refused::Empty),
            tokens if tokens > limit => Err(Refused::TooLong { tokens, limit }),
            _ => Ok(()),
        }
    }

    /// Waits for a slot and runs the prefill; on return the first token is there.
    pub async fn prefill(self: &Arc<Self>, prompt: Prompt) -> Result<Running, Refused> {
        self.check(&prompt)?;
        let arrived = Instant::now();
        let waiting = Gauge::raise(self, |c| &c.waiting);
        let slot = self.slots.clone().acquire_owned().await.ok();
        let mut busy_until = self.prefill.lock().await;
        let chain = prompt.chain(self.config.block_size);
        let (number, lease) = self.pin_blocks(&prompt, &chain).await;
        drop(waiting);
        let mut running = Running {
            engine: self.clone(),
            cached_tokens: lease.hits() * self.config.block_size,
            prompt_tokens: prompt.tokens(),
            prompt,
            number,
            lease: Some(lease),
            first_token: arrived,
            _gauge: Gauge::raise(self, |c| &c.running),
            _slot: slot,
        };
        self.counters
            .prefilled(running.prompt_tokens, running.cached_tokens);
        if self.config.prefill_tokens_per_s > 0.0 {
            let computed = (running.prompt_tokens - running.cached_tokens) as f64;
            let took = Duration::from_secs_f64(computed / self.config.prefill_tokens_per_s);
            let done = (*busy_until).max(Instant::now()) + took;
            sleep_until(done).await;
            *busy_until = done;
        }
        running.commit(&chain);
        running.first_token = Instant::now();
        self.counters.first_token(running.first_token - arrived);
        Ok(running)
    }

    async fn pin_blocks(&self, prompt: &Prompt, chain: &[u64]) -> (u64, Lease) {
        let tokens = prompt.tokens();
        let total = tokens.div_ceil(self.config.block_size);
        // The last token is always computed: its logits are what is sampled from.
        let max_hits = (tokens - 1) / self.config.block_size;
        loop {
            let freed = self.blocks_freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            {
                let mut generation = self.lock();
                if let Some(lease) = generation.cache.begin(chain, max_hits, total) {
                    return (generation.number, lease);
                }
            }
            freed.await;
        }
    }

    /// Runs one prompt to its end.
    pub async fn complete(
        self: &Arc<Self>,
        prompt: Prompt,
        tokens: usize,
    ) -> Result<Completed, Refused> {
        let running = self.prefill(prompt).await?;
        running.decoded(tokens).await;
        Ok(running.finish(tokens))
    }
}

/// Numbers of a prompt that has been answered.
pub struct Completed {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub output: Vec<String>,
}

/// A request past its prefill. Dropping it gives slot and blocks back.
pub struct Running {
    engine: Arc<Engine>,
    prompt: Prompt,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    number: u64,
    lease: Option<Lease>,
    first_token: Instant,
    _gauge: Gauge,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Running {
    /// Tokens of the answer.
    pub fn output(&self, tokens: usize) -> Vec<String> {
        generate(&self.prompt, tokens)
    }

    /// Waits until the `n`-th token (counted from 1) has been decoded.
    pub async fn decoded(&self, n: usize) {
        let per_token = self.engine.config.decode_ms_per_token;
        if per_token > 0.0 {
            let after = Duration::from_secs_f64(per_token / 1000.0 * n as f64);
            sleep_until(self.first_token + after).await;
        }
    }

    fn commit(&self, chain: &[u64]) {
        let mut generation = self.engine.lock();
        if let (true, Some(lease)) = (generation.number == self.number, &self.lease) {
            generation.cache.commit(lease, chain);
        }
    }

    /// Ends the request after `tokens` generated tokens, which are cached behind the prompt (but
    /// for the last one: it was sampled and never computed).
    pub fn finish(mut self, tokens: usize) -> Completed {
        let output = self.output(tokens);
        let computed = output.len().saturating_sub(1);
        let mut whole = std::mem::take(&mut self.prompt);
        output[..computed]
            .iter()
            .for_each(|t| whole.bytes.extend_from_slice(t.as_bytes()));
        let chain = whole.chain(self.engine.config.block_size);
        let mut generation = self.engine.lock();
        if let (true, Some(lease)) = (generation.number == self.number, &mut self.lease) {
            let blocks = whole
                .bytes
                .len()
                .div_ceil(TOKEN_BYTES * self.engine.config.block_size);
            generation.cache.extend(lease, blocks);
            generation.cache.commit(lease, &chain);
        }
        drop(generation);
        self.engine.counters.finished(tokens);
        Completed {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut generation = self.engine.lock();
        if let (true, Some(lease)) = (generation.number == self.number, self.lease.take()) {
            generation.cache.release(lease);
            self.engine.blocks_freed.notify_waiters();
        }
    }
}
