//! A pod that keeps what it received, byte for byte, and behaves as the request asks.
//!
//! It computes nothing: tests about caches use the simulated vLLM, tests about bytes and failures
//! use this. A request says in `x-stub` how it wants to be treated, see [`Stub::start`].

use crate::client::Version;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// A request as the pod saw it.
#[derive(Clone)]
pub struct Seen {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as far as it has come.
    pub body: Bytes,
    /// Trailers.
    pub trailers: Option<HeaderMap>,
    /// The body has ended, and it ended well.
    pub complete: bool,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            method,
            path,
            headers,
            body,
            complete,
            ..
        } = self;
        let bytes = body.len();
        write!(
            f,
            "{method} {path} {headers:?} {bytes} bytes, complete: {complete}"
        )
    }
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// A pod on a port that stays the same when it is stopped and started again.
pub struct Stub {
    port: u16,
    seen: Log,
    server: Option<JoinHandle<()>>,
}

impl Stub {
    /// Starts on a free port. The header `x-stub` of a request asks for a treatment:
    ///
    /// - `status=503`: answer with that status;
    /// - `reset`: close the connection without an answer;
    /// - `hang`: never answer;
    /// - `half`: half an answer, then close;
    /// - `claim`: answer with a header `x-prefix-router` of the pod's own.
    pub async fn start() -> Self {
        let port = crate::envoy::free_port();
        let mut this = Self {
            port,
            seen: Log::default(),
            server: None,
        };
        this.revive().await;
        this
    }

    /// Three of them.
    pub async fn three() -> [Self; 3] {
        [
            Self::start().await,
            Self::start().await,
            Self::start().await,
        ]
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Takes what was received so far.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().expect("log"))
    }

    /// What was received so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("log").clone()
    }

    /// Closes the port and cuts every connection.
    pub async fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
            // Envoy reads that its connections are closed: what it sends on one before it has done
            // so is not sent again, by design.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Opens the port again.
    pub async fn revive(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
        let listener = listener.expect("the pod's port is free");
        let seen = self.seen.clone();
        self.server = Some(tokio::spawn(async move {
            // Goes with this task, and its connections with it.
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let seen = seen.clone();
                connections.spawn(async move {
                    let serve = service_fn(move |request| answer(request, seen.clone()));
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server
                        .serve_connection(TokioIo::new(stream), serve)
                        .with_upgrades()
                        .await;
                });
            }
        }));
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

/// The one request that any of the pods received, and the index of the pod.
pub fn only(pods: &[Stub]) -> (usize, Seen) {
    let seen = pods
        .iter()
        .enumerate()
        .flat_map(|(i, p)| p.take().into_iter().map(move |s| (i, s)));
    let mut seen: Vec<_> = seen.collect();
    assert_eq!(seen.len(), 1, "one request at one pod: {seen:#?}");
    seen.remove(0)
}

type Answer = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>>;

async fn answer(mut request: Request<Incoming>, log: Log) -> Result<Answer, std::io::Error> {
    if request.uri().path() == "/health" && request.method() == Method::GET {
        return Ok(plain(StatusCode::OK, "ok"));
    }
    let index = {
        let mut log = log.lock().expect("log");
        log.push(Seen {
            method: request.method().clone(),
            path: request
                .uri()
                .path_and_query()
                .map(|p| p.to_string())
                .unwrap_or_default(),
            headers: request.headers().clone(),
            body: Bytes::new(),
            trailers: None,
            complete: false,
        });
        log.len() - 1
    };
    let wanted = request
        .headers()
        .get("x-stub")
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let wanted = wanted.to_string();
    if request.headers().contains_key(http::header::UPGRADE) {
        return Ok(upgrade(&mut request));
    }
    let update = |change: &dyn Fn(&mut Seen)| {
        let mut log = log.lock().expect("log");
        if let Some(seen) = log.get_mut(index) {
            change(seen);
        }
    };
    let mut whole = BytesMut::new();
    let body = request.body_mut();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(std::io::Error::other)?;
        match frame.into_data() {
            Ok(data) => whole.extend_from_slice(&data),
            Err(frame) => update(&|seen| seen.trailers = frame.trailers_ref().cloned()),
        }
    }
    let whole = whole.freeze();
    update(&|seen| {
        seen.body = whole.clone();
        seen.complete = true;
    });
    match wanted.as_str() {
        "reset" => Err(std::io::Error::other("as asked")),
        "hang" => std::future::pending().await,
        "half" => {
            let data = hyper::body::Frame::data(Bytes::from_static(b"data: {}\n\n"));
            let half = futures_util::stream::unfold(Some(data), move |data| async move {
                match data {
                    Some(data) => Some((Ok(data), None)),
                    None => {
                        // Until the first half is on its way.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        Some((Err(std::io::Error::other("as asked")), None))
                    }
                }
            });
            Ok(Response::new(BodyExt::boxed_unsync(
                http_body_util::StreamBody::new(half),
            )))
        }
        "claim" => {
            let mut answer = plain(StatusCode::OK, "{}");
            let claim = http::HeaderValue::from_static("pod=\"liar\", matched=99, chunks=99");
            answer
                .headers_mut()
                .append(crate::decision::HEADER, claim.clone());
            answer.headers_mut().append(crate::decision::HEADER, claim);
            Ok(answer)
        }
        other => {
            let status = other.strip_prefix("status=").map_or("200", |status| status);
            Ok(plain(status.parse().expect("a status"), "{}"))
        }
    }
}

/// Switches protocols and echoes what comes.
fn upgrade(request: &mut Request<Incoming>) -> Answer {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(stream) = upgrade.await {
            let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
            let _ = tokio::time::timeout(
                Duration::from_secs(10),
                tokio::io::copy(&mut read, &mut write),
            )
            .await;
        }
    });
    let mut answer = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.insert("connection", http::HeaderValue::from_static("upgrade"));
    headers.insert("upgrade", http::HeaderValue::from_static("websocket"));
    answer
}

fn plain(status: StatusCode, body: &'static str) -> Answer {
    let body = Full::new(Bytes::from_static(body.as_bytes()));
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

/// Both versions, for loops over them.
pub const VERSIONS: [Version; 2] = [Version::H1, Version::H2];

/// The address of a port of this machine.
pub fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
