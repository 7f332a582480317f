//! Simulated time: FIFO prefill, decode, slots. Bounds are one-sided, so that a slow machine
//! cannot break them.

mod common;

use std::time::{Duration, Instant};

use common::{post, Client};
use serde_json::json;
use sim_vllm::{PodConfig, SimPod};

const PATH: &str = "/v1/completions";

fn prompt(first: u32, tokens: usize) -> serde_json::Value {
    json!({"model": "m", "prompt": vec![first; tokens], "max_tokens": 4})
}

#[tokio::test]
async fn prefill_takes_time_for_what_is_not_cached() {
    let pod = SimPod::start(PodConfig {
        prefill_tokens_per_s: 2000.0,
        ..PodConfig::default()
    })
    .unwrap();
    let start = Instant::now();
    post(&pod, PATH, &prompt(1, 800)).await;
    let cold = start.elapsed();
    assert!(cold >= Duration::from_millis(400), "{cold:?}");
    let start = Instant::now();
    post(&pod, PATH, &prompt(1, 800)).await;
    assert!(start.elapsed() < cold, "16 of 800 tokens were computed");
}

#[tokio::test]
async fn prefills_wait_for_each_other_in_order() {
    let pod = SimPod::start(PodConfig {
        prefill_tokens_per_s: 2000.0,
        ..PodConfig::default()
    })
    .unwrap();
    let start = Instant::now();
    let mut sent = Vec::new();
    for i in 0..3 {
        let (url, body) = (pod.url(PATH), prompt(i, 400));
        sent.push(tokio::spawn(async move {
            Client::new().post(url).json(&body).send().await.unwrap();
            Instant::now()
        }));
        while pod.stats().running + pod.stats().waiting <= i.into() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!((pod.stats().running, pod.stats().waiting), (1, 2));
    let mut ends = Vec::new();
    for task in sent {
        ends.push(task.await.unwrap());
    }
    assert!(ends.is_sorted());
    assert!(ends[2] - start >= Duration::from_millis(600));
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_back() {
    let pod = SimPod::start(PodConfig {
        prefill_tokens_per_s: 100.0,
        ..PodConfig::default()
    })
    .unwrap();
    let (url, body) = (pod.url(PATH), prompt(1, 10_000));
    let gone = tokio::spawn(async move { Client::new().post(url).json(&body).send().await });
    while pod.stats().running == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(pod.stats().blocks_pinned >= 625);
    gone.abort();
    let short = prompt(2, 10);
    let next = tokio::time::timeout(Duration::from_secs(20), post(&pod, PATH, &short));
    next.await
        .expect("the next one does not wait for 100 s of abandoned prefill");
    assert_eq!(pod.stats().blocks_pinned, 0);
}

#[tokio::test]
async fn tokens_come_one_by_one_and_slots_are_bounded() {
    let config = PodConfig {
        decode_ms_per_token: 50.0,
        max_num_seqs: 1,
        ..PodConfig::default()
    };
    let pod = SimPod::start(config).unwrap();
    let mut body = prompt(1, 10);
    body["stream"] = json!(true);
    let start = Instant::now();
    let mut answer = Client::new()
        .post(pod.url(PATH))
        .json(&body)
        .send()
        .await
        .unwrap();
    let mut waiting = tokio::spawn(
        Client::new()
            .post(pod.url(PATH))
            .json(&prompt(2, 10))
            .send(),
    );
    let mut chunks = 0;
    while answer.chunk().await.unwrap().is_some() {
        chunks += 1;
    }
    assert!(chunks >= 4, "{chunks} chunks");
    assert!(start.elapsed() >= Duration::from_millis(200));
    (&mut waiting).await.unwrap().unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(400),
        "the second request had to wait for the only slot"
    );
}

#[tokio::test]
async fn requests_wait_for_blocks() {
    let config = PodConfig {
        num_gpu_blocks: 8,
        decode_ms_per_token: 20.0,
        ..PodConfig::default()
    };
    let pod = SimPod::start(config).unwrap();
    let many = (0..4).map(|i| {
        let request = Client::new()
            .post(pod.url(PATH))
            .json(&prompt(i, 80))
            .send();
        tokio::spawn(async { request.await.unwrap().status() })
    });
    for answer in many.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), 200);
    }
    let too_long = Client::new()
        .post(pod.url(PATH))
        .json(&prompt(9, 129))
        .send()
        .await
        .unwrap();
    assert_eq!(too_long.status(), 400);
}
