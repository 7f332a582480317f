//! prefix-router: a proxy-wasm filter that sends each LLM request to the vLLM pod that already
//! holds the longest prefix of its prompt.
//!
//! The modules tell the story of a request, in this order:
//!
//! | module | turns | into |
//! |---|---|---|
//! | [`config`] | plugin JSON | a validated `Config` |
//! | [`prompt`] | body | identity and prompt stream |
//! | [`chunk`] | prompt stream | chunk hashes |
//! | [`store`] | | the one interface to shared data |
//! | [`table`] | chunk hashes | matched chunks per pod |
//! | [`pods`] | | who they are, how busy, how well |
//! | [`sticky`] | id of a response | the pod that made it |
//! | [`usage`] | end of an answer | tokens of its prompt |
//! | [`policy`] | candidates | a decision |
//! | [`router`] | a question | a choice, credit, counts: what an instance keeps between requests |
//! | [`destination`] | a decision | the header that Envoy routes by |
//! | [`report`] | a decision | its text for people and logs |
//! | [`request`] | events of one request | effects, as a state machine |
//! | [`api`] | calls of the string server | answers, from the same table |
//! | [`metrics`] | | names, labels, counters |
//! | `host` | | the only code that calls proxy-wasm |
//!
//! All but `host` is pure: no host call, time is a parameter, state is reached through
//! [`store::SharedStore`]. A panic in here would kill every stream of an Envoy worker, so
//! nothing outside tests may panic; the lints below keep it so.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unreachable,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented
    )
)]
#![warn(missing_docs)]

pub mod api;
pub mod chunk;
pub mod config;
pub mod destination;
#[cfg(target_family = "wasm")]
mod host;
pub mod metrics;
pub mod pods;
pub mod policy;
pub mod prompt;
pub mod report;
pub mod request;
pub mod router;
pub mod sticky;
pub mod store;
pub mod table;
pub mod usage;
