//! From a request to its endpoint, by way of faults, echo and control.

use std::convert::Infallible;
use std::future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue, CONTENT_TYPE, SERVER};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode, Version};
use serde_json::{json, Value};

use crate::answer::{json_answer, typed, Answer, ApiError, Body, Broken};
use crate::connection::Connection;
use crate::faults::{Cut, Fault};
use crate::pod::Pod;
use crate::received::{Entry, Received};
use crate::{anthropic, control, echo, faults, metrics, openai, responses};

/// What every inference request gets in fast mode.
const FAST: &[u8] = br#"{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}"#;

fn error_shape(path: &str, error: &ApiError) -> Answer {
    if path.starts_with("/v1/messages") {
        error.anthropic()
    } else {
        error.openai()
    }
}

/// Answers one request, or breaks off as a fault says.
pub async fn answer(
    pod: Arc<Pod>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Answer, Broken> {
    let control = request.uri().path().starts_with("/sim/");
    if !control && request.method() == Method::POST {
        pod.engine.counters.requests.fetch_add(1, Relaxed);
        if pod.config.fast {
            return fast(request.into_body()).await;
        }
    }
    if echo::wants_upgrade(&request) {
        let (parts, body) = request.into_parts();
        drop(Entry::new(pod.log.clone(), &parts));
        let answer = echo::upgrade(&pod, Request::from_parts(parts, body));
        return Ok(named(&pod, answer));
    }
    let (parts, body) = request.into_parts();
    if control {
        let log = Arc::new(crate::received::Log::new(0));
        let (bytes, received) = Entry::new(log, &parts)
            .read(body)
            .await
            .map_err(Broken::other)?;
        let answer = if parts.uri.path().starts_with("/sim/echo") {
            echo::answer(&received)
        } else {
            control::answer(&pod, &parts.method, parts.uri.path(), &bytes)
                .unwrap_or_else(|e| e.openai())
        };
        return Ok(named(&pod, answer));
    }
    let entry = Entry::new(pod.log.clone(), &parts);
    let fault = match faults::of(&pod, &parts) {
        Ok(fault) => fault.unwrap_or_default(),
        Err(error) => return Ok(error.openai()),
    };
    let mut answer = if fault.early {
        fault.delay().await;
        fault
            .answer()
            .unwrap_or_else(|| json_answer(StatusCode::OK, &json!({"early": true})))
    } else {
        let (bytes, received) = entry.read(body).await.map_err(Broken::other)?;
        fault.delay().await;
        match fault.cut {
            Some(Cut::NeverAnswer) => future::pending().await,
            Some(Cut::BeforeAnswer) => {
                if parts.version != Version::HTTP_2 {
                    connection.kill();
                    future::pending::<Infallible>().await;
                }
                return Err(Broken::other("fault on request"));
            }
            _ => {}
        }
        match fault.answer() {
            Some(answer) => answer,
            None => dispatch(&pod, &parts, &bytes, &received).await,
        }
    };
    if fault.cut == Some(Cut::InBody) {
        answer = answer.map(|body| break_off(body, &parts, connection));
    }
    Ok(named(&pod, spoof(answer, &fault)))
}

fn break_off(body: Body, parts: &Parts, connection: Arc<Connection>) -> Body {
    let http2 = parts.version == Version::HTTP_2;
    faults::cut(body, async move {
        if !http2 {
            connection.kill();
            future::pending().await
        }
    })
}

fn spoof(mut answer: Answer, fault: &Fault) -> Answer {
    if let Some(value) = fault
        .spoof
        .as_ref()
        .and_then(|v| HeaderValue::from_str(v).ok())
    {
        answer
            .headers_mut()
            .insert(HeaderName::from_static("x-prefix-router"), value);
    }
    answer
}

fn named(pod: &Pod, mut answer: Answer) -> Answer {
    answer
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("uvicorn"));
    if let Ok(name) = HeaderValue::from_str(&pod.config.name) {
        answer
            .headers_mut()
            .insert(HeaderName::from_static("x-sim-pod"), name);
    }
    answer
}

async fn fast(mut body: Incoming) -> Result<Answer, Broken> {
    while let Some(frame) = body.frame().await {
        frame.map_err(Broken::other)?;
    }
    let mut answer = Answer::new(Body::Whole(Some(Bytes::from_static(FAST))));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}

async fn dispatch(pod: &Arc<Pod>, parts: &Parts, bytes: &Bytes, received: &Received) -> Answer {
    let path = parts.uri.path();
    if parts.headers.contains_key(echo::HEADER) {
        return echo::answer(received);
    }
    let plain = |text: String| {
        typed(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            text.into_bytes(),
        )
    };
    let get = parts.method == Method::GET || parts.method == Method::HEAD;
    let answered = match (get, path) {
        (true, "/health" | "/ping") => Ok(health(pod)),
        (true, "/version") => Ok(json_answer(StatusCode::OK, &json!({"version": "0.32.0"}))),
        (true, "/load") => {
            let stats = metrics::stats(&pod.engine);
            Ok(json_answer(
                StatusCode::OK,
                &json!({"server_load": stats.running + stats.waiting}),
            ))
        }
        (true, "/metrics") => Ok(plain(metrics::prometheus(&pod.engine, &pod.config))),
        (true, "/v1/models") => Ok(openai::models(pod)),
        _ if path.starts_with("/v1/responses/") => {
            response(pod, &parts.method, &path["/v1/responses/".len()..])
        }
        _ => post(pod, parts, bytes).await,
    };
    let mut answer = answered.unwrap_or_else(|error| error_shape(path, &error));
    if let Some(format) = parts
        .headers
        .get("endpoint-load-metrics-format")
        .and_then(|f| f.to_str().ok())
    {
        let whole = matches!(answer.body(), Body::Whole(_));
        let report = metrics::orca(&pod.engine, format).filter(|_| whole);
        if let Some(value) = report.and_then(|r| HeaderValue::from_str(&r).ok()) {
            answer
                .headers_mut()
                .insert(HeaderName::from_static("endpoint-load-metrics"), value);
        }
    }
    answer
}

fn response(pod: &Pod, method: &Method, path: &str) -> Result<Answer, ApiError> {
    match (method.as_str(), path.strip_suffix("/cancel")) {
        ("GET" | "HEAD", None) => responses::get(pod, path),
        ("POST", Some(id)) => responses::cancel(pod, id),
        _ => Ok(not_allowed()),
    }
}

fn not_allowed() -> Answer {
    let detail = json!({"detail": "Method Not Allowed"});
    json_answer(StatusCode::METHOD_NOT_ALLOWED, &detail)
}

fn health(pod: &Pod) -> Answer {
    let mut answer = Answer::new(Body::empty());
    if faults::unhealthy(pod) {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    answer
}

async fn post(pod: &Arc<Pod>, parts: &Parts, bytes: &Bytes) -> Result<Answer, ApiError> {
    let path = parts.uri.path();
    let known = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
    ];
    if !known.contains(&path) {
        return Ok(json_answer(
            StatusCode::NOT_FOUND,
            &json!({"detail": "Not Found"}),
        ));
    }
    if parts.method != Method::POST {
        return Ok(not_allowed());
    }
    let body = parse(parts, bytes)?;
    match path {
        "/v1/chat/completions" => openai::chat(pod, &body).await,
        "/v1/completions" => openai::completions(pod, &body).await,
        "/v1/responses" => responses::create(pod, &body).await,
        "/v1/messages" => anthropic::messages(pod, &body).await,
        "/v1/messages/count_tokens" => anthropic::count_tokens(pod, &body),
        "/v1/embeddings" => openai::embeddings(pod, &body).await,
        "/tokenize" => openai::tokenize(pod, &body),
        _ => openai::detokenize(pod, &body),
    }
}

fn parse(parts: &Parts, bytes: &Bytes) -> Result<Value, ApiError> {
    let refuse = |message| ApiError {
        kind: "Bad Request",
        ..ApiError::bad_request(message)
    };
    let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let media_type = content_type.map(|c| c.split(|b| *b == b';').next().unwrap_or(c).trim_ascii());
    if media_type.is_some_and(|m| !m.eq_ignore_ascii_case(b"application/json")) {
        return Err(refuse(
            "[\"Unsupported Media Type: Only 'application/json' is allowed\"]".to_owned(),
        ));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => Ok(Value::Object(fields)),
        Ok(_) => Err(refuse("[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to extract fields from'}]".to_owned())),
        Err(e) => Err(refuse(format!("[{{'type': 'json_invalid', 'loc': ('body', {}), 'msg': 'JSON decode error', 'ctx': {{'error': '{e}'}}}}]", e.column()))),
    }
}
