//! Traces in the Mooncake schema: one JSON object a line with `timestamp` (ms), `input_length`,
//! `output_length` (tokens) and `hash_ids` (of prefix blocks of 512 tokens).
//!
//! Owns reading and cutting. A seed takes its own window, so that runs of several seeds see
//! different traffic. The last block of a prompt is whole only by chance, and is not cached.

use super::{Request, Workload};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// Tokens of a block.
pub const BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u32>,
}

/// Reads a whole trace.
pub fn read(path: &Path) -> Result<Vec<Request>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let request = |(number, line): (usize, &str)| {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("{}:{}", path.display(), number + 1))?;
        let mut chain = line.hash_ids;
        chain.truncate((line.input_length / BLOCK_TOKENS) as usize);
        Ok(Request {
            at: line.timestamp * 1000,
            chain,
            tokens: line.input_length.max(1),
            output: line.output_length,
            user: 1,
        })
    };
    lines.enumerate().map(request).collect()
}

/// Window number `seed` of `windows` of equal length.
pub fn window(trace: &[Request], seed: u64, windows: usize, pods: usize) -> Workload {
    let length = trace.len() / windows;
    let from = (seed as usize % windows) * length;
    let mut requests = trace[from..from + length].to_vec();
    let start = requests.first().map_or(0, |request| request.at);
    // The published times are in steps of three seconds: spread the requests of a step evenly.
    let mut at = 0;
    while at < requests.len() {
        let now = requests[at].at;
        let together = requests[at..].iter().take_while(|r| r.at == now).count();
        let next = requests.get(at + together).map_or(now, |r| r.at);
        for (n, request) in requests[at..at + together].iter_mut().enumerate() {
            request.at = now - start + (next - now) * n as u64 / together as u64;
        }
        at += together;
    }
    Workload {
        block_tokens: BLOCK_TOKENS,
        requests,
        changes: Vec::new(),
        speeds: vec![1.0; pods],
    }
}
