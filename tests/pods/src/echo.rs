//! `/sim/echo`, or any path with the header `x-sim-echo`: tells what arrived. And upgrades:
//! `Connection: upgrade` is answered 101 and CONNECT 200, then every byte comes back.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderValue, CONNECTION, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;

use crate::answer::{json_answer, Answer, Body};
use crate::pod::Pod;
use crate::received::Received;

/// The header that turns any endpoint into an echo.
pub const HEADER: &str = "x-sim-echo";

/// What arrived, as JSON.
pub fn answer(received: &Received) -> Answer {
    json_answer(StatusCode::OK, &received.to_json())
}

/// Whether the client wants the bytes of the connection for itself. An offer of `h2c` is declined
/// by ignoring it.
pub fn wants_upgrade(request: &Request<Incoming>) -> bool {
    if request.method() == Method::CONNECT {
        return true;
    }
    let Some(protocol) = request.headers().get(UPGRADE) else {
        return false;
    };
    let connection = request
        .headers()
        .get(CONNECTION)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    request.version() == Version::HTTP_11
        && !protocol.as_bytes().eq_ignore_ascii_case(b"h2c")
        && connection
            .to_ascii_lowercase()
            .windows(7)
            .any(|w| w == b"upgrade")
}

/// Agrees to an upgrade and echoes bytes until the client ends or the pod stops.
pub fn upgrade(pod: &Arc<Pod>, mut request: Request<Incoming>) -> Answer {
    let mut answer = Response::new(Body::empty());
    if request.method() != Method::CONNECT {
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        let protocol = request.headers().get(UPGRADE).cloned();
        answer.headers_mut().insert(
            UPGRADE,
            protocol.unwrap_or(HeaderValue::from_static("echo")),
        );
    }
    let mut reset = pod.reset.subscribe();
    pod.spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(&mut request).await else {
            return;
        };
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
        let echo = async {
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
        };
        tokio::select! {
            () = echo => {}
            _ = reset.changed() => {}
        }
    });
    answer
}
