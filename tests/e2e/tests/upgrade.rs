//! A new module or configuration, and the way back, while requests flow: none is lost, and the
//! table is kept as long as its geometry is.

use e2e::bootstrap::{module, Bootstrap};
use e2e::client::{post, request, slow, Conn, Version};
use e2e::decision::{self, Decision};
use e2e::envoy::{Envoy, Options};
use e2e::rig;
use e2e::stub::Stub;
use http::Method;
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const CHAT: &str = "/v1/chat/completions";

/// Clients that send one request after the other until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Result<u64, String>>,
}

impl Load {
    /// Two that keep their connection until Envoy closes it, two that take a new one each time,
    /// one whose body is still on its way when the listener changes.
    fn start(to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let stop = stop.clone();
            clients.spawn(async move { ask_on(to, client, &stop).await });
        }
        let stopped = stop.clone();
        clients.spawn(async move {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                slowly(to).await?;
                sent += 1;
            }
            Ok(sent)
        });
        Self { stop, clients }
    }

    /// How many requests there were; any that was not answered by 200 fails the test.
    async fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = 0;
        while let Some(client) = self.clients.join_next().await {
            sent += client.expect("a client").expect("every request is served");
        }
        sent
    }
}

async fn ask_on(to: SocketAddr, client: u64, stop: &AtomicBool) -> Result<u64, String> {
    let mut conn = Conn::try_open(to, Version::H1).await?;
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        // Few enough that they push nothing else out of the table.
        let body = rig::prompt(&format!("client {client} asks {}", sent % 25), 1000);
        let reply = conn.try_send(post(CHAT, &body)).await;
        let reply = reply.map_err(|e| format!("request {sent} of {client}: {e}"))?;
        if reply.status != 200 {
            return Err(format!("request {sent} of {client}: {reply:?}"));
        }
        sent += 1;
        let closes = reply.headers.get("connection");
        if client >= 2 || closes.is_some_and(|value| value == "close") {
            conn = Conn::try_open(to, Version::H1).await?;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(sent)
}

/// A body that takes half a second.
async fn slowly(to: SocketAddr) -> Result<(), String> {
    let text = rig::prompt("takes its time", 1000).to_string();
    let (first, second) = text.split_at(text.len() / 2);
    let (sender, body) = slow();
    let headers = [("content-type", "application/json")];
    let request = request(Method::POST, CHAT, &headers, body);
    let mut conn = Conn::try_open(to, Version::H1).await?;
    let answer = tokio::spawn(async move { conn.try_send(request).await });
    for part in [first, second] {
        let _ = sender.send(part.to_string().into()).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    drop(sender);
    let reply = answer.await.expect("a task")?;
    match reply.status.as_u16() {
        200 => Ok(()),
        _ => Err(format!("the slow one: {reply:?}")),
    }
}

async fn ask(envoy: &Envoy, body: &Value) -> Decision {
    let reply = envoy.connect(Version::H1).await.post(CHAT, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.decision()
}

/// Every prompt is where it was, from several connections, so that every worker is asked.
async fn known(envoy: &Envoy, homes: &[(Value, Decision)], after: &str) {
    for (body, home) in homes {
        for _ in 0..4 {
            let now = ask(envoy, body).await;
            assert_eq!(now.hit(), (home.chunks, home.chunks), "after {after}");
            assert_eq!(now.pod, home.pod, "after {after}");
        }
    }
}

/// The same program in other bytes: with a custom section at its end, which Envoy hashes as well.
fn other_module(file: &Path) {
    let mut bytes = std::fs::read(module()).expect("the module; run `make build`");
    bytes.extend_from_slice(b"\x00\x05\x04next");
    std::fs::write(file, bytes).expect("write");
}

#[tokio::test]
async fn module_and_configuration_change_under_load() {
    let pods = Stub::three().await;
    let options = Options {
        dynamic: true,
        drain_s: 4,
        ..Options::new(2)
    };
    let ports = pods.each_ref().map(Stub::port);
    // Connections of HTTP/1 are told to close this long after theirs has begun to drain, which takes
    // a second or two, and are cut when the old listener ends.
    let old = Bootstrap::shipped()
        .with_ports(&options, ports)
        .with_manager("drain_timeout", json!("0.1s"));
    let mut envoy = Envoy::start(&old, options).await;
    rig::healthy(&envoy).await;
    let mut homes = vec![];
    for i in 0..6 {
        let body = rig::prompt(&format!("kept {i}"), 4000);
        let home = ask(&envoy, &body).await;
        assert_eq!(home.matched, 0);
        homes.push((body, home));
    }
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let next = dir.path().join("prefix_router-next.wasm");
    other_module(&next);
    let upgraded = old.clone().with_module(&next);
    let tuned = json!({ "match_bytes": 262144, "policy": { "home_discount": 0.25 } });
    let tuned = upgraded.clone().with_plugin(tuned);

    let load = Load::start(envoy.address());
    for (bootstrap, what) in [
        (&upgraded, "a new module"),
        (&tuned, "a new configuration"),
        (&upgraded, "the old configuration"),
        (&old, "the old module"),
    ] {
        envoy.update(bootstrap).await;
        known(&envoy, &homes, what).await;
    }

    // Out with one change, and in again. The listener of the API keeps the VM, and the VM the table;
    // once both are out, nothing does.
    let bypassed = old.clone().without_http_filter("prefix_router");
    for (without, kept) in [(bypassed, true), (old.clone().without_filter(), false)] {
        envoy.update(&without).await;
        for (body, _) in &homes {
            let reply = envoy.connect(Version::H1).await.post(CHAT, body).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            assert!(!reply.headers.contains_key(decision::HEADER));
        }
        envoy.update(&old).await;
        if kept {
            known(&envoy, &homes, "a time without the filter").await;
        } else {
            assert_eq!(ask(&envoy, &homes[0].0).await.matched, 0);
        }
    }

    // Another geometry starts an empty table, on the way back too.
    for bytes in [512, 256] {
        let other = old.clone().with_plugin(json!({ "chunk_bytes": bytes }));
        envoy.update(&other).await;
        let first = ask(&envoy, &homes[0].0).await;
        assert_eq!(first.matched, 0, "chunks of {bytes} bytes");
        let again = ask(&envoy, &homes[0].0).await;
        assert_eq!(again.hit(), (first.chunks, first.chunks));
    }

    let sent = load.stop().await;
    println!("{sent} requests, none lost");
    assert!(sent > 300, "{sent} requests are no load");
    for pod in &pods {
        let seen = pod.take();
        assert!(seen.iter().all(|request| request.complete), "cut bodies");
    }
}
