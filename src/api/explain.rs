//! `explain`: what the filter would do with a request, and why.
//!
//! Invariant: it changes nothing, not even whose turn it is. A body is cut where the filter would
//! cut it, so that the answer is the filter's.
//! Cost: that of a decision.

use super::call::{Asked, Call};
use super::string_server::chunks;
use super::Refusal;
use crate::config::Config;
use crate::prompt::{self, Api, Extent, Prompts};
use crate::request::following_look;
use crate::router::{Env, Router};
use core::fmt::Write as _;

/// A body as the filter sees it: its prompts, if it has any, and the decision's detail.
type Seen = (Option<Prompts>, Option<&'static str>);

/// `POST <prefix>/explain`.
pub fn explain(router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Result<String, Refusal> {
    let config = router.config();
    let (seen, detail) = match Call::read(body, now)?.asked(config.chunk_bytes)? {
        Asked::Text(prompts) => (Some(prompts), None),
        Asked::Request { path, body } => see(config, &path, body),
    };
    let (ranking, matched) = router.unturned(|router| match &seen {
        Some(seen) => router
            .choose(env, seen.model.as_deref(), &seen.prompts)
            .map_or((None, Vec::new()), |choice| {
                (Some(choice.ranking), choice.matched)
            }),
        None => (router.choose_by_load(env), Vec::new()),
    });
    let running = router.running(env);
    let prompts = seen.as_ref().map_or(&[][..], |seen| &seen.prompts);
    let identity = prompts.first().map(|prompt| prompt.identity);
    let identity = identity.map_or("null".into(), |hash| format!("\"{hash:016x}\""));
    let pods = ranking.as_ref().map_or(&[][..], |ranking| &ranking.pods);
    let reason = match &ranking {
        Some(ranking) => ranking.reason,
        None => crate::policy::Reason::NoPods,
    };
    let of = |numbers: &[u32], pod: usize| numbers.get(pod).copied().unwrap_or(0);
    let matched_text = keyed(config, pods, |pod| of(&matched, pod).to_string());
    let costs = keyed(config, pods, |pod| {
        ["{\"in_flight\":", &of(&running, pod).to_string(), "}"].concat()
    });
    let names = pods.iter().map(|pod| quoted(config, *pod));
    let names: Vec<String> = names.collect();
    let detail = detail.map_or("null".into(), |detail| ["\"", detail, "\""].concat());
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{{\"identity\":{identity},\"prompts\":{},\"chunks\":{},\"matched\":{matched_text},\
         \"costs\":{costs},\"ranking\":[{}],\"reason\":\"{}\",\"detail\":{detail}}}",
        prompts.len(),
        seen.as_ref().map_or(0, chunks),
        names.join(","),
        reason.as_str(),
    );
    Ok(out)
}

/// Reads a request as the filter would.
fn see(config: &Config, path: &[u8], body: Option<&[u8]>) -> Seen {
    let Some(api) = Api::of(b"POST", path) else {
        return (None, Some("endpoint"));
    };
    let Some(body) = body else {
        return (None, Some("empty"));
    };
    let mut look = config.match_bytes;
    loop {
        let (part, extent) = match body.get(..look) {
            Some(part) if part.len() < body.len() => (part, Extent::FirstPart),
            _ => (body, Extent::Whole),
        };
        match prompt::read(api, part, extent, config.chunk_bytes) {
            Err(why) => return (None, Some(why.as_str())),
            Ok(prompts) => {
                let unnamed = extent == Extent::FirstPart && prompts.model.is_none();
                if !unnamed || look >= config.hold_bytes {
                    return (Some(prompts), unnamed.then_some("no_model"));
                }
            }
        }
        look = following_look(config, look);
    }
}

/// An object with a value for each pod.
fn keyed(config: &Config, pods: &[usize], value: impl Fn(usize) -> String) -> String {
    let field = |pod: &usize| [&quoted(config, *pod), ":", &value(*pod)].concat();
    let fields: Vec<String> = pods.iter().map(field).collect();
    ["{", &fields.join(","), "}"].concat()
}

/// The name of a pod as JSON.
fn quoted(config: &Config, pod: usize) -> String {
    let name = config.pods.get(pod).map_or("", |pod| &pod.name);
    serde_json::to_string(name).unwrap_or_default()
}
