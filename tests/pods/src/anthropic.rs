//! `/v1/messages` and `/v1/messages/count_tokens`: the shapes that vLLM answers with.
//!
//! `input_tokens` leaves out what was cached, as the Anthropic API defines it:
//! the prompt is `input_tokens + cache_read_input_tokens`.

use hyper::StatusCode;
use serde_json::{json, Value};

use crate::answer::{event_stream, json_answer, Answer, ApiError, Event};
use crate::openai::length;
use crate::pod::Pod;
use crate::template;

fn usage(prompt: usize, cached: usize, output: usize) -> Value {
    json!({"input_tokens": prompt - cached, "output_tokens": output, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached})
}

fn stop_reason(finish: &str) -> &'static str {
    if finish == "length" {
        "max_tokens"
    } else {
        "end_turn"
    }
}

/// Answers `POST /v1/messages`.
pub async fn messages(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    let model = pod.model(body)?;
    if !body["max_tokens"].is_u64() {
        return Err(template::missing("max_tokens"));
    }
    let prompt = template::anthropic(body)?;
    let (tokens, finish) = length(pod, body, &["max_tokens"]);
    let stop = stop_reason(finish);
    let id = pod.unique_id("chatcmpl-");
    if body["stream"] != true {
        let done = pod.engine.complete(prompt, tokens).await?;
        let answer = json!({"id": id, "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": done.output.concat()}], "stop_reason": stop,
            "usage": usage(done.prompt_tokens, done.cached_tokens, done.output.len())});
        return Ok(json_answer(StatusCode::OK, &answer));
    }
    let running = pod.engine.prefill(prompt).await?;
    let usage = |output| usage(running.prompt_tokens, running.cached_tokens, output);
    let start = json!({"type": "message_start", "message": {"id": id, "type": "message", "role": "assistant",
        "content": [], "model": model, "stop_reason": null, "stop_sequence": null, "usage": usage(0)}});
    let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let mut events = vec![Event::named(&start), Event::named(&block)];
    for token in running.output(tokens) {
        let delta = json!({"type": "text_delta", "text": token});
        events.push(
            Event::named(&json!({"type": "content_block_delta", "index": 0, "delta": delta}))
                .token(),
        );
    }
    events.push(Event::named(
        &json!({"type": "content_block_stop", "index": 0}),
    ));
    let delta =
        json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage(tokens)});
    events.push(Event::named(&delta));
    events.push(Event::named(&json!({"type": "message_stop"})));
    Ok(event_stream(events, Some(running), tokens))
}

/// Answers `POST /v1/messages/count_tokens`. Fills no cache.
pub fn count_tokens(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    pod.model(body)?;
    let tokens = template::anthropic(body)?.tokens();
    let answer =
        json!({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}});
    Ok(json_answer(StatusCode::OK, &answer))
}
