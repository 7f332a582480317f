//! What is known of the pods, as one value in shared data: `prefix_router/<pool>/registry`.
//!
//! Owns its bytes. One worker writes it (see [`super::lease`]), all read it once a tick.
//! Invariant: what does not verify counts as absent; never more than `max_pods` pods, each with at
//! most [`MAX_MODELS`] models, so the value is bounded by the configuration; names are unique.
//! Cost: one `get` a tick; some 100 bytes a pod.

use super::health::Health;
use crate::config::{Config, Pod};
use crate::store::{Expect, SharedStore};
use crate::table::wire::{self, SEAL};

/// Most models of a pod that are kept; of a pod with more, none is: it may serve any.
pub const MAX_MODELS: usize = 64;
/// Longest model name that is kept.
pub const MAX_MODEL_BYTES: usize = 256;
/// A pod's load is believed for three intervals of reading it, and at least for this long.
const MIN_LIFE_MS: u64 = 3_000;
/// Sets these values apart from the table's, and from those of another layout.
const TAG: u64 = 0x7265_6769_7374_0002;

/// All that is known of the pods of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// Grows when pods come or go.
    pub generation: u64,
    /// When Envoy last said which pods there are; 0: never.
    pub polled_ms: u64,
    /// Pods that discovery found beyond `max_pods`.
    pub left_out: u32,
    /// The pods, those of the configuration first, then by name.
    pub pods: Vec<Known>,
}

/// What is known of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// `ip:port`, where it is known.
    pub address: Option<String>,
    /// Found by discovery, at its last success.
    pub discovered: bool,
    /// Envoy's own view of its health.
    pub health: Health,
    /// When it was first there, on the monotonic clock.
    pub since_ms: u64,
    /// Since when Envoy could not reach it, on the monotonic clock; 0: it can.
    pub down_since_ms: u64,
    /// What its own metrics said last.
    pub scraped: Option<Scraped>,
    /// Models that it lists; empty: any.
    pub models: Vec<String>,
}

/// A pod's own numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scraped {
    /// When they were read, on the monotonic clock.
    pub at_ms: u64,
    /// Requests that it works on.
    pub running: u32,
    /// Requests that wait in it.
    pub waiting: u32,
    /// How many of both this gateway did not send.
    pub others: u32,
    /// Share of its KV cache in use, in thousandths.
    pub usage_permille: u32,
    /// Tokens that its KV cache has room for; 0: it did not say.
    pub cache_tokens: u64,
    /// When its process started, in Unix milliseconds; 0: it did not say.
    pub started_ms: u64,
}

impl Scraped {
    /// Requests that others sent, unless that is too old to be true.
    pub fn others_at(&self, now_ms: u64, interval_ms: u32) -> u32 {
        let life = u64::from(interval_ms).saturating_mul(3).max(MIN_LIFE_MS);
        match now_ms <= self.at_ms.saturating_add(life) {
            true => self.others,
            false => 0,
        }
    }

    /// The pod's capacity in chunks, at about 4 bytes a token.
    pub fn capacity_chunks(&self, chunk_bytes: usize, most: u32) -> Option<u32> {
        let bytes = self.cache_tokens.saturating_mul(4);
        let chunks = bytes.checked_div(chunk_bytes as u64).filter(|n| *n > 0)?;
        Some(u32::try_from(chunks).unwrap_or(most).max(16).min(most))
    }
}

impl Registry {
    /// Key of a pool's registry.
    pub fn key(pool: &str) -> String {
        format!("prefix_router/{pool}/registry")
    }

    /// Reads the value of `key`; absent or junk: nothing.
    pub fn load(store: &dyn SharedStore, key: &str) -> Option<Self> {
        Self::decode(&store.get(key)?.bytes)
    }

    /// Writes the value of `key`.
    pub fn save(&self, store: &dyn SharedStore, key: &str) {
        // The only writer is the holder of the lease; its last word counts.
        let _ = store.set(key, &self.encode(), Expect::Any);
    }

    /// The pods of a configuration with what is known of them: its own, in their order, then the
    /// discovered ones.
    pub fn pods(&self, config: &Config) -> Vec<Known> {
        let own = config.pods.iter().map(|pod| self.own(pod));
        let mut pods: Vec<Known> = own.collect();
        if config.discovery.is_some() {
            let discovered = self.pods.iter().filter(|known| known.discovered);
            for known in discovered.take(config.max_pods as usize) {
                if pods.len() < config.max_pods as usize && !pods.iter().any(|pod| pod.is(known)) {
                    pods.push(known.clone());
                }
            }
        }
        pods
    }

    /// A pod of the configuration. What that says of it goes before what was found.
    fn own(&self, pod: &Pod) -> Known {
        let own = Known {
            name: pod.name.clone(),
            address: pod.address.clone(),
            ..Known::default()
        };
        let mut known = match self.pods.iter().find(|known| known.is(&own)) {
            Some(known) => Known {
                name: own.name,
                // Found addresses are those that Envoy reports; a configured one may be a name.
                address: known.address.clone().or(own.address),
                ..known.clone()
            },
            None => own,
        };
        if !pod.models.is_empty() {
            known.models.clone_from(&pod.models);
        }
        known
    }

    /// The value in shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![0; SEAL]);
        out.u64(self.generation);
        out.u64(self.polled_ms);
        out.u32(self.left_out);
        out.u32(u32::try_from(self.pods.len()).unwrap_or(u32::MAX));
        for pod in &self.pods {
            out.text(&pod.name);
            out.text(pod.address.as_deref().unwrap_or_default());
            out.u32(u32::from(pod.health.bits()) | u32::from(pod.discovered) << 8);
            out.u64(pod.since_ms);
            out.u64(pod.down_since_ms);
            let scraped = pod.scraped.unwrap_or_default();
            out.u64(scraped.at_ms);
            out.u32(scraped.running);
            out.u32(scraped.waiting);
            out.u32(scraped.others);
            out.u32(scraped.usage_permille);
            out.u64(scraped.cache_tokens);
            out.u64(scraped.started_ms);
            out.u32(u32::try_from(pod.models.len()).unwrap_or(u32::MAX));
            pod.models.iter().for_each(|model| out.text(model));
        }
        wire::seal(TAG, &mut out.0);
        out.0
    }

    /// Nothing when the value is junk.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if !wire::verify(TAG, bytes) {
            return None;
        }
        let mut from = Reader(bytes.get(SEAL..)?);
        let mut registry = Registry {
            generation: from.u64()?,
            polled_ms: from.u64()?,
            left_out: from.u32()?,
            pods: Vec::new(),
        };
        for _ in 0..from.u32()? {
            let name = from.text()?;
            let address = Some(from.text()?).filter(|address| !address.is_empty());
            let flags = from.u32()?;
            let mut pod = Known {
                name,
                address,
                discovered: flags & 0x100 != 0,
                health: Health::from_bits(flags as u8),
                since_ms: from.u64()?,
                down_since_ms: from.u64()?,
                ..Known::default()
            };
            let scraped = Scraped {
                at_ms: from.u64()?,
                running: from.u32()?,
                waiting: from.u32()?,
                others: from.u32()?,
                usage_permille: from.u32()?,
                cache_tokens: from.u64()?,
                started_ms: from.u64()?,
            };
            pod.scraped = Some(scraped).filter(|scraped| scraped.at_ms > 0);
            for _ in 0..from.u32()? {
                pod.models.push(from.text()?);
            }
            registry.pods.push(pod);
        }
        Some(registry)
    }
}

impl Known {
    /// Whether the two are one pod: the same name, or the same address under another.
    pub fn is(&self, other: &Known) -> bool {
        self.name == other.name || (self.address.is_some() && self.address == other.address)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(text.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        wire::u32_at(self.take(4)?, 0)
    }

    fn u64(&mut self) -> Option<u64> {
        wire::u64_at(self.take(8)?, 0)
    }

    fn text(&mut self) -> Option<String> {
        let size = self.u32()? as usize;
        Some(core::str::from_utf8(self.take(size)?).ok()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, address: &str) -> Known {
        Known {
            name: name.into(),
            address: Some(address.into()),
            discovered: true,
            ..Known::default()
        }
    }

    fn full() -> Registry {
        let scraped = Scraped {
            at_ms: 5,
            running: 1,
            waiting: 2,
            others: 3,
            usage_permille: 999,
            cache_tokens: 1 << 40,
            started_ms: 1_700_000_000_123,
        };
        Registry {
            generation: 7,
            polled_ms: 99,
            left_out: 3,
            pods: vec![
                Known {
                    health: Health::from_bits(5),
                    since_ms: 4,
                    scraped: Some(scraped),
                    models: vec!["m".into(), "é".into()],
                    ..known("a", "10.0.0.1:80")
                },
                Known {
                    address: None,
                    discovered: false,
                    ..known("b", "")
                },
            ],
        }
    }

    #[test]
    fn survives_encoding_and_no_damaged_byte_is_believed() {
        let registry = full();
        let bytes = registry.encode();
        assert_eq!(Registry::decode(&bytes), Some(registry));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Registry::decode(&damaged), None, "byte {at}");
            assert_eq!(Registry::decode(&bytes[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn lengths_that_lie_are_junk() {
        let mut bytes = full().encode();
        let name = SEAL + 24;
        bytes[name..name + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        wire::seal(TAG, &mut bytes);
        assert_eq!(Registry::decode(&bytes), None);
    }

    #[test]
    fn pods_of_the_configuration_come_first_and_have_the_last_word() {
        let config = |text: &str| Config::parse(text.as_bytes()).unwrap();
        let text = r#"{"pods": [{"name": "z"}, {"name": "x", "address": "10.0.0.1:80", "models": ["own"]}],
            "discovery": {"cluster": "vllm-*"}, "max_pods": 3}"#;
        let mut registry = full();
        registry.pods.push(known("c", "10.0.0.3:80"));
        registry.pods.push(known("d", "10.0.0.4:80"));
        let pods = registry.pods(&config(text));
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["z", "x", "c"], "a is x by address, d finds no room");
        assert_eq!(pods[1].models, ["own"]);
        assert_eq!(pods[1].health, Health::from_bits(5));
        assert_eq!(
            pods[0],
            Known {
                name: "z".into(),
                ..Known::default()
            }
        );

        let fixed = config(r#"{"pods": [{"name": "a"}]}"#);
        let pods = registry.pods(&fixed);
        assert_eq!(pods.len(), 1, "without discovery nobody else is a pod");
        assert_eq!(pods[0].address.as_deref(), Some("10.0.0.1:80"));
        assert_eq!(pods[0].models, ["m", "é"]);
    }

    #[test]
    fn an_old_load_is_not_believed() {
        let scraped = Scraped {
            at_ms: 100,
            others: 7,
            ..Scraped::default()
        };
        assert_eq!(scraped.others_at(3_100, 1_000), 7);
        assert_eq!(scraped.others_at(3_101, 1_000), 0);
        assert_eq!(scraped.others_at(30_100, 10_000), 7);
    }

    #[test]
    fn capacity_is_four_bytes_a_token() {
        let chunks = |cache_tokens, most| {
            let scraped = Scraped {
                cache_tokens,
                ..Scraped::default()
            };
            scraped.capacity_chunks(256, most)
        };
        assert_eq!(chunks(65_536, 32_768), Some(1024));
        assert_eq!(chunks(u64::MAX, 32_768), Some(32_768));
        assert_eq!(chunks(64, 32_768), Some(16));
        assert_eq!(chunks(0, 32_768), None);
    }
}
