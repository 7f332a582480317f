//! What the tests of the pods share.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use sim_vllm::{PodConfig, SimPod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use reqwest::Client;

/// A default pod.
pub fn pod() -> SimPod {
    SimPod::start(PodConfig::default()).unwrap()
}

/// Posts JSON and reads JSON; any status but 200 is a failure.
pub async fn post(pod: &SimPod, path: &str, body: &Value) -> Value {
    let answer = Client::new()
        .post(pod.url(path))
        .json(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200, "{path} {body}");
    answer.json().await.unwrap()
}

/// Posts JSON and reads a stream of events: name (empty when there is none) and data.
pub async fn events(pod: &SimPod, path: &str, body: &Value) -> Vec<(String, String)> {
    let answer = Client::new()
        .post(pod.url(path))
        .json(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .starts_with("text/event-stream"));
    let text = answer.text().await.unwrap();
    let event = |block: &str| {
        let field = |name: &str| {
            block
                .lines()
                .find_map(|l| l.strip_prefix(name))
                .unwrap_or_default()
                .to_owned()
        };
        (field("event: "), field("data: "))
    };
    text.split("\n\n")
        .filter(|block| !block.is_empty())
        .map(event)
        .collect()
}

/// Sends raw bytes and reads until the connection ends; what was read, and how it ended.
pub async fn raw(addr: SocketAddr, bytes: &[u8]) -> (Vec<u8>, std::io::Result<()>) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await;
        match read.expect("the connection ends") {
            Ok(0) => break Ok(()),
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(error) => break Err(error),
        }
    };
    (got, end)
}
