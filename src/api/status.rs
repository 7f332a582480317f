//! `status`: the pods of the pool and what was decided, for programs and for people.
//!
//! Owns the JSON's shape (`envoy/openapi.yaml`): fields are added, not renamed. The page is one
//! file that shows the JSON and fetches it again. Counters are the host's, one for all workers.
//! Invariant: it changes nothing.
//! Cost: a host call for each reason and some five for each pod.

use crate::config::{Mode, Policy};
use crate::metrics::Metric;
use crate::policy::Reason;
use crate::router::{Env, Outlook, Router, Why};
use core::fmt::Write as _;

/// The page.
pub const PAGE: &str = include_str!("status.html");

/// A pod that began no answer for so long, and has no request, is idle.
const IDLE_MS: u64 = 60_000;

/// The JSON of `GET <prefix>/status`.
pub fn status(router: &Router, env: &Env<'_>) -> String {
    let config = router.config();
    let members = router.members(env);
    let (loads, rate) = router.loads(env, &members);
    let now_ms = env.now_ms();
    let decided = Reason::ALL.map(|reason| {
        let by_pod = members.iter().map(|m| env.meter.decisions(reason, Some(m)));
        by_pod.fold(env.meter.decisions(reason, None), u64::saturating_add)
    });
    let total = decided.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    let mut evicted = 0u64;
    let mut pods = String::new();
    for ((member, load), outlook) in members.iter().zip(loads).zip(router.outlook(env, &members)) {
        let lost = env.meter.total(Metric::EvictedChunks, Some(member));
        evicted = evicted.saturating_add(lost);
        let by_reason = Reason::ALL.map(|reason| env.meter.decisions(reason, Some(member)));
        let answered = (load.last_first_ms > 0).then_some(load.last_first_ms);
        let rests = answered.is_none_or(|at| now_ms.saturating_sub(at) > IDLE_MS);
        let idle = (load.running == 0 && rests).then(|| idle(&outlook, total));
        let backlog_bytes = router.prompt_bytes(load.backlog);
        let sep = if pods.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(
            pods,
            "{sep}{{\"name\":{},\"address\":{},\"healthy\":{},\"state\":\"{}\",\
             \"state_seconds\":{},\"retry_seconds\":{},\"health_source\":\"{}\",\
             \"in_flight\":{},\"others_in_flight\":{},\"backlog_tokens\":{},\"backlog_chunks\":{},\"stored_chunks\":{},\
             \"capacity_chunks\":{},\"evicted_chunks\":{lost},\"decisions\":{},\
             \"last_answer_seconds\":{},\"idle\":{}}}",
            quoted(Some(&member.pod.name)),
            quoted(member.pod.address.as_deref()),
            outlook.why == Why::Serving || outlook.why == Why::New,
            outlook.why.as_str(),
            seconds(outlook.since_ms.map(|at| now_ms.saturating_sub(at))),
            seconds(outlook.until_ms.map(|at| at.saturating_sub(now_ms))),
            outlook.source,
            load.running,
            member.others,
            load.backlog as u64,
            (backlog_bytes as u64)
                .checked_div(config.chunk_bytes as u64)
                .unwrap_or(0),
            router.stored_chunks(env, member),
            member.capacity,
            reasons(&by_reason),
            seconds(answered.map(|at| now_ms.saturating_sub(at))),
            quoted(idle),
        );
    }
    let count = |metric| env.meter.total(metric, None);
    let mut out = String::new();
    let _ = write!(
        out,
        "{{\"version\":\"{}\",\"pool\":{},\"mode\":\"{}\",\"policy\":\"{}\",\"chunk_bytes\":{},\
         \"can_hold\":{},\"discovery\":{},\"decisions\":{},\"prompt_chunks\":{},\"matched_chunks\":{},\
         \"evicted_chunks\":{evicted},\"undone_notifies\":{},\"prompt_tokens\":{},\
         \"predicted_cached_tokens\":{},\"reported_cached_tokens\":{},\
         \"saved_prefill_tokens\":{},\"prefill_tokens_per_second\":{},\"pods\":[{pods}]}}",
        env!("CARGO_PKG_VERSION"),
        quoted(Some(&config.pool)),
        match config.mode {
            Mode::Route => "route",
            Mode::Observe => "observe",
        },
        match config.policy {
            Policy::Balanced(_) => "balanced",
            Policy::LongestPrefix => "longest_prefix",
        },
        config.chunk_bytes,
        router.may_pause(),
        discovery(router, now_ms),
        reasons(&decided),
        count(Metric::PromptChunks),
        count(Metric::MatchedChunks),
        count(Metric::UndoneNotifies),
        count(Metric::PromptTokens),
        count(Metric::PredictedCachedTokens),
        count(Metric::ReportedCachedTokens),
        env.meter.saved(),
        rate as u64,
    );
    out
}

/// Why a pod has no traffic: the first of what stands in its way, else that nothing does.
fn idle(outlook: &Outlook, decisions: u64) -> &'static str {
    match outlook.why {
        Why::Serving | Why::New if decisions == 0 => "no_requests",
        Why::Serving => "not_chosen",
        why => why.as_str(),
    }
}

/// How the pods are found, where they are not all in the configuration.
fn discovery(router: &Router, now_ms: u64) -> String {
    if router.config().discovery.is_none() {
        return "null".to_owned();
    }
    let found = router.discovery();
    let polled = (found.polled_ms > 0).then(|| now_ms.saturating_sub(found.polled_ms));
    let (age, pods, left_out) = (seconds(polled), found.pods, found.left_out);
    format!("{{\"age_seconds\":{age},\"pods\":{pods},\"left_out_pods\":{left_out}}}")
}

/// Decisions by reason.
fn reasons(counts: &[u64; Reason::ALL.len()]) -> String {
    let mut out = String::from("{");
    for (reason, count) in Reason::ALL.iter().zip(counts) {
        let sep = if out.len() > 1 { "," } else { "" };
        let _ = write!(out, "{sep}\"{}\":{count}", reason.as_str());
    }
    out.push('}');
    out
}

fn quoted(text: Option<&str>) -> String {
    text.and_then(|text| serde_json::to_string(text).ok())
        .unwrap_or_else(|| "null".to_owned())
}

fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(|| "null".to_owned(), |ms| (ms / 1000).to_string())
}
