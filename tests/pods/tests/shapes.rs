//! The shape of every endpoint's answer, over real HTTP.

mod common;

use common::{events, pod, post, Client};
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};

fn long() -> String {
    "all work and no play ".repeat(40)
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn chat_answers_from_its_own_cache() {
    let pod = pod();
    let mut messages = vec![
        json!({"role": "system", "content": long()}),
        json!({"role": "user", "content": "hi"}),
    ];
    let first = post(
        &pod,
        "/v1/chat/completions",
        &json!({"model": "m", "messages": messages}),
    )
    .await;
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    assert_eq!(cached(&first), 0);
    let reply = first["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        first["usage"]["completion_tokens"].as_u64().unwrap() as usize,
        reply.len() / 4
    );

    messages.push(json!({"role": "assistant", "content": reply}));
    messages.push(json!({"role": "user", "content": "go on"}));
    let second = post(
        &pod,
        "/v1/chat/completions",
        &json!({"model": "m", "messages": messages}),
    )
    .await;
    let first_turn = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(
        cached(&second),
        first_turn / 16 * 16,
        "prompt and reply of the first turn, in whole blocks"
    );

    let salted = json!({"model": "m", "messages": messages, "cache_salt": "mine"});
    assert_eq!(
        cached(&post(&pod, "/v1/chat/completions", &salted).await),
        0
    );
    let stats = pod.stats();
    assert_eq!(stats.cached_tokens, cached(&second));
    assert_eq!(
        (stats.running, stats.waiting, stats.blocks_pinned),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn the_last_token_is_always_computed() {
    let pod = pod();
    let ids: Vec<u32> = (0..64).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 1});
    assert_eq!(cached(&post(&pod, "/v1/completions", &body).await), 0);
    assert_eq!(
        cached(&post(&pod, "/v1/completions", &body).await),
        48,
        "64 tokens are 4 blocks; 3 are taken"
    );
}

#[tokio::test]
async fn chat_streams() {
    let pod = pod();
    let body = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3,
        "messages": [{"role": "user", "content": "hi"}]});
    let events = events(&pod, "/v1/chat/completions", &body).await;
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|(_, d)| serde_json::from_str(d).unwrap())
        .collect();
    assert_eq!(chunks.len(), 5, "role, three tokens, usage");
    assert!(chunks
        .iter()
        .all(|c| c["object"] == "chat.completion.chunk" && c["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["completion_tokens"], 3);
    assert_eq!(pod.stats().succeeded, 1);
    assert_eq!(pod.stats().blocks_pinned, 0);
}

#[tokio::test]
async fn completions_of_every_form() {
    let pod = pod();
    for (prompt, choices) in [
        (json!("abcd"), 1),
        (json!(["abcd", "efgh"]), 2),
        (json!([1, 2, 3]), 1),
        (json!([[1, 2], [3], [4, 5]]), 3),
    ] {
        let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": 2});
        let answer = post(&pod, "/v1/completions", &body).await;
        assert_eq!(answer["object"], "text_completion");
        let indices: Vec<u64> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["index"].as_u64().unwrap())
            .collect();
        assert_eq!(indices, (0..choices).collect::<Vec<u64>>());
        assert_eq!(answer["usage"]["completion_tokens"], 2 * choices);

        body["stream"] = json!(true);
        let events = events(&pod, "/v1/completions", &body).await;
        let mut texts = vec![String::new(); choices as usize];
        for (_, data) in events.iter().filter(|(_, data)| data != "[DONE]") {
            let choice = &serde_json::from_str::<Value>(data).unwrap()["choices"][0];
            texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        }
        let whole: Vec<&str> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, whole, "streamed or not, the text is the same");
    }
}

#[tokio::test]
async fn text_and_its_token_ids_share_the_cache() {
    let pod = pod();
    let tokens = post(&pod, "/tokenize", &json!({"model": "m", "prompt": long()})).await;
    assert_eq!(tokens["count"].as_u64().unwrap() as usize, long().len() / 4);
    assert_eq!(pod.stats().prompt_tokens, 0, "counting fills no cache");
    let text = post(
        &pod,
        "/detokenize",
        &json!({"model": "m", "tokens": tokens["tokens"]}),
    )
    .await;
    assert_eq!(text["prompt"], long());
    post(
        &pod,
        "/v1/completions",
        &json!({"model": "m", "prompt": long()}),
    )
    .await;
    let by_ids = post(
        &pod,
        "/v1/completions",
        &json!({"model": "m", "prompt": tokens["tokens"]}),
    )
    .await;
    assert_eq!(cached(&by_ids) as usize, (long().len() / 4 - 1) / 16 * 16);
}

#[tokio::test]
async fn responses_are_known_to_their_pod_alone() {
    let (a, b) = (pod(), SimPod::start(PodConfig::named("vllm-1")).unwrap());
    let first = post(&a, "/v1/responses", &json!({"model": "m", "input": long()})).await;
    assert_eq!(first["object"], "response");
    assert_eq!(first["status"], "completed");
    assert_eq!(first["output"][0]["content"][0]["type"], "output_text");
    let next = json!({"model": "m", "input": "more", "previous_response_id": first["id"]});
    let second = post(&a, "/v1/responses", &next).await;
    assert!(
        second["usage"]["input_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
            > 190
    );

    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let client = Client::new();
    let got: Value = client
        .get(a.url(&path))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(got["id"], first["id"]);
    assert_eq!(client.get(b.url(&path)).send().await.unwrap().status(), 404);
    let cancel = format!("{path}/cancel");
    for (pod, status) in [(&a, 400), (&b, 404)] {
        let cancelled = client.post(pod.url(&cancel)).send().await.unwrap();
        assert_eq!(cancelled.status(), status, "it has already been answered");
    }
    let deleted = client.delete(a.url(&path)).send().await.unwrap();
    assert_eq!(deleted.status(), 405, "vLLM deletes none");
    let refused = client
        .post(b.url("/v1/responses"))
        .json(&next)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 404);
    a.restart();
    assert_eq!(
        client.get(a.url(&path)).send().await.unwrap().status(),
        404,
        "a new process knows nothing"
    );
}

#[tokio::test]
async fn responses_stream() {
    let pod = pod();
    let body = json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "stream": true, "max_output_tokens": 2});
    let events = events(&pod, "/v1/responses", &body).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let delta = "response.output_text.delta";
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (i, (name, data)) in events.iter().enumerate() {
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], *name);
        assert_eq!(data["sequence_number"], i);
    }
}

#[tokio::test]
async fn messages_answer_and_stream() {
    let pod = pod();
    let mut body = json!({"model": "m", "max_tokens": 4, "system": long(), "messages": [{"role": "user", "content": "hi"}]});
    let first = post(&pod, "/v1/messages", &body).await;
    assert_eq!(
        (&first["type"], &first["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(first["stop_reason"], "max_tokens");
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    let count = post(&pod, "/v1/messages/count_tokens", &body).await["input_tokens"]
        .as_u64()
        .unwrap();
    assert_eq!(first["usage"]["input_tokens"], count);

    body["stream"] = json!(true);
    let events = events(&pod, "/v1/messages", &body).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let delta = "content_block_delta";
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            delta,
            delta,
            delta,
            delta,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let start: Value = serde_json::from_str(&events[0].1).unwrap();
    let usage = &start["message"]["usage"];
    let hit = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(hit, (count - 1) / 16 * 16);
    assert_eq!(usage["input_tokens"], count - hit);
}

#[tokio::test]
async fn embeddings() {
    let pod = pod();
    let answer = post(
        &pod,
        "/v1/embeddings",
        &json!({"model": "m", "input": ["a", "b", "a"]}),
    )
    .await;
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 3);
    assert_eq!(data[0]["embedding"], data[2]["embedding"]);
    assert_ne!(data[0]["embedding"], data[1]["embedding"]);
    let packed = json!({"model": "m", "input": "a", "encoding_format": "base64"});
    assert!(post(&pod, "/v1/embeddings", &packed).await["data"][0]["embedding"].is_string());
}
