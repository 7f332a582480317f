//! The echo, the log, upgrades.

mod common;

use common::{pod, raw, Client};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use twox_hash::XxHash64;

#[tokio::test]
async fn echo_tells_method_path_headers_and_checksum() {
    let pod = pod();
    let request = b"PURGE /sim/echo/a?b=c HTTP/1.1\r\nhost: h\r\nx-raw: caf\xe9\r\nconnection: close\r\n\
                    transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx-trail: er\r\n\r\n";
    let (got, _) = raw(pod.addr, request).await;
    let text = String::from_utf8(got).unwrap();
    let told: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(told["method"], "PURGE");
    assert_eq!(told["path"], "/sim/echo/a?b=c");
    assert_eq!(told["body_len"], 5);
    assert_eq!(
        told["body_xxh64"],
        format!("{:016x}", XxHash64::oneshot(0, b"abcde"))
    );
    assert_eq!(told["trailers"][0]["value"], "er");
    let headers = told["headers"].as_array().unwrap();
    assert_eq!(
        headers.iter().find(|h| h["name"] == "x-raw").unwrap()["base64"],
        "Y2Fm6Q=="
    );
}

#[tokio::test]
async fn any_path_echoes_on_request_and_is_logged() {
    let pod = pod();
    let big = vec![b'x'; 3 << 20];
    let answer = Client::new()
        .post(pod.url("/v1/chat/completions?q=1"))
        .header("x-sim-echo", "1")
        .body(big.clone());
    let told: Value = answer.send().await.unwrap().json().await.unwrap();
    assert_eq!(told["body_len"], big.len());
    let logged = pod.last_request().unwrap();
    assert_eq!(logged.path, "/v1/chat/completions?q=1");
    assert_eq!(logged.header("X-Sim-Echo").as_deref(), Some("1"));
    assert_eq!(
        (logged.body_len, logged.body_xxh64),
        (big.len() as u64, XxHash64::oneshot(0, &big))
    );
    assert!(logged.complete);
    let listed: Value = Client::new()
        .get(pod.url("/sim/received"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        listed.as_array().unwrap().len(),
        1,
        "the control API itself is not logged"
    );
    pod.clear_received();
    assert!(pod.received().is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_in_its_body_is_logged_as_incomplete() {
    let pod = pod();
    let mut stream = TcpStream::connect(pod.addr).await.unwrap();
    stream
        .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc")
        .await
        .unwrap();
    drop(stream);
    while pod.received().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let logged = pod.last_request().unwrap();
    assert_eq!((logged.complete, logged.body_len), (false, 3));
    assert_eq!(logged.body_xxh64, XxHash64::oneshot(0, b"abc"));
}

async fn echoes_bytes(head: &[u8], status: &[u8]) {
    let pod = pod();
    let mut stream = TcpStream::connect(pod.addr).await.unwrap();
    stream.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(
        answer.starts_with(status),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    for sent in [&b"ping"[..], b"\x00\xff\x81"] {
        stream.write_all(sent).await.unwrap();
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, sent);
    }
    assert!(head.starts_with(pod.last_request().unwrap().method.as_bytes()));
    pod.stop();
    let mut byte = [0];
    assert!(
        matches!(stream.read(&mut byte).await, Ok(0) | Err(_)),
        "stopping ends it"
    );
}

#[tokio::test]
async fn upgrades_echo() {
    let head = b"GET /ws HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n";
    echoes_bytes(head, b"HTTP/1.1 101").await;
}

#[tokio::test]
async fn connect_echoes() {
    echoes_bytes(
        b"CONNECT h:80 HTTP/1.1\r\nhost: h:80\r\n\r\n",
        b"HTTP/1.1 200",
    )
    .await;
}
