//! `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/tokenize`, `/detokenize`,
//! `/v1/models`: the shapes that vLLM answers with.

use base64::prelude::{Engine as _, BASE64_STANDARD};
use futures_util::future::try_join_all;
use serde_json::{json, Value};
use std::time::SystemTime;

use hyper::StatusCode;

use crate::answer::{event_stream, json_answer, Answer, ApiError, Event, Usage};
use crate::pod::Pod;
use crate::queue::Completed;
use crate::template;
use crate::tokens::{decode, encode};

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs()
}

/// Tokens to generate, and why generation ends there.
pub fn length(pod: &Pod, body: &Value, fields: &[&str]) -> (usize, &'static str) {
    let asked = fields
        .iter()
        .find_map(|field| body[field].as_u64())
        .map(|n| n as usize);
    let asked = asked.map(|n| n.clamp(1, pod.engine.max_prompt_tokens()));
    let natural = pod.config.reply_tokens.max(1);
    match asked {
        Some(n) if n < natural || body["ignore_eos"] == true => (n, "length"),
        _ => (natural, "stop"),
    }
}

fn choices(body: &Value) -> usize {
    body["n"].as_u64().unwrap_or(1).clamp(1, 128) as usize
}

/// Answers `POST /v1/chat/completions`.
pub async fn chat(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    let model = pod.model(body)?;
    let prompt = template::chat(body)?;
    let (tokens, finish) = length(pod, body, &["max_completion_tokens", "max_tokens"]);
    let id = pod.unique_id("chatcmpl-");
    let created = unix_time();
    let n = choices(body);
    if body["stream"] != true {
        let done = [pod.engine.complete(prompt, tokens).await?];
        let text = done[0].output.concat();
        let choices: Vec<Value> = (0..n)
            .map(|index| {
                let message = json!({"role": "assistant", "content": text, "refusal": null, "annotations": null,
                    "audio": null, "function_call": null, "tool_calls": [], "reasoning": null});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish,
                    "stop_reason": null, "token_ids": null})
            })
            .collect();
        let answer = json!({"id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": choices, "service_tier": null, "system_fingerprint": null,
            "usage": Usage::of(&done, n).openai(), "prompt_logprobs": null, "prompt_token_ids": null,
            "kv_transfer_params": null});
        return Ok(json_answer(StatusCode::OK, &answer));
    }
    let running = pod.engine.prefill(prompt).await?;
    let usage = Usage {
        prompt: running.prompt_tokens,
        cached: running.cached_tokens,
        output: tokens * n,
    };
    let chunk = |choices: Value| json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices});
    let all = |delta: Value, finish: Option<&str>| -> Value {
        let choice = |index| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
        (0..n).map(choice).collect()
    };
    let mut events = vec![Event::data(&chunk(all(
        json!({"role": "assistant", "content": ""}),
        None,
    )))];
    let output = running.output(tokens);
    for (i, token) in output.iter().enumerate() {
        let last = (i + 1 == output.len()).then_some(finish);
        events.push(Event::data(&chunk(all(json!({"content": token}), last))).token());
    }
    finish_stream(body, &mut events, chunk(json!([])), usage);
    Ok(event_stream(events, Some(running), tokens))
}

/// The usage chunk, when it was asked for, and the end mark.
fn finish_stream(body: &Value, events: &mut Vec<Event>, mut chunk: Value, usage: Usage) {
    if body["stream_options"]["include_usage"] == true {
        chunk["usage"] = usage.openai();
        events.push(Event::data(&chunk));
    }
    events.push(Event::done());
}

/// Answers `POST /v1/completions`. Several prompts run side by side; a stream of several is sent
/// at once when all are done.
pub async fn completions(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    let model = pod.model(body)?;
    let mut prompts = template::prompts(&body["prompt"], template::seed(body), "prompt")?;
    let (tokens, finish) = length(pod, body, &["max_tokens"]);
    let id = pod.unique_id("cmpl-");
    let created = unix_time();
    let n = choices(body);
    let chunk = |choices: Value| json!({"id": id, "object": "text_completion", "created": created, "model": model, "choices": choices});
    let choice = |index: usize, text: &str, finish: Option<&str>| json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish, "stop_reason": null});
    let outputs_as_events = |outputs: &[Vec<String>]| {
        let mut events = Vec::new();
        for i in 0..tokens {
            for (index, output) in outputs.iter().enumerate() {
                let last = (i + 1 == tokens).then_some(finish);
                let event = Event::data(&chunk(json!([choice(index, &output[i], last)])));
                events.push(if index == 0 { event.token() } else { event });
            }
        }
        events
    };
    let streamed = body["stream"] == true;
    if let (true, [_]) = (streamed, &prompts[..]) {
        let running = pod.engine.prefill(prompts.remove(0)).await?;
        let usage = Usage {
            prompt: running.prompt_tokens,
            cached: running.cached_tokens,
            output: tokens * n,
        };
        let mut events = outputs_as_events(&vec![running.output(tokens); n]);
        finish_stream(body, &mut events, chunk(json!([])), usage);
        return Ok(event_stream(events, Some(running), tokens));
    }
    prompts.iter().try_for_each(|p| pod.engine.check(p))?;
    let done: Vec<Completed> =
        try_join_all(prompts.into_iter().map(|p| pod.engine.complete(p, tokens))).await?;
    let usage = Usage::of(&done, n);
    let outputs: Vec<Vec<String>> = done.into_iter().flat_map(|c| vec![c.output; n]).collect();
    if streamed {
        let mut events = outputs_as_events(&outputs);
        finish_stream(body, &mut events, chunk(json!([])), usage);
        return Ok(event_stream(events, None, tokens));
    }
    let choices = outputs
        .iter()
        .enumerate()
        .map(|(i, output)| choice(i, &output.concat(), Some(finish)));
    let mut answer = chunk(choices.collect());
    answer["usage"] = usage.openai();
    answer["service_tier"] = Value::Null;
    answer["system_fingerprint"] = Value::Null;
    answer["kv_transfer_params"] = Value::Null;
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Answers `POST /v1/embeddings`: eight numbers that depend on the prompt alone.
pub async fn embeddings(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    let model = pod.model(body)?;
    let prompts = if body["messages"].is_array() {
        vec![template::chat(body)?]
    } else {
        template::prompts(&body["input"], template::seed(body), "input")?
    };
    prompts.iter().try_for_each(|p| pod.engine.check(p))?;
    let vectors: Vec<Vec<f32>> = prompts.iter().map(|p| vector(&p.bytes)).collect();
    let done: Vec<Completed> =
        try_join_all(prompts.into_iter().map(|p| pod.engine.complete(p, 0))).await?;
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = if body["encoding_format"] == "base64" {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                json!(BASE64_STANDARD.encode(bytes))
            } else {
                json!(vector)
            };
            json!({"index": index, "object": "embedding", "embedding": embedding})
        })
        .collect();
    let answer = json!({"id": pod.unique_id("embd-"), "object": "list", "created": unix_time(), "model": model,
        "data": data, "usage": Usage::of(&done, 1).openai()});
    Ok(json_answer(StatusCode::OK, &answer))
}

fn vector(bytes: &[u8]) -> Vec<f32> {
    (0..8)
        .map(|seed| {
            (twox_hash::XxHash64::oneshot(seed, bytes) >> 40) as f32 / (1u32 << 24) as f32 - 0.5
        })
        .collect()
}

/// Answers `POST /tokenize`, of a `prompt` or of `messages`. Fills no cache.
pub fn tokenize(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    pod.model(body)?;
    let bytes = match body["prompt"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None if body["messages"].is_array() => template::chat(body)?.bytes,
        None => return Err(template::missing("prompt")),
    };
    let tokens = encode(&bytes);
    let answer = json!({"count": tokens.len(), "max_model_len": pod.engine.max_prompt_tokens(), "tokens": tokens,
        "token_strs": null});
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Answers `POST /detokenize`.
pub fn detokenize(pod: &Pod, body: &Value) -> Result<Answer, ApiError> {
    pod.model(body)?;
    let ids = template::token_ids(&body["tokens"])?;
    Ok(json_answer(
        StatusCode::OK,
        &json!({"prompt": decode(&ids)}),
    ))
}

/// Answers `GET /v1/models`.
pub fn models(pod: &Pod) -> Answer {
    let card = |id: &str| {
        json!({"id": id, "object": "model", "created": pod.engine.counters.started() as u64, "owned_by": "vllm",
            "root": id, "parent": null, "max_model_len": pod.engine.max_prompt_tokens(), "permission": [{
                "id": format!("modelperm-{id}"), "object": "model_permission",
                "created": pod.engine.counters.started() as u64, "allow_create_engine": false,
                "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false, "allow_view": true,
                "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false}]})
    };
    let named = pod.config.models.iter().map(|id| card(id));
    let data: Vec<Value> = if pod.config.models.is_empty() {
        vec![card("sim")]
    } else {
        named.collect()
    };
    json_answer(StatusCode::OK, &json!({"object": "list", "data": data}))
}
