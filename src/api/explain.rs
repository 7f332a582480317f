//! `explain`: what the filter would do with a request, and why.
//!
//! Invariant: it changes nothing, not even whose turn it is. A body is cut where the filter would
//! cut it, so that the answer is the filter's.
//! Cost: that of a decision.

use super::call::{Asked, Call};
use super::Refusal;
use crate::config::Config;
use crate::pods::Member;
use crate::policy::Reason;
use crate::prompt::{self, Api, Extent, Prompts};
use crate::request::following_look;
use crate::router::{chunks, Env, Question, Router};
use crate::sticky::ResponseKey;
use core::fmt::Write as _;

/// A body as the filter sees it: its prompts, if it has any, and the decision's detail.
type Seen = (Option<Prompts>, Option<&'static str>);

/// `POST <prefix>/explain`.
pub fn explain(router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Result<String, Refusal> {
    let config = router.config();
    let ((seen, detail), about) = match Call::read(body, now)?.asked(config.chunk_bytes)? {
        Asked::Text(prompts) => ((Some(prompts), None), None),
        Asked::Request { path, body } => (
            see(config, &path, body),
            ResponseKey::in_path(path.as_ref()),
        ),
    };
    let previous = seen
        .as_ref()
        .and_then(|seen| seen.previous_response.as_ref());
    let members = router.members(env);
    let question = Question {
        model: seen.as_ref().and_then(|seen| seen.model.as_deref()),
        prompts: seen.as_ref().map_or(&[], |seen| &seen.prompts),
        recomputes: seen.as_ref().is_some_and(|seen| seen.recomputes),
        response: previous.map(|id| ResponseKey::of(id)).or(about),
    };
    let choice = router.foresee(env, &members, question);
    let (loads, _) = router.loads(env, &members);
    let prompts = seen.as_ref().map_or(&[][..], |seen| &seen.prompts);
    let identity = prompts.first().map(|prompt| prompt.identity);
    let identity = identity.map_or("null".into(), |hash| format!("\"{hash:016x}\""));
    let pods = choice.as_ref().map_or(&[][..], |c| &c.ranking.pods);
    let reason = choice.as_ref().map_or(Reason::NoPods, |c| c.ranking.reason);
    let bytes = choice.as_ref().map_or(0, |choice| choice.bytes);
    let held = |pod: usize| {
        let matched = choice.as_ref().and_then(|choice| choice.matched.get(pod));
        matched.copied().unwrap_or(0)
    };
    let matched = keyed(&members, pods, |pod, out| {
        let _ = write!(out, "{}", held(pod));
    });
    let costs = keyed(&members, pods, |pod, out| {
        let load = loads.get(pod);
        let _ = write!(
            out,
            "{{\"in_flight\":{},\"backlog_tokens\":{},\"uncached_tokens\":{}}}",
            load.map_or(0, |load| load.running),
            load.map_or(0, |load| load.backlog as u64),
            router.uncached(bytes, held(pod)) as u64,
        );
    });
    let names = pods.iter().map(|pod| quoted(&members, *pod));
    let names: Vec<String> = names.collect();
    let panic = choice.as_ref().is_some_and(|choice| choice.ranking.panic);
    let detail = match reason {
        Reason::Sticky => None,
        _ => detail.or(panic.then_some("panic")),
    };
    let detail = detail.map_or("null".into(), |detail| ["\"", detail, "\""].concat());
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{{\"identity\":{identity},\"prompts\":{},\"chunks\":{},\"matched\":{matched},\
         \"costs\":{costs},\"ranking\":[{}],\"reason\":\"{}\",\"detail\":{detail}}}",
        prompts.len(),
        chunks(prompts),
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
fn keyed(members: &[Member], pods: &[usize], value: impl Fn(usize, &mut String)) -> String {
    let mut out = String::from("{");
    for (at, pod) in pods.iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        out.push_str(&quoted(members, *pod));
        out.push(':');
        value(*pod, &mut out);
    }
    out.push('}');
    out
}

/// The name of a pod as JSON.
fn quoted(members: &[Member], pod: usize) -> String {
    let name = members.get(pod).map_or("", |member| &member.pod.name);
    serde_json::to_string(name).unwrap_or_default()
}
