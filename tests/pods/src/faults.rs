//! Misbehaviour on request: for one request by the header `x-sim-fault`, for those to come by
//! `POST /sim/fault`, both as JSON, or by [`crate::SimPod::set_fault`].
//!
//! A header is obeyed for any path but `/sim/…`; a fault of the pod, unless it names a path, for
//! inference requests (POST) only.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, ApiError, Body, Broken};
use crate::pod::Pod;

/// The header that carries a fault as JSON.
pub const HEADER: &str = "x-sim-fault";

/// Where a connection breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Reset after the request was read, before the first byte of the answer.
    BeforeAnswer,
    /// Reset after about half of the answer.
    InBody,
    /// No reset and no answer, ever.
    NeverAnswer,
}

/// What goes wrong. The default is nothing at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// Wait before anything of the answer is sent, in milliseconds.
    pub delay_ms: u64,
    /// Answer with this status and vLLM's error shape; nothing is computed or cached.
    pub status: Option<u16>,
    /// Break the connection off.
    pub cut: Option<Cut>,
    /// Answer before the body of the request was read (200, or `status`).
    pub early: bool,
    /// Value of an `x-prefix-router` header on the answer.
    pub spoof: Option<String>,
    /// `/health` answers 503.
    pub fail_health: bool,
    /// Restart: empty cache, later start time. At once when set, once per request by header.
    pub restart: bool,
    /// Refuse connections for so many milliseconds, and reset the open ones.
    pub refuse_ms: Option<u64>,
    /// Only on the pod of this name (for headers, which a retry carries to the next pod).
    pub pod: Option<String>,
    /// Only for paths that start with this.
    pub path: Option<String>,
    /// Only for so many requests.
    pub times: Option<u64>,
}

/// Sets the fault of a pod; restarts and refuses now.
pub fn set(pod: &Arc<Pod>, mut fault: Fault) {
    at_once(pod, &fault);
    fault.restart = false;
    fault.refuse_ms = None;
    let kept = (fault != Fault::default()).then_some(fault);
    *pod.fault.lock().unwrap_or_else(PoisonError::into_inner) = kept;
}

fn at_once(pod: &Arc<Pod>, fault: &Fault) {
    if fault.restart {
        pod.restart();
    }
    if let Some(ms) = fault.refuse_ms {
        pod.refuse(Duration::from_millis(ms));
    }
}

/// The fault that holds for a request, if any. A header that cannot be read is an error.
pub fn of(pod: &Arc<Pod>, parts: &Parts) -> Result<Option<Fault>, ApiError> {
    let here = |fault: &Fault| {
        fault
            .pod
            .as_ref()
            .is_none_or(|name| *name == pod.config.name)
            && fault
                .path
                .as_ref()
                .is_none_or(|path| parts.uri.path().starts_with(path))
    };
    if let Some(header) = parts.headers.get(HEADER) {
        let fault: Fault = serde_json::from_slice(header.as_bytes())
            .map_err(|error| ApiError::bad_request(format!("{HEADER}: {error}")))?;
        if !here(&fault) {
            return Ok(None);
        }
        at_once(pod, &fault);
        return Ok(Some(fault));
    }
    let mut set = pod.fault.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(fault) = set.as_mut() else {
        return Ok(None);
    };
    if !here(fault) || (fault.path.is_none() && parts.method != Method::POST) {
        return Ok(None);
    }
    let now = fault.clone();
    if let Some(times) = &mut fault.times {
        *times = times.saturating_sub(1);
        if *times == 0 {
            *set = None;
        }
    }
    Ok(Some(now))
}

/// Whether `/health` is to fail.
pub fn unhealthy(pod: &Pod) -> bool {
    pod.fault
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|f| f.fail_health)
}

impl Fault {
    /// Waits as long as the fault says.
    pub async fn delay(&self) {
        if self.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.delay_ms)).await;
        }
    }

    /// The answer that stands for the real one.
    pub fn answer(&self) -> Option<Answer> {
        let code = self.status?;
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = if status.is_client_error() {
            "BadRequestError"
        } else {
            "InternalServerError"
        };
        Some(
            ApiError {
                status,
                kind,
                message: "fault on request".into(),
                param: None,
            }
            .openai(),
        )
    }
}

/// Ends a body about half way: the rest is an error, before which `broken` runs. The pause lets
/// what was sent arrive before a reset discards it.
pub fn cut(body: Body, broken: impl Future<Output = ()> + Send + 'static) -> Body {
    let end = stream::once(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        broken.await;
        Err(Broken::other("fault on request"))
    });
    // Of events, the first one or two; of a whole body, the first half.
    let first = if matches!(body, Body::Whole(_)) { 1 } else { 2 };
    Body::Events(Box::pin(body.into_pieces().take(first).chain(end)))
}
