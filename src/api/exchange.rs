//! One call as it arrives: its headers, its body piece by piece, its end.
//!
//! Invariant: Envoy holds nothing of the body, so that no buffer limit of its listener applies;
//! here it takes at most [`MAX_BODY_BYTES`], and all calls of one VM together at most
//! [`MAX_HELD_BYTES`]. A body that is too long is read to its end before it is refused, since
//! many clients look for an answer only then; one that does not end is refused on the way.
//! Cost: one copy of the body.

use super::{Refusal, Resource, Response};
use crate::router::{Env, Router};
use core::cell::Cell;

/// The longest body of a call.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Bytes of bodies that one VM holds at a time.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Nobody is listened to for longer than this.
const MAX_SEEN_BYTES: usize = 128 << 20;

/// Bytes of bodies that are held by one filter instance of a VM.
#[derive(Debug, Default)]
pub struct Held(Cell<usize>);

/// A call that has begun.
#[derive(Debug)]
pub struct Exchange {
    /// What is called; `None` once it was answered.
    resource: Option<Resource>,
    body: Vec<u8>,
    /// Bytes that arrived.
    seen: usize,
}

impl Exchange {
    /// Takes a request that is under the API's prefix. Refused at once: what is no resource.
    pub fn begin(
        router: &Router,
        header: &dyn Fn(&str) -> Option<Vec<u8>>,
    ) -> Option<(Self, Option<Response>)> {
        let config = router.config();
        let prefix = config.api.as_ref()?.path_prefix.as_bytes();
        let path = header(":path")?;
        let known = path.split(|byte| matches!(byte, b'?' | b'#')).next()?;
        let rest = known.strip_prefix(prefix)?;
        if !(rest.is_empty() || rest.starts_with(b"/")) {
            return None;
        }
        let scope = &config.scope;
        if !scope.is_everything() && !scope.covers(&header(":authority").unwrap_or_default(), &path)
        {
            return None;
        }
        let method = header(":method").unwrap_or_default();
        let resource = Resource::of(&method, rest, header);
        // An upgrade never ends, and an old Envoy would wait for this filter for ever.
        let resource = resource.and_then(|resource| match header("upgrade") {
            Some(_) => Err(Refusal::with(400, "an upgrade is no call")),
            None if !router.may_pause() => Err(Refusal::with(503, "Envoy is older than 1.35")),
            None => Ok(resource),
        });
        let exchange = Exchange {
            resource: resource.ok(),
            body: Vec::new(),
            seen: 0,
        };
        Some((exchange, resource.err().map(Response::from)))
    }

    /// A piece of the body arrived.
    pub fn push(&mut self, piece: &[u8], held: &Held) -> Option<Response> {
        self.seen = self.seen.saturating_add(piece.len());
        self.resource?;
        let all = held.0.get().saturating_add(piece.len());
        if self.seen <= MAX_BODY_BYTES && all <= MAX_HELD_BYTES && !self.was_cut(piece.len()) {
            held.0.set(all);
            self.body.extend_from_slice(piece);
            return None;
        }
        self.release(held);
        if self.seen <= MAX_SEEN_BYTES {
            return None;
        }
        self.resource = None;
        Some(too_long())
    }

    /// The body is complete; `now` is in seconds since 1970.
    pub fn end(
        &mut self,
        router: &Router,
        env: &Env<'_>,
        held: &Held,
        now: f64,
    ) -> Option<Response> {
        let resource = self.resource.take()?;
        if self.was_cut(0) {
            return Some(too_long());
        }
        let response = resource.call(router, env, &self.body, now);
        self.release(held);
        Some(response)
    }

    /// Lets the body go.
    pub fn release(&mut self, held: &Held) {
        held.0.set(held.0.get().saturating_sub(self.body.len()));
        self.body = Vec::new();
    }

    /// Whether something before the last `piece` bytes was not kept.
    fn was_cut(&self, piece: usize) -> bool {
        self.body.len().saturating_add(piece) < self.seen
    }
}

fn too_long() -> Response {
    Refusal::with(
        413,
        "the body is longer than 16 MiB, or too many are being read",
    )
    .into()
}
