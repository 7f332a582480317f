//! The body of a call -> what it asks for.
//!
//! Owns the shape of calls and every reason to refuse one. Unknown fields are ignored, `null` is
//! as good as absent. Invariant: the prompt is hashed from the bytes that were sent, so that
//! `{"path", "body"}` gives the chunks that the filter makes of the same body, and ids are echoed
//! as they were spelled.
//! Cost: one reading of the call for its fields, one of the request's; neither stays in memory.

use super::Refusal;
use crate::config::Json;
use crate::prompt::json::{spelled, Kind, Tape};
use crate::prompt::{self, Api, Extent, Prompts, Unreadable};

/// Most ids in one query.
const MAX_IDS: usize = 1024;
/// A `t` may be ahead of the clock by this many seconds.
const MAX_AHEAD: f64 = 86_400.0;

/// The fields of a call, as they were spelled.
pub struct Call<'b> {
    request: &'b [u8],
    model: Option<&'b [u8]>,
    server_ids: Option<&'b [u8]>,
    server_id: Option<&'b [u8]>,
}

/// What shall be looked up.
pub enum Asked<'b> {
    /// A text, hashed as it is.
    Text(Prompts),
    /// A request as a client would send it.
    Request {
        path: Vec<u8>,
        body: Option<&'b [u8]>,
    },
}

/// A server, as the caller names it.
pub struct Id<'b> {
    /// As it was spelled: a string with its quotes, or an integer.
    pub spelled: &'b [u8],
    /// The name of its pod.
    pub name: Vec<u8>,
}

impl<'b> Call<'b> {
    /// Reads the fields of a call and checks its time.
    pub fn read(body: &'b [u8], now: f64) -> Result<Self, Refusal> {
        if core::str::from_utf8(body).is_err() {
            return Err(Refusal::with(400, "the body is not UTF-8"));
        }
        let keys = ["request", "model", "server_ids", "server_id", "t"];
        let fields = match spelled(body, keys) {
            Ok(Some(fields)) => fields.map(given),
            Ok(None) => return Err(Refusal::with(400, "the body is not a JSON object")),
            Err(_) => return Err(Refusal::with(400, "the body is not JSON")),
        };
        let [request, model, server_ids, server_id, t] = fields;
        let call = Call {
            request: request.ok_or(Refusal::of("request", "is missing"))?,
            model,
            server_ids,
            server_id,
        };
        // The order of a pod's notifies is the order of their times: an earlier `t` counts as
        // the pod's newest. So it only has to make sense.
        match t.map(number) {
            None => Ok(call),
            Some(Ok(t)) if !t.is_finite() || t > now + MAX_AHEAD => {
                Err(Refusal::of("t", "is more than a day ahead"))
            }
            Some(Ok(_)) => Ok(call),
            Some(Err(_)) => Err(Refusal::of("t", "is not a number of seconds")),
        }
    }

    /// What shall be looked up.
    pub fn asked(&self, chunk_bytes: usize) -> Result<Asked<'b>, Refusal> {
        let model = self.model.map(|model| {
            let model = string(model).map(String::from_utf8);
            let refusal = Refusal::of("model", "is not a string");
            model.and_then(Result::ok).ok_or(refusal)
        });
        let model = model.transpose()?;
        if let Some(text) = string(self.request) {
            let prompts = prompt::raw(&text, model.as_deref(), chunk_bytes);
            return Ok(Asked::Text(prompts));
        }
        let neither = Refusal::of("request", "is neither a string nor an object");
        let fields = spelled(self.request, ["path", "body"]).map_err(|_| neither)?;
        let [path, body] = fields.ok_or(neither)?.map(given);
        let path = path.and_then(string);
        Ok(Asked::Request {
            path: path.ok_or(Refusal::of("request.path", "is not a string"))?,
            body,
        })
    }

    /// The prompts to look up, and whether serving them fills a cache.
    pub fn prompts(&self, chunk_bytes: usize) -> Result<(Prompts, bool), Refusal> {
        let (path, body) = match self.asked(chunk_bytes)? {
            Asked::Text(prompts) => return Ok((prompts, true)),
            Asked::Request { path, body } => (path, body),
        };
        let refused = |message| Refusal::of("request.body", message);
        let endpoint = Refusal::of("request.path", "is no endpoint that takes a prompt");
        let api = Api::of(b"POST", &path).ok_or(endpoint)?;
        let body = body.ok_or(refused("is missing"))?;
        let read = prompt::read(api, body, Extent::Whole, chunk_bytes);
        let prompts = read.map_err(|why| match why {
            Unreadable::NoPromptField => refused("has no prompt"),
            Unreadable::TooDeep => refused("is nested too deep"),
            Unreadable::Empty | Unreadable::Malformed => refused("is no body of that endpoint"),
        })?;
        Ok((prompts, api.fills_cache()))
    }

    /// The servers to compare; at least one.
    pub fn server_ids(&self) -> Result<Vec<Id<'b>>, Refusal> {
        let refused = |message| Refusal::of("server_ids", message);
        let list = self.server_ids.ok_or(refused("is missing"))?;
        let tape = Tape::read(list, Extent::Whole).map_err(|_| refused("is not JSON"))?;
        let root = tape.root().filter(|root| root.kind() == Kind::Array);
        let root = root.ok_or(refused("is not a list"))?;
        let ids = root.items().take(MAX_IDS.saturating_add(1));
        let ids: Option<Vec<_>> = ids.map(|item| item.raw_in(list).and_then(id)).collect();
        let ids = ids.ok_or(refused("has an id that is neither a string nor an integer"))?;
        match ids.len() {
            0 => Err(refused("is empty")),
            n if n > MAX_IDS => Err(refused("has more than 1024 ids")),
            _ => Ok(ids),
        }
    }

    /// The server that was used.
    pub fn server_id(&self) -> Result<Id<'b>, Refusal> {
        let refused = |message| Refusal::of("server_id", message);
        let spelled = self.server_id.ok_or(refused("is missing"))?;
        id(spelled).ok_or(refused("is neither a string nor an integer"))
    }
}

fn given(field: Option<&[u8]>) -> Option<&[u8]> {
    field.filter(|spelled| *spelled != b"null")
}

/// The characters of a JSON string.
fn string(spelled: &[u8]) -> Option<Vec<u8>> {
    if spelled.first() != Some(&b'"') {
        return None;
    }
    let tape = Tape::read(spelled, Extent::Whole).ok()?;
    Some(tape.root()?.text()?.to_bytes())
}

fn id(spelled: &[u8]) -> Option<Id<'_>> {
    let digits = spelled.strip_prefix(b"-").unwrap_or(spelled);
    let name = if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        spelled.to_vec()
    } else {
        string(spelled)?
    };
    Some(Id { spelled, name })
}

/// A JSON number.
fn number(spelled: &[u8]) -> Result<f64, ()> {
    match serde_json::from_slice(spelled) {
        Ok(Json::Number(number)) => Ok(number),
        _ => Err(()),
    }
}
