//! The HTTP API of the string server: `query`, `notify`, `explain` and `status` under one path
//! prefix.
//!
//! Owns the resources and the shape of answers. Pure: a call's method, path and body go in, an
//! answer comes out; [`exchange`] gathers the body. Errors are
//! `{"error": {"message": …, "param": …}}` and change nothing: a call is understood as a whole
//! before the table is written.
//! Cost: a call lexes its body up to three times and copies none of it.

mod call;
mod exchange;
mod explain;
mod status;
mod string_server;
#[cfg(test)]
mod tests;

pub use exchange::{Exchange, MAX_BODY_BYTES};

use crate::router::{Env, Router};

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// An answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The method that the resource takes, where it was called with another.
    pub allow: Option<&'static str>,
    /// The body.
    pub body: String,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    message: &'static str,
    param: Option<&'static str>,
    allow: Option<&'static str>,
}

impl Refusal {
    /// A call that says something wrong; `param` is what.
    const fn of(param: &'static str, message: &'static str) -> Self {
        Refusal {
            status: 400,
            message,
            param: Some(param),
            allow: None,
        }
    }

    const fn with(status: u16, message: &'static str) -> Self {
        Refusal {
            status,
            message,
            param: None,
            allow: None,
        }
    }
}

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Self {
        // Both texts are literals of this module that need no escape.
        let param = match refusal.param {
            Some(param) => ["\"", param, "\""].concat(),
            None => "null".to_owned(),
        };
        let message = refusal.message;
        Response {
            status: refusal.status,
            content_type: JSON,
            allow: refusal.allow,
            body: [
                "{\"error\":{\"message\":\"",
                message,
                "\",\"param\":",
                &param,
                "}}",
            ]
            .concat(),
        }
    }
}

/// What may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Query,
    Notify,
    Explain,
    Status { html: bool },
}

impl Resource {
    /// The resource of a request, its path without the prefix.
    fn of(
        method: &[u8],
        path: &[u8],
        header: &dyn Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, Refusal> {
        let resource = match path {
            b"/query" => Self::Query,
            b"/notify" => Self::Notify,
            b"/explain" => Self::Explain,
            // A browser names HTML; a program may name nothing at all.
            b"/status" => Self::Status {
                html: header("accept").is_some_and(|accept| names_html(&accept)),
            },
            _ => return Err(Refusal::with(404, "no such resource")),
        };
        let (takes, message) = match resource {
            Self::Status { .. } => ("GET", "this resource takes GET"),
            _ => ("POST", "this resource takes POST"),
        };
        if method == takes.as_bytes() {
            return Ok(resource);
        }
        Err(Refusal {
            allow: Some(takes),
            ..Refusal::with(405, message)
        })
    }

    /// Answers a call at `now`, seconds since 1970.
    fn call(self, router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Response {
        let answer = match self {
            Self::Query => string_server::query(router, env, body, now),
            Self::Notify => string_server::notify(router, env, body, now),
            Self::Explain => explain::explain(router, env, body, now),
            Self::Status { html: false } => Ok(status::status(router, env)),
            Self::Status { html: true } => Ok(status::PAGE.to_owned()),
        };
        let content_type = match self {
            Self::Status { html: true } => HTML,
            _ => JSON,
        };
        answer.map_or_else(Response::from, |body| Response {
            status: 200,
            content_type,
            allow: None,
            body,
        })
    }
}

fn names_html(accept: &[u8]) -> bool {
    let html = b"text/html";
    accept
        .windows(html.len())
        .any(|part| part.eq_ignore_ascii_case(html))
}
