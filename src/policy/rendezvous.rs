//! Rendezvous (highest random weight) hashing.
//!
//! Owns the agreement between gateways that share nothing: the same prompt and the same names
//! give the same order everywhere, and a pod that comes or goes moves only its own share.

use twox_hash::XxHash64;

/// Weight of `name` for the prompt whose head hashes to `home`; the highest wins.
pub fn score(home: u64, name: &str) -> u64 {
    XxHash64::oneshot(home, name.as_bytes())
}

/// The same as a number from 0 to 1.
pub fn share(home: u64, name: &str) -> f64 {
    (score(home, name) >> 11) as f64 / (1u64 << 53) as f64
}
