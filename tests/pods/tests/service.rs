//! What surrounds inference: small endpoints, metrics, errors, the load report, fast mode.

mod common;

use common::{pod, post, Client};
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};

#[tokio::test]
async fn the_small_endpoints() {
    let pod = SimPod::start(PodConfig {
        models: vec!["m".into(), "lora".into()],
        ..PodConfig::default()
    })
    .unwrap();
    let client = Client::new();
    let get = |path: &str| client.get(pod.url(path)).send();
    assert_eq!(get("/health").await.unwrap().text().await.unwrap(), "");
    let version: Value = get("/version").await.unwrap().json().await.unwrap();
    assert_eq!(version["version"], "0.32.0");
    let load: Value = get("/load").await.unwrap().json().await.unwrap();
    assert_eq!(load, json!({"server_load": 0}));
    let models: Value = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][1]["id"]),
        (&json!("m"), &json!("lora"))
    );
}

#[tokio::test]
async fn metrics_have_the_names_that_scrapers_read() {
    let pod = SimPod::start(PodConfig {
        models: vec!["m".into()],
        ..PodConfig::default()
    })
    .unwrap();
    for _ in 0..2 {
        post(
            &pod,
            "/v1/completions",
            &json!({"model": "m", "prompt": vec![1; 40], "max_tokens": 2}),
        )
        .await;
    }
    let text = Client::new()
        .get(pod.url("/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let labels = "{engine=\"0\",model_name=\"m\"}";
    for (name, value) in [
        ("vllm:num_requests_running", "0.0"),
        ("vllm:num_requests_waiting", "0.0"),
        ("vllm:kv_cache_usage_perc", "0.0"),
        ("vllm:prefix_cache_queries_total", "80.0"),
        ("vllm:prefix_cache_hits_total", "32.0"),
        ("vllm:prompt_tokens_total", "80.0"),
        ("vllm:generation_tokens_total", "4.0"),
        ("vllm:time_to_first_token_seconds_count", "2.0"),
    ] {
        assert!(
            text.lines()
                .any(|line| line == format!("{name}{labels} {value}")),
            "{name}\n{text}"
        );
    }
    assert!(text.contains("num_gpu_blocks=\"65536\""));
    assert!(text.contains("vllm:cache_config_info{block_size=\"16\""));
    let start = |text: &str| -> f64 {
        let line = text
            .lines()
            .find(|l| l.starts_with("process_start_time_seconds "))
            .unwrap();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    };
    pod.restart();
    let after = Client::new()
        .get(pod.url("/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(start(&after) > start(&text));
    assert!(after.contains(&format!("vllm:prompt_tokens_total{labels} 0.0")));
}

#[tokio::test]
async fn errors_have_vllms_shape() {
    let config = PodConfig {
        models: vec!["m".into()],
        max_model_len: 100,
        ..PodConfig::default()
    };
    let pod = SimPod::start(config).unwrap();
    let client = Client::new();
    let send = |path: &str, body: &'static str, content_type: &str| {
        client
            .post(pod.url(path))
            .header("content-type", content_type)
            .body(body)
            .send()
    };
    let json_type = "application/json; charset=utf-8";
    for (path, body, content_type, status) in [
        ("/v1/chat/completions", "{\"model\": ", json_type, 400),
        ("/v1/chat/completions", "[]", json_type, 400),
        ("/v1/chat/completions", "{\"model\": \"m\"}", json_type, 400),
        (
            "/v1/chat/completions",
            "{\"model\": \"m\"}",
            "text/plain",
            400,
        ),
        (
            "/v1/completions",
            "{\"model\": \"x\", \"prompt\": \"a\"}",
            json_type,
            404,
        ),
        (
            "/v1/completions",
            "{\"model\": \"m\", \"prompt\": \"\"}",
            json_type,
            400,
        ),
        ("/v1/responses", "{\"model\": \"m\"}", json_type, 400),
    ] {
        let answer = send(path, body, content_type).await.unwrap();
        assert_eq!(answer.status(), status, "{path} {body}");
        let error: Value = answer.json().await.unwrap();
        assert_eq!(error["error"]["code"], status);
        assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string());
    }
    let unknown = send(
        "/v1/messages",
        "{\"model\": \"x\", \"max_tokens\": 1, \"messages\": []}",
        json_type,
    )
    .await
    .unwrap();
    assert_eq!(unknown.status(), 404);
    assert_eq!(unknown.json::<Value>().await.unwrap()["type"], "error");
    let too_long = client
        .post(pod.url("/v1/completions"))
        .json(&json!({"model": "m", "prompt": "a".repeat(1000)}));
    let too_long = too_long.send().await.unwrap();
    assert_eq!(too_long.status(), 400);
    assert!(too_long
        .text()
        .await
        .unwrap()
        .contains("maximum context length is 100 tokens"));
    let lost: Value = send("/nowhere", "", json_type)
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(lost, json!({"detail": "Not Found"}));
    assert_eq!(
        client
            .get(pod.url("/v1/completions"))
            .send()
            .await
            .unwrap()
            .status(),
        405
    );
}

#[tokio::test]
async fn the_load_report_comes_when_asked_for() {
    let pod = pod();
    let ask = |format: &'static str| {
        let body = json!({"model": "m", "prompt": "a"});
        Client::new()
            .post(pod.url("/v1/completions"))
            .header("endpoint-load-metrics-format", format)
            .json(&body)
            .send()
    };
    let text = ask("TEXT").await.unwrap();
    assert!(text.headers()["endpoint-load-metrics"]
        .to_str()
        .unwrap()
        .starts_with("TEXT named_metrics."));
    let json_report = ask("JSON").await.unwrap();
    let report = json_report.headers()["endpoint-load-metrics"]
        .to_str()
        .unwrap()
        .strip_prefix("JSON ")
        .unwrap();
    assert!(
        serde_json::from_str::<Value>(report).unwrap()["named_metrics"]["num_requests_waiting"]
            .is_number()
    );
    assert!(ask("none")
        .await
        .unwrap()
        .headers()
        .get("endpoint-load-metrics")
        .is_none());
}

#[tokio::test]
async fn fast_mode_answers_without_parsing() {
    let pod = SimPod::start(PodConfig {
        fast: true,
        ..PodConfig::default()
    })
    .unwrap();
    let answer = Client::new()
        .post(pod.url("/v1/chat/completions"))
        .body("not JSON")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.json::<Value>().await.unwrap()["object"],
        "chat.completion"
    );
    assert_eq!(pod.stats().requests, 1);
    assert!(pod.received().is_empty());
}
