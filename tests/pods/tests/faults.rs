//! Faults do what they say, on the wire.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::{pod, post, raw, Client};
use serde_json::{json, Value};
use sim_vllm::{Cut, Fault, PodConfig, SimPod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATH: &str = "/v1/completions";

fn body() -> Value {
    json!({"model": "m", "prompt": "x".repeat(400)})
}

fn request(extra: &str) -> Vec<u8> {
    let body = body().to_string();
    let length = body.len();
    format!("POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n{extra}\r\n{body}")
        .into_bytes()
}

async fn refused(pod: &SimPod) -> bool {
    TcpStream::connect(pod.addr)
        .await
        .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

#[tokio::test]
async fn status_and_times_and_spoof() {
    let pod = pod();
    let spoof = "pod=\"evil\", matched=9";
    pod.set_fault(Fault {
        status: Some(503),
        times: Some(1),
        spoof: Some(spoof.into()),
        ..Fault::default()
    });
    let client = Client::new();
    assert_eq!(
        client
            .get(pod.url("/health"))
            .send()
            .await
            .unwrap()
            .status(),
        200,
        "only inference fails"
    );
    let failed = client
        .post(pod.url(PATH))
        .json(&body())
        .send()
        .await
        .unwrap();
    assert_eq!(failed.status(), 503);
    assert_eq!(failed.headers()["x-prefix-router"], spoof);
    assert_eq!(failed.json::<Value>().await.unwrap()["error"]["code"], 503);
    assert_eq!(pod.stats().prompt_tokens, 0, "nothing was computed");
    let well = client
        .post(pod.url(PATH))
        .json(&body())
        .send()
        .await
        .unwrap();
    assert_eq!(well.status(), 200);
    assert!(well.headers().get("x-prefix-router").is_none());
}

#[tokio::test]
async fn delay_by_header_and_only_on_the_named_pod() {
    let pod = pod();
    let send = |fault: Value| {
        let request = Client::new()
            .post(pod.url(PATH))
            .header("x-sim-fault", fault.to_string())
            .json(&body());
        async {
            let start = Instant::now();
            (request.send().await.unwrap().status(), start.elapsed())
        }
    };
    let (status, took) = send(json!({"delay_ms": 150})).await;
    assert!(
        status == 200 && took >= Duration::from_millis(150),
        "{took:?}"
    );
    assert_eq!(send(json!({"status": 500, "pod": "vllm-7"})).await.0, 200);
    assert_eq!(send(json!({"status": 500, "pod": "vllm-0"})).await.0, 500);
    assert_eq!(send(json!({"unknown": 1})).await.0, 400);
}

#[tokio::test]
async fn reset_before_the_first_byte() {
    let pod = pod();
    let (got, end) = raw(
        pod.addr,
        &request("x-sim-fault: {\"cut\":\"before_answer\"}\r\n"),
    )
    .await;
    assert!(got.is_empty());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(
        pod.last_request().unwrap().complete,
        "the request itself was read"
    );
}

#[tokio::test]
async fn reset_in_the_middle_of_the_body() {
    let pod = pod();
    pod.set_fault(Fault {
        cut: Some(Cut::InBody),
        ..Fault::default()
    });
    let (got, end) = raw(pod.addr, &request("")).await;
    let text = String::from_utf8(got).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(
        text.contains("\"text\"") || text.contains("\"choices\""),
        "half of the answer came: {text}"
    );
    assert!(
        !text.contains("usage"),
        "and the other half did not: {text}"
    );
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_stream_breaks_off_too_and_frees_its_blocks() {
    let pod = pod();
    pod.set_fault(Fault {
        cut: Some(Cut::InBody),
        ..Fault::default()
    });
    let mut streamed = body();
    streamed["stream"] = json!(true);
    let answer = Client::new()
        .post(pod.url(PATH))
        .json(&streamed)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.is_err());
    for _ in 0..100 {
        if pod.stats().blocks_pinned == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("blocks of a broken request stay pinned");
}

#[tokio::test]
async fn http2_streams_are_reset_and_the_connection_lives() {
    let pod = pod();
    let client = Client::builder().http2_prior_knowledge().build().unwrap();
    for cut in [Cut::BeforeAnswer, Cut::InBody] {
        pod.set_fault(Fault {
            cut: Some(cut),
            times: Some(1),
            ..Fault::default()
        });
        match client.post(pod.url(PATH)).json(&body()).send().await {
            Err(_) => assert_eq!(cut, Cut::BeforeAnswer),
            Ok(answer) => assert!(answer.bytes().await.is_err() && cut == Cut::InBody),
        }
    }
    assert_eq!(
        client
            .post(pod.url(PATH))
            .json(&body())
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}

#[tokio::test]
async fn never_answering() {
    let pod = pod();
    pod.set_fault(Fault {
        cut: Some(Cut::NeverAnswer),
        ..Fault::default()
    });
    let mut stream = TcpStream::connect(pod.addr).await.unwrap();
    stream.write_all(&request("")).await.unwrap();
    let read = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
    assert!(read.is_err(), "neither answer nor end");
}

#[tokio::test]
async fn answering_before_the_body_was_sent() {
    let pod = pod();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\
                x-sim-fault: {\"early\":true,\"status\":429}\r\n\r\n";
    let mut stream = TcpStream::connect(pod.addr).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 429");
    let logged = pod.last_request().unwrap();
    assert!(!logged.complete && logged.body_len == 0);
}

#[tokio::test]
async fn stopping_and_starting_on_the_same_port() {
    let pod = pod();
    let mut idle = TcpStream::connect(pod.addr).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    idle.read_u8().await.unwrap();
    for _ in 0..3 {
        pod.stop();
        assert!(refused(&pod).await);
        pod.start_again().unwrap();
        post(&pod, PATH, &body()).await;
    }
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await;
    assert_eq!(
        end.expect("open connections end").unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert!(pod.stats().cached_tokens > 0, "the cache survived");
}

#[tokio::test]
async fn refusing_for_a_time_by_the_control_api() {
    let pod = pod();
    let client = Client::new();
    let fault = client
        .post(pod.url("/sim/fault"))
        .body(r#"{"refuse_ms": 300}"#);
    assert_eq!(fault.send().await.unwrap().status(), 200);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(refused(&pod).await);
    for _ in 0..100 {
        if !refused(&pod).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("still refusing");
}

#[tokio::test]
async fn failing_health_and_restarting() {
    let pod = pod();
    let client = Client::new();
    post(&pod, PATH, &body()).await;
    let started = pod.stats().process_start_time;
    client
        .post(pod.url("/sim/fault"))
        .body(r#"{"fail_health": true, "restart": true}"#)
        .send()
        .await
        .unwrap();
    assert_eq!(
        client
            .get(pod.url("/health"))
            .send()
            .await
            .unwrap()
            .status(),
        503
    );
    assert!(pod.stats().process_start_time > started);
    let again = post(&pod, PATH, &body()).await;
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    client.delete(pod.url("/sim/fault")).send().await.unwrap();
    assert_eq!(
        client
            .get(pod.url("/health"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}

#[tokio::test]
async fn a_restart_under_a_running_request_caches_nothing() {
    let pod = SimPod::start(PodConfig {
        prefill_tokens_per_s: 1000.0,
        ..PodConfig::default()
    })
    .unwrap();
    let (url, sent) = (pod.url(PATH), body());
    let running = tokio::spawn(async move {
        Client::new()
            .post(url)
            .json(&sent)
            .send()
            .await
            .unwrap()
            .status()
    });
    while pod.stats().running == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    pod.restart();
    assert_eq!(running.await.unwrap(), 200);
    assert_eq!(
        (pod.stats().blocks_named, pod.stats().blocks_pinned),
        (0, 0)
    );
}
