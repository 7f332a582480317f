//! What arrived: reading bodies, and the log of requests that tests compare with what was sent.
//!
//! A request is logged when its body has ended, or with `complete: false` when it will not:
//! the client left, or the pod answered without reading it.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::prelude::{Engine as _, BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::HeaderMap;
use serde_json::{json, Value};
use twox_hash::XxHash64;

/// One request as it arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// Method.
    pub method: String,
    /// Path and query, or the authority of a CONNECT.
    pub path: String,
    /// `HTTP/1.1`, `HTTP/2.0`.
    pub version: String,
    /// Host, from the header or from `:authority`.
    pub authority: String,
    /// Header names and raw values, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Trailer names and raw values.
    pub trailers: Vec<(String, Vec<u8>)>,
    /// Bytes of the body that arrived.
    pub body_len: u64,
    /// XXH64 (seed 0) of those bytes.
    pub body_xxh64: u64,
    /// The body arrived to its end.
    pub complete: bool,
}

impl Received {
    fn new(parts: &Parts) -> Self {
        let host = parts
            .headers
            .get("host")
            .map(|h| String::from_utf8_lossy(h.as_bytes()).into_owned());
        Self {
            method: parts.method.to_string(),
            path: parts
                .uri
                .path_and_query()
                .map_or_else(|| parts.uri.to_string(), ToString::to_string),
            version: format!("{:?}", parts.version),
            authority: parts
                .uri
                .authority()
                .map(ToString::to_string)
                .or(host)
                .unwrap_or_default(),
            headers: pairs(&parts.headers),
            body_xxh64: XxHash64::oneshot(0, b""),
            ..Self::default()
        }
    }

    /// The first value of a header; not UTF-8 is replaced.
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }

    /// As JSON; a header that is not UTF-8 has `base64` in place of `value`. The checksum is 16
    /// hex digits, since JSON numbers end at 53 bits.
    pub fn to_json(&self) -> Value {
        let list = |pairs: &[(String, Vec<u8>)]| -> Value {
            let pair = |(name, value): &(String, Vec<u8>)| match std::str::from_utf8(value) {
                Ok(text) => json!({"name": name, "value": text}),
                Err(_) => json!({"name": name, "base64": BASE64_STANDARD.encode(value)}),
            };
            pairs.iter().map(pair).collect()
        };
        json!({"method": self.method, "path": self.path, "version": self.version, "authority": self.authority,
            "headers": list(&self.headers), "trailers": list(&self.trailers), "body_len": self.body_len,
            "body_xxh64": format!("{:016x}", self.body_xxh64), "complete": self.complete})
    }
}

fn pairs(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// The newest requests of a pod.
pub struct Log {
    limit: usize,
    requests: Mutex<VecDeque<Received>>,
}

impl Log {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            requests: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Received>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<Received> {
        self.lock().iter().cloned().collect()
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn push(&self, received: Received) {
        if self.limit == 0 {
            return;
        }
        let mut requests = self.lock();
        if requests.len() == self.limit {
            requests.pop_front();
        }
        requests.push_back(received);
    }
}

/// A request that is being received; it is logged when this is dropped.
pub struct Entry {
    log: Arc<Log>,
    received: Received,
    digest: XxHash64,
}

impl Entry {
    pub fn new(log: Arc<Log>, parts: &Parts) -> Self {
        Self {
            log,
            received: Received::new(parts),
            digest: XxHash64::with_seed(0),
        }
    }

    /// Reads the body to its end.
    pub async fn read(mut self, mut body: Incoming) -> Result<(Bytes, Received), hyper::Error> {
        let mut bytes = BytesMut::new();
        let mut only = None;
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => {
                    self.digest.write(&data);
                    self.received.body_len += data.len() as u64;
                    match (bytes.is_empty(), only.take()) {
                        (true, None) => only = Some(data),
                        (_, first) => {
                            bytes.extend_from_slice(&first.unwrap_or_default());
                            bytes.extend_from_slice(&data);
                        }
                    }
                }
                Err(frame) => {
                    self.received.trailers =
                        frame.into_trailers().map(|t| pairs(&t)).unwrap_or_default();
                }
            }
        }
        self.received.complete = true;
        self.received.body_xxh64 = self.digest.finish();
        let received = self.received.clone();
        Ok((only.unwrap_or_else(|| bytes.freeze()), received))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.received.body_xxh64 = self.digest.finish();
        self.log.push(std::mem::take(&mut self.received));
    }
}
