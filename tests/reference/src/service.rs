//! `query` and `notify` over HTTP.

use crate::database::Database;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{header::CONTENT_TYPE, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::Router;
use prefix_router::chunk::ChunkHash;
use prefix_router::prompt::{self, Api, Extent};
use serde_json::{json, Map, Value};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest body.
const MAX_BODY_BYTES: usize = 16 << 20;
/// A `t` may be ahead of the clock by this many seconds.
const MAX_AHEAD: f64 = 86_400.0;

/// What the server is for.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names of the servers.
    pub servers: Vec<String>,
    /// Bytes in a chunk.
    pub chunk_bytes: usize,
    /// Most chunks of one server.
    pub capacity_chunks: u32,
}

struct Service {
    settings: Settings,
    database: Mutex<Database>,
}

/// Why a call is refused.
struct Refusal {
    param: Option<&'static str>,
    message: String,
}

type Answer = Result<Value, Refusal>;

impl Refusal {
    fn of(param: &'static str, message: impl ToString) -> Self {
        let (param, message) = (Some(param), message.to_string());
        Self { param, message }
    }
}

/// The API under `/prefix-router`.
pub fn router(settings: Settings) -> Router {
    let database = Mutex::new(Database::new().expect("SQLite works"));
    let service = Arc::new(Service { settings, database });
    Router::new()
        .route("/prefix-router/query", post(query))
        .route("/prefix-router/notify", post(notify))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(service)
}

async fn query(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    respond(service.query(&body))
}

async fn notify(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    respond(service.notify(&body))
}

fn respond(answer: Answer) -> Response {
    let (status, body) = match answer {
        Ok(answer) => (StatusCode::OK, answer),
        Err(Refusal { param, message }) => (
            StatusCode::BAD_REQUEST,
            json!({"error": {"message": message, "param": param}}),
        ),
    };
    let json = [(CONTENT_TYPE, "application/json")];
    (status, json, body.to_string()).into_response()
}

impl Service {
    fn query(&self, body: &[u8]) -> Answer {
        let call = read(body)?;
        time(&call)?;
        let refused = |message| Refusal::of("server_ids", message);
        let ids = call.get("server_ids").and_then(Value::as_array);
        let ids = ids.ok_or_else(|| refused("is not a list"))?;
        let chains = self.chains(&call)?;
        let database = self.database.lock().expect("no panic under the lock");
        let mut best: Option<(&Value, u64)> = None;
        let mut scores = Map::new();
        for id in ids {
            let name = name(id).ok_or_else(|| refused("has an id of another type"))?;
            let mut score = 0;
            for chain in &chains {
                score += database
                    .query(&name, chain)
                    .expect("the statement is valid");
            }
            if best.is_none_or(|(_, most)| score > most) {
                best = Some((id, score));
            }
            scores.insert(name, score.into());
        }
        let (id, matched) = best.ok_or_else(|| refused("is empty"))?;
        let chunks: usize = chains.iter().map(Vec::len).sum();
        Ok(json!({"server_id": id, "matched_chunks": matched, "chunks": chunks, "scores": scores}))
    }

    fn notify(&self, body: &[u8]) -> Answer {
        let call = read(body)?;
        let t = time(&call)?;
        let name = call.get("server_id").and_then(name);
        let name = name.filter(|name| self.settings.servers.contains(name));
        let name = name.ok_or_else(|| Refusal::of("server_id", "is no pod"))?;
        let chains = self.chains(&call)?;
        let database = self.database.lock().expect("no panic under the lock");
        let (mut stored, mut evicted) = (0, 0);
        for chain in &chains {
            let done = database.notify(&name, chain, t, self.settings.capacity_chunks);
            evicted += done.expect("the statement is valid");
        }
        for chain in &chains {
            stored += database
                .query(&name, chain)
                .expect("the statement is valid");
        }
        Ok(json!({"stored_chunks": stored, "evicted_chunks": evicted}))
    }

    /// The chunks of each prompt.
    fn chains(&self, call: &Value) -> Result<Vec<Vec<ChunkHash>>, Refusal> {
        let chunk_bytes = self.settings.chunk_bytes;
        let prompts = match call.get("request") {
            Some(Value::String(text)) => {
                let model = call.get("model").and_then(Value::as_str);
                prompt::raw(text.as_bytes(), model, chunk_bytes)
            }
            Some(Value::Object(request)) => {
                let path = request.get("path").and_then(Value::as_str);
                let api = path.and_then(|path| Api::of(b"POST", path.as_bytes()));
                let api = api.ok_or_else(|| Refusal::of("request.path", "is no endpoint"))?;
                let body = request.get("body").unwrap_or(&Value::Null).to_string();
                let read = prompt::read(api, body.as_bytes(), Extent::Whole, chunk_bytes);
                read.map_err(|why| Refusal::of("request.body", why.as_str()))?
            }
            _ => return Err(Refusal::of("request", "is neither a string nor an object")),
        };
        Ok(prompts
            .prompts
            .into_iter()
            .map(|prompt| prompt.chunks)
            .collect())
    }
}

fn read(body: &[u8]) -> Result<Value, Refusal> {
    let call = serde_json::from_slice(body).ok().filter(Value::is_object);
    let refusal = || Refusal {
        param: None,
        message: "the body is not a JSON object".into(),
    };
    call.ok_or_else(refusal)
}

/// The name of a server: an integer is the server named by its decimal text.
fn name(id: &Value) -> Option<String> {
    match id {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

fn time(call: &Value) -> Result<f64, Refusal> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since_1970.map_or(0.0, |passed| passed.as_secs_f64());
    match call.get("t") {
        None | Some(Value::Null) => Ok(now),
        Some(t) => match t.as_f64() {
            Some(t) if t <= now + MAX_AHEAD => Ok(t),
            Some(_) => Err(Refusal::of("t", "is more than a day ahead")),
            None => Err(Refusal::of("t", "is not a number of seconds")),
        },
    }
}
