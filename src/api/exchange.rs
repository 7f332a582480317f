//! One call as it arrives: its headers, its body piece by piece, its end.
//!
//! Invariant: Envoy holds nothing of the body, so that no buffer limit of its listener applies;
//! here it takes at most [`MAX_BODY_BYTES`], and only while the VM keeps no more than
//! [`MAX_HELD_BYTES`], half of what requests may take. A body that is too long is read to its end before it is refused, since
//! many clients look for an answer only then; one that does not end is refused on the way.
//! Cost: one copy of the body.

use super::{Refusal, Resource, Response};
use crate::request::body::Body;
use crate::router::{Env, Router};

/// The longest body of a call.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Bytes of bodies that one VM keeps at a time, with those of requests.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Nobody is listened to for longer than this.
const MAX_SEEN_BYTES: usize = 128 << 20;

/// A call that has begun.
#[derive(Debug)]
pub struct Exchange {
    /// What is called; `None` once it was answered.
    resource: Option<Resource>,
    body: Body,
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
            body: Body::default(),
        };
        Some((exchange, resource.err().map(Response::from)))
    }

    /// `size` more bytes of the body came; `piece` reads them, from a start and at most so many.
    pub fn push(
        &mut self,
        size: usize,
        piece: &dyn Fn(usize, usize) -> Option<Vec<u8>>,
    ) -> Option<Response> {
        let was_cut = self.was_cut();
        self.body.came(size);
        self.resource?;
        let seen = self.body.seen();
        let kept = seen <= MAX_BODY_BYTES && !was_cut && self.body.keep(seen, size, piece);
        if kept && self.body.stay(MAX_HELD_BYTES) {
            return None;
        }
        self.body.release();
        if seen <= MAX_SEEN_BYTES {
            return None;
        }
        self.resource = None;
        Some(too_long())
    }

    /// The body is complete; `now` is in seconds since 1970.
    pub fn end(&mut self, router: &Router, env: &Env<'_>, now: f64) -> Option<Response> {
        let resource = self.resource.take()?;
        if self.was_cut() {
            return Some(too_long());
        }
        let response = resource.call(router, env, self.body.first(MAX_BODY_BYTES), now);
        self.body.release();
        Some(response)
    }

    /// Whether something that came was not kept.
    fn was_cut(&self) -> bool {
        self.body.first(MAX_BODY_BYTES).len() < self.body.seen()
    }
}

fn too_long() -> Response {
    Refusal::with(
        413,
        "the body is longer than 16 MiB, or too many are being read",
    )
    .into()
}
