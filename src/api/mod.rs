//! The HTTP API of the string server: `query`, `notify` and `explain` under one path prefix.
//!
//! Owns the resources and the shape of answers. Pure: a call's method, path and body go in, an
//! answer comes out; [`exchange`] gathers the body. Errors are
//! `{"error": {"message": …, "param": …}}` and change nothing: a call is understood as a whole
//! before the table is written.
//! Cost: a call lexes its body up to three times and copies none of it.

mod call;
mod exchange;
mod explain;
mod string_server;
#[cfg(test)]
mod tests;

pub use exchange::{Exchange, Held, MAX_BODY_BYTES};

use crate::router::{Env, Router};

/// An answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// The body, JSON.
    pub body: String,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    message: &'static str,
    param: Option<&'static str>,
}

impl Refusal {
    /// A call that says something wrong; `param` is what.
    const fn of(param: &'static str, message: &'static str) -> Self {
        Refusal {
            status: 400,
            message,
            param: Some(param),
        }
    }

    const fn with(status: u16, message: &'static str) -> Self {
        Refusal {
            status,
            message,
            param: None,
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
}

impl Resource {
    /// The resource of a request, its path without the prefix.
    fn of(method: &[u8], path: &[u8]) -> Result<Self, Refusal> {
        let resource = match path {
            b"/query" => Self::Query,
            b"/notify" => Self::Notify,
            b"/explain" => Self::Explain,
            _ => return Err(Refusal::with(404, "no such resource")),
        };
        match method {
            b"POST" => Ok(resource),
            _ => Err(Refusal::with(405, "this resource takes POST")),
        }
    }

    /// Answers a call at `now`, seconds since 1970.
    fn call(self, router: &Router, env: &Env<'_>, body: &[u8], now: f64) -> Response {
        let answer = match self {
            Self::Query => string_server::query(router, env, body, now),
            Self::Notify => string_server::notify(router, env, body, now),
            Self::Explain => explain::explain(router, env, body, now),
        };
        answer.map_or_else(Response::from, |body| Response { status: 200, body })
    }
}
