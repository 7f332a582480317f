//! HTTP/1 and HTTP/2 connections in every framing.
//!
//! One [`Conn`] is one TCP connection, and thereby one worker of Envoy: the worker that accepted
//! it serves all of its requests.

use crate::decision::{Decision, HEADER};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{combinators::UnsyncBoxBody, BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The longest that any request of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request body.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Version of HTTP on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1 with keep-alive.
    H1,
    /// HTTP/2 with prior knowledge.
    H2,
}

/// One connection.
pub struct Conn {
    sender: Sender,
}

enum Sender {
    H1(http1::SendRequest<Body>),
    H2(http2::SendRequest<Body>),
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body, to its end.
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The filter's header, which has to be there once and well formed.
    pub fn decision(&self) -> Decision {
        let all: Vec<_> = self.headers.get_all(HEADER).iter().collect();
        assert_eq!(all.len(), 1, "{HEADER} once: {self:?}");
        Decision::parse(all[0].to_str().expect("ASCII")).expect("well formed")
    }

    /// Tokens of the prompt that the pod itself found in its cache.
    pub fn cached_tokens(&self) -> u64 {
        let usage = &self.json()["usage"];
        let found = &usage["prompt_tokens_details"]["cached_tokens"];
        found
            .as_u64()
            .unwrap_or_else(|| panic!("no cached_tokens in {usage}"))
    }
}

/// A body with a `content-length`.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body in pieces without a `content-length`, with trailers or without.
pub fn pieces(bytes: impl Into<Bytes>, size: usize, trailers: Option<HeaderMap>) -> Body {
    let bytes: Bytes = bytes.into();
    let cut = (0..bytes.len()).step_by(size);
    let cut = cut.map(|at| Frame::data(bytes.slice(at..bytes.len().min(at + size))));
    let frames: Vec<_> = cut.chain(trailers.map(Frame::trailers)).map(Ok).collect();
    BodyExt::boxed_unsync(StreamBody::new(tokio_stream::iter(frames)))
}

/// A body that is sent as fast as somebody puts bytes into the channel.
pub fn slow() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel::<Bytes>(4);
    let frames = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let frames = tokio_stream::StreamExt::map(frames, |b| Ok(Frame::data(b)));
    (sender, BodyExt::boxed_unsync(StreamBody::new(frames)))
}

/// A POST of JSON.
pub fn post(path: &str, body: &Value) -> Request<Body> {
    request(
        Method::POST,
        path,
        &[("content-type", "application/json")],
        full(body.to_string()),
    )
}

/// Any request.
pub fn request(method: Method, path: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).expect("a valid request")
}

impl Conn {
    /// Connects.
    pub async fn open(to: SocketAddr, version: Version) -> Self {
        Self::try_open(to, version).await.expect("connect")
    }

    /// Connects, or says why not.
    pub async fn try_open(to: SocketAddr, version: Version) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let io = TokioIo::new(stream);
        let sender = match version {
            Version::H1 => {
                let (sender, conn) = http1::handshake(io).await.map_err(|e| e.to_string())?;
                tokio::spawn(conn.with_upgrades());
                Sender::H1(sender)
            }
            Version::H2 => {
                let hands = http2::handshake(TokioExecutor::new(), io).await;
                let (sender, conn) = hands.map_err(|e| e.to_string())?;
                tokio::spawn(conn);
                Sender::H2(sender)
            }
        };
        Ok(Self { sender })
    }

    /// Sends, and gives back the answer as soon as its headers are there.
    pub async fn start(
        &mut self,
        mut request: Request<Body>,
    ) -> Result<http::Response<Incoming>, String> {
        let authority = match request.headers_mut().remove(http::header::HOST) {
            Some(host) => host.to_str().expect("ASCII host").to_string(),
            None => "llm.test".to_string(),
        };
        let answer = match &mut self.sender {
            Sender::H1(sender) => {
                let host = authority.parse().expect("a header value");
                request.headers_mut().insert(http::header::HOST, host);
                sender
                    .ready()
                    .await
                    .map_err(|e| format!("connection: {e}"))?;
                sender.send_request(request).await
            }
            Sender::H2(sender) => {
                let path = request.uri().path_and_query().expect("a path").clone();
                let uri = http::Uri::builder().scheme("http").authority(authority);
                *request.uri_mut() = uri.path_and_query(path).build().expect("a URI");
                sender
                    .ready()
                    .await
                    .map_err(|e| format!("connection: {e}"))?;
                sender.send_request(request).await
            }
        };
        answer.map_err(|e| format!("{e:?}"))
    }

    /// Sends and reads the whole answer.
    pub async fn try_send(&mut self, request: Request<Body>) -> Result<Reply, String> {
        let all = async {
            let (head, body) = self.start(request).await?.into_parts();
            let body = body.collect().await.map_err(|e| format!("body: {e:?}"))?;
            Ok(Reply {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        let late = |_| format!("no answer within {PATIENCE:?}");
        tokio::time::timeout(PATIENCE, all)
            .await
            .unwrap_or_else(|e| Err(late(e)))
    }

    /// Sends and reads the whole answer; anything but an answer fails the test.
    pub async fn send(&mut self, request: Request<Body>) -> Reply {
        self.try_send(request).await.expect("an answer")
    }

    /// POSTs JSON.
    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.send(post(path, body)).await
    }

    /// GETs.
    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(request(Method::GET, path, &[], full(""))).await
    }
}
