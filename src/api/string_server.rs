//! `query` and `notify`, as the RFC has them.
//!
//! Invariant: the most leading chunks win, the first of equals in the caller's list; what is no
//! pod holds nothing; a query writes nothing. Chunks of several prompts are added up.
//! Cost: that of the table, and a look-up of each id among the pods.

use super::call::{Call, Id};
use super::Refusal;
use crate::chunk::ChunkHash;
use crate::pods::Member;
use crate::router::{chunks, Env, Router, MAX_PROMPTS};
use core::fmt::Write as _;

/// `POST <prefix>/query`.
pub fn query(router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Result<String, Refusal> {
    let call = Call::read(body, now)?;
    let ids = call.server_ids()?;
    let (prompts, _) = call.prompts(router.config().chunk_bytes)?;
    let members = router.members(env);
    let (matched, _) = router.matched(env, &members, &prompts.prompts);
    let held = |id: &Id<'_>| {
        let pod = named(&members, id);
        pod.and_then(|pod| matched.get(pod)).copied().unwrap_or(0)
    };
    let scores: Vec<u32> = ids.iter().map(held).collect();
    let (mut best, mut most) = (None, 0);
    for (id, score) in ids.iter().zip(&scores) {
        if best.is_none() || *score > most {
            (best, most) = (Some(id), *score);
        }
    }
    let winner = best.map_or("null".into(), |id| String::from_utf8_lossy(id.spelled));
    let mut out = ["{\"server_id\":", &winner].concat();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        ",\"matched_chunks\":{most},\"chunks\":{},\"scores\":{{",
        chunks(&prompts.prompts)
    );
    let mut comma = "";
    for (at, (id, score)) in ids.iter().zip(&scores).enumerate() {
        // `1` and `"1"` are one pod, and one key.
        if ids.iter().take(at).any(|earlier| earlier.name == id.name) {
            continue;
        }
        let quote = if id.spelled.starts_with(b"\"") {
            ""
        } else {
            "\""
        };
        let key = String::from_utf8_lossy(id.spelled);
        let _ = write!(out, "{comma}{quote}{key}{quote}:{score}");
        comma = ",";
    }
    out.push_str("}}");
    Ok(out)
}

/// `POST <prefix>/notify`.
pub fn notify(router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Result<String, Refusal> {
    let call = Call::read(body, now)?;
    let id = call.server_id()?;
    let (prompts, fills_cache) = call.prompts(router.config().chunk_bytes)?;
    let no_pod = Refusal::of("server_id", "is no pod");
    let members = router.members(env);
    let pod = named(&members, &id).ok_or(no_pod)?;
    let mut evicted = 0u32;
    if fills_cache {
        let chains = prompts.prompts.iter().map(|prompt| &prompt.chunks);
        let chains = chains.filter(|chain| !chain.is_empty());
        let chains: Vec<Vec<ChunkHash>> = chains.take(MAX_PROMPTS).cloned().collect();
        let notified = router.notify(env, &members, pod, &chains, Vec::new());
        for done in notified.unwrap_or_default() {
            evicted = evicted.saturating_add(done.evicted);
        }
    }
    // A prompt may have cost another of the same call its place: what counts is what is there.
    let (matched, _) = router.matched(env, &members, &prompts.prompts);
    let stored = matched.get(pod).copied().unwrap_or(0);
    let mut out = String::new();
    let _ = write!(
        out,
        "{{\"stored_chunks\":{stored},\"evicted_chunks\":{evicted}}}"
    );
    Ok(out)
}

/// The pod that an id names.
fn named(members: &[Member], id: &Id<'_>) -> Option<usize> {
    let mut names = members.iter().map(|member| member.pod.name.as_bytes());
    names.position(|name| name == id.name)
}
