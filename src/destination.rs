//! A decision -> the header that Envoy routes by.
//!
//! Owns the three spellings of a destination. Invariant: a value names only configured pods.

use crate::config::{DestinationMode, Pod};

/// Most pods in an `override_host` list: Envoy takes one per attempt, skips those that are no host
/// of the cluster that it picked, and knows nothing of our order beyond.
const MAX_LISTED: usize = 32;

/// The header's value for pods ranked best first; `None` when the best one cannot be named.
pub fn value(mode: DestinationMode, ranked: &[&Pod]) -> Option<Vec<u8>> {
    let best = ranked.first()?;
    match mode {
        DestinationMode::ClusterHeader => Some(best.name.clone().into_bytes()),
        DestinationMode::OverrideHost => {
            best.address.as_ref()?;
            let addresses: Vec<&str> = ranked
                .iter()
                .filter_map(|pod| pod.address.as_deref())
                .take(MAX_LISTED)
                .collect();
            Some(addresses.join(",").into_bytes())
        }
        DestinationMode::StatefulSession => Some(base64(best.address.as_ref()?.as_bytes())),
    }
}

/// Base64 with padding, as Envoy's header-based sessions decode it.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for group in bytes.chunks(3) {
        let at = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = (at(0) << 16) | (at(1) << 8) | at(2);
        for (i, shift) in [18u32, 12, 6, 0].into_iter().enumerate() {
            let sextet = (bits >> shift) & 63;
            let letter = ALPHABET.get(sextet as usize).copied().unwrap_or(b'=');
            out.push(if i <= group.len() { letter } else { b'=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, address: Option<&str>) -> Pod {
        Pod {
            name: name.into(),
            address: address.map(Into::into),
            models: Vec::new(),
        }
    }

    #[test]
    fn spells_each_mode() {
        let (a, b, c) = (
            pod("a", Some("10.0.0.1:80")),
            pod("b", Some("[::1]:80")),
            pod("c", None),
        );
        let value = |mode, pods: &[&Pod]| value(mode, pods).map(|v| String::from_utf8(v).unwrap());
        use DestinationMode::*;
        assert_eq!(value(ClusterHeader, &[&c, &a]).as_deref(), Some("c"));
        assert_eq!(
            value(OverrideHost, &[&a, &c, &b]).as_deref(),
            Some("10.0.0.1:80,[::1]:80")
        );
        assert_eq!(value(OverrideHost, &[&c, &a]), None);
        assert_eq!(
            value(OverrideHost, &[&a; 99]).unwrap().matches(',').count(),
            31
        );
        assert_eq!(
            value(StatefulSession, &[&a]).as_deref(),
            Some("MTAuMC4wLjE6ODA=")
        );
        assert_eq!(value(ClusterHeader, &[]), None);
    }

    #[test]
    fn base64_pads() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("\u{ff}\u{fe}", "w7/Dvg=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded.as_bytes());
        }
    }
}
