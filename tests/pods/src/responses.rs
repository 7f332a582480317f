//! `/v1/responses`: answers are kept by the pod that gave them, and only there, so that
//! `previous_response_id` is 404 on every other pod. The last [`KEPT`] are.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::{json, Value};

use crate::answer::{event_stream, json_answer, Answer, ApiError, Event};
use crate::openai::{length, unix_time};
use crate::pod::Pod;
use crate::template::{self, Rendered};

/// One answer and the items that led to it.
struct Stored {
    items: Vec<Value>,
    response: Value,
}

/// The most answers that are kept.
pub const KEPT: usize = 4096;

#[derive(Default)]
struct Kept {
    by_id: HashMap<String, Stored>,
    /// Oldest first.
    ids: VecDeque<String>,
}

/// The answers that this process has given.
#[derive(Default)]
pub struct Responses(Mutex<Kept>);

impl Responses {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all, as a new process would.
    pub fn clear(&self) {
        *self.lock() = Kept::default();
    }

    fn with<T>(&self, id: &str, read: impl FnOnce(&Stored) -> T) -> Result<T, ApiError> {
        self.lock().by_id.get(id).map(read).ok_or_else(|| ApiError {
            kind: "invalid_request_error",
            ..ApiError::not_found(format!("Response with id '{id}' not found."), "response_id")
        })
    }

    fn put(&self, id: &str, stored: Stored) {
        let mut kept = self.lock();
        kept.by_id.insert(id.to_owned(), stored);
        kept.ids.push_back(id.to_owned());
        if kept.ids.len() > KEPT {
            if let Some(oldest) = kept.ids.pop_front() {
                kept.by_id.remove(&oldest);
            }
        }
    }
}

/// Answers `GET /v1/responses/{id}`.
pub fn get(pod: &Pod, id: &str) -> Result<Answer, ApiError> {
    pod.responses
        .with(id, |stored| json_answer(StatusCode::OK, &stored.response))
}

/// Answers `POST /v1/responses/{id}/cancel`: nothing here runs in the background.
pub fn cancel(pod: &Pod, id: &str) -> Result<Answer, ApiError> {
    pod.responses.with(id, |_| ())?;
    Err(ApiError::bad_request(
        "Cannot cancel a synchronous response.".to_owned(),
    ))
}

/// Answers `POST /v1/responses`.
pub async fn create(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    let model = pod.model(body)?;
    let mut items = match body["previous_response_id"].as_str() {
        Some(previous) => pod
            .responses
            .with(previous, |stored| stored.items.clone())?,
        None => Vec::new(),
    };
    match &body["input"] {
        Value::String(text) => items.push(json!({"role": "user", "content": text})),
        Value::Array(input) => items.extend(input.iter().cloned()),
        _ => return Err(template::missing("input")),
    }
    let mut rendered = Rendered::default();
    if let Some(instructions) = body["instructions"].as_str() {
        rendered.turn("system", instructions);
    }
    items.iter().for_each(|item| rendered.message(item));
    let prompt = rendered.into_prompt(template::seed(body));
    let (tokens, finish) = length(pod, body, &["max_output_tokens"]);

    let running = pod.engine.prefill(prompt).await?;
    let shape = Shape {
        id: pod.unique_id("resp_"),
        message_id: pod.unique_id("msg_"),
        model,
        body,
        finish,
    };
    let output = running.output(tokens);
    let text = output.concat();
    let usage = json!({"input_tokens": running.prompt_tokens, "output_tokens": tokens,
        "input_tokens_details": {"cached_tokens": running.cached_tokens, "input_tokens_per_turn": [],
            "cached_tokens_per_turn": []},
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0,
            "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
        "total_tokens": running.prompt_tokens + tokens});
    let response = shape.response(
        shape.status(),
        json!([shape.message("completed", &text)]),
        usage,
    );
    let streamed = body["stream"] == true;
    if !streamed {
        running.decoded(tokens).await;
    }
    if body["store"] != false {
        items.push(json!({"role": "assistant", "content": text}));
        pod.responses.put(
            &shape.id,
            Stored {
                items,
                response: response.clone(),
            },
        );
    }
    if streamed {
        let events = shape.events(&output, response);
        return Ok(event_stream(events, Some(running), tokens));
    }
    running.finish(tokens);
    Ok(json_answer(StatusCode::OK, &response))
}

/// What stays the same in all objects of one answer.
struct Shape<'a> {
    id: String,
    message_id: String,
    model: String,
    body: &'a Value,
    finish: &'static str,
}

impl Shape<'_> {
    fn status(&self) -> &'static str {
        if self.finish == "length" {
            "incomplete"
        } else {
            "completed"
        }
    }

    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        let or = |field: &str, default: Value| match &self.body[field] {
            Value::Null => default,
            given => given.clone(),
        };
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({"id": self.id, "created_at": unix_time(), "incomplete_details": incomplete,
            "instructions": self.body["instructions"], "metadata": self.body["metadata"], "model": self.model,
            "object": "response", "output": output, "parallel_tool_calls": true,
            "temperature": or("temperature", json!(1.0)), "tool_choice": or("tool_choice", json!("auto")),
            "tools": or("tools", json!([])), "top_p": or("top_p", json!(1.0)), "background": false,
            "max_output_tokens": self.body["max_output_tokens"], "max_tool_calls": null,
            "previous_response_id": self.body["previous_response_id"], "prompt": null,
            "reasoning": self.body["reasoning"], "service_tier": "auto", "status": status, "text": null,
            "top_logprobs": null, "truncation": "disabled", "usage": usage, "user": self.body["user"]})
    }

    fn part(&self, text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    }

    fn message(&self, status: &str, text: &str) -> Value {
        let content = if text.is_empty() {
            json!([])
        } else {
            json!([self.part(text)])
        };
        json!({"id": self.message_id, "type": "message", "role": "assistant", "status": status, "content": content})
    }

    fn events(&self, output: &[String], response: Value) -> Vec<Event> {
        let mut events = Vec::new();
        let mut put = |kind: &str, mut value: Value, is_token: bool| {
            value["type"] = json!(kind);
            value["sequence_number"] = json!(events.len());
            let event = Event::named(&value);
            events.push(if is_token { event.token() } else { event });
        };
        let text = output.concat();
        let started = self.response("in_progress", json!([]), Value::Null);
        put("response.created", json!({"response": started}), false);
        put("response.in_progress", json!({"response": started}), false);
        let item = self.message("in_progress", "");
        put(
            "response.output_item.added",
            json!({"output_index": 0, "item": item}),
            false,
        );
        let at = json!({"item_id": self.message_id, "output_index": 0, "content_index": 0});
        let located = |field: &str, value: Value| {
            let mut located = at.clone();
            located[field] = value;
            located
        };
        put(
            "response.content_part.added",
            located("part", self.part("")),
            false,
        );
        for token in output {
            let mut delta = located("delta", json!(token));
            delta["logprobs"] = json!([]);
            put("response.output_text.delta", delta, true);
        }
        let mut done = located("text", json!(text));
        done["logprobs"] = json!([]);
        put("response.output_text.done", done, false);
        put(
            "response.content_part.done",
            located("part", self.part(&text)),
            false,
        );
        let item = self.message("completed", &text);
        put(
            "response.output_item.done",
            json!({"output_index": 0, "item": item}),
            false,
        );
        put("response.completed", json!({"response": response}), false);
        events
    }
}
