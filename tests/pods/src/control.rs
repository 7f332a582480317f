//! `/sim/…`: what a test does to a pod, or asks it, from outside the process.
//!
//! `GET /sim/stats` · `POST /sim/restart` · `POST | DELETE /sim/fault` ·
//! `GET | DELETE /sim/received` · any method on `/sim/echo`

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{json, Value};

use crate::answer::{json_answer, Answer, ApiError};
use crate::faults::{self, Fault};
use crate::metrics;
use crate::pod::Pod;

/// Answers everything under `/sim/` but the echo.
pub fn answer(
    pod: &Arc<Pod>,
    method: &Method,
    path: &str,
    body: &Bytes,
) -> Result<Answer, ApiError> {
    let value = match (method.as_str(), path) {
        ("GET", "/sim/stats") => json!(metrics::stats(&pod.engine)),
        ("POST", "/sim/restart") => {
            pod.restart();
            json!({})
        }
        ("POST", "/sim/fault") => {
            let fault: Fault =
                serde_json::from_slice(body).map_err(|e| ApiError::bad_request(e.to_string()))?;
            let told = json!(fault);
            faults::set(pod, fault);
            told
        }
        ("DELETE", "/sim/fault") => {
            faults::set(pod, Fault::default());
            json!({})
        }
        ("GET", "/sim/received") => {
            json!(pod
                .log
                .all()
                .iter()
                .map(|received| received.to_json())
                .collect::<Vec<Value>>())
        }
        ("DELETE", "/sim/received") => {
            pod.log.clear();
            json!({})
        }
        _ => {
            return Err(ApiError::not_found(
                format!("no such control: {method} {path}"),
                "path",
            ))
        }
    };
    Ok(json_answer(StatusCode::OK, &value))
}
