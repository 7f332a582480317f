//! `envoy/docker/compose.yaml`, run for real: `make test-docker`.
//!
//! `$ENVOY_IMAGE` is the image that runs as Envoy. Whatever happens, nothing of the project stays
//! behind: its name is this process's own.

use e2e::bootstrap::root;
use e2e::client::{Conn, Reply, Version};
use e2e::envoy::free_port;
use e2e::rig;
use e2e::stub::local;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const NEEDS: &str = "needs a Docker engine and images: run `make test-docker`";

/// Runs a command that has to succeed, and gives back what it prints.
fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).trim().to_string();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {NEEDS}\n{text}{error}");
    text
}

fn docker(args: &[&str]) -> String {
    run(Command::new("docker").args(args))
}

/// A running compose project.
struct Project {
    name: String,
    port: u16,
    observe: u16,
}

impl Project {
    fn up() -> Self {
        let this = Self {
            name: format!("prefix-router-test-{}", std::process::id()),
            port: free_port(),
            observe: free_port(),
        };
        run(this.compose().args(["up", "-d", "--no-build"]));
        this
    }

    /// `docker compose`, or its first version, which is a program of its own.
    fn compose(&self) -> Command {
        let plugin = Command::new("docker").args(["compose", "version"]).output();
        let mut compose = if plugin.is_ok_and(|out| out.status.success()) {
            let mut docker = Command::new("docker");
            docker.arg("compose");
            docker
        } else {
            Command::new("docker-compose")
        };
        compose
            .args(["-p", &self.name])
            .current_dir(root().join("envoy/docker"))
            .env("PORT", self.port.to_string())
            .env("OBSERVE_PORT", self.observe.to_string());
        compose
    }

    /// What of a kind (`container`, `network`, `volume`) belongs to the project.
    fn all(&self, kind: &str) -> Vec<String> {
        let label = format!("label=com.docker.compose.project={}", self.name);
        let mut args = vec![kind, "ls", "-q", "--filter", &label];
        args.extend((kind == "container").then_some("-a"));
        docker(&args).lines().map(str::to_string).collect()
    }

    /// Id of a service's container.
    fn container(&self, service: &str) -> String {
        run(self.compose().args(["ps", "-q", service]))
    }

    async fn healthy(&self) {
        eventually("all containers are healthy", || async {
            let all = self.all("container");
            let health = |id: &String| docker(&["inspect", "-f", "{{.State.Health.Status}}", id]);
            assert_eq!(all.len(), 4);
            all.iter().all(|id| health(id) == "healthy")
        })
        .await;
    }

    async fn ask(&self, body: &Value) -> Reply {
        let mut conn = Conn::open(local(self.port), Version::H1).await;
        let reply = conn.post(CHAT, body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.compose().args(["logs", "--tail", "20"]).status();
            let _ = self.compose().args(["down", "-v", "-t", "1"]).output();
        }
    }
}

async fn eventually<F: std::future::Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Number of the pod that served, by its own word: pod 1 is called `sim-1-0`.
fn served(reply: &Reply) -> String {
    let name = reply.headers["x-sim-pod"].to_str().expect("a name");
    name.split('-').nth(1).expect("its number").to_string()
}

#[tokio::test]
#[ignore = "needs a Docker engine and images: make test-docker"]
async fn the_compose_file_serves_and_leaves_nothing() {
    let project = Project::up();
    project.healthy().await;

    let mut homes = BTreeMap::new();
    let chats: Vec<_> = (0..8)
        .map(|i| rig::prompt(&format!("docker {i}"), 4000))
        .collect();
    for (i, chat) in chats.iter().enumerate() {
        let first = project.ask(chat).await;
        let again = project.ask(chat).await;
        let pod = served(&first);
        assert_eq!(served(&again), pod, "the second turn of chat {i}");
        assert_eq!(again.decision().pod, format!("vllm-{pod}"));
        assert!(again.cached_tokens() > first.cached_tokens(), "chat {i}");
        homes.insert(pod, chat);
    }
    assert!(homes.len() > 1, "all on one pod: {homes:?}");
    only_this_machine_reaches_it(&project).await;

    let (pod, chat) = homes.pop_first().expect("a pod");
    let container = project.container(&format!("sim-{pod}"));
    docker(&["stop", &container]);
    for _ in 0..20 {
        let reply = project.ask(chat).await;
        assert_ne!(served(&reply), pod);
    }
    docker(&["start", &container]);
    project.healthy().await;
    let back = || async { served(&project.ask(chat).await) == pod };
    eventually("the pod serves again", back).await;

    run(project.compose().args(["down", "-v"]));
    for kind in ["container", "network", "volume"] {
        assert_eq!(project.all(kind), Vec::<String>::new(), "{kind} left");
    }
}

/// Ports are published on 127.0.0.1, the pods' and the admin listener's not at all.
async fn only_this_machine_reaches_it(project: &Project) {
    let mut published = vec![];
    for id in project.all("container") {
        published.extend(docker(&["port", &id]).lines().map(str::to_string));
    }
    published.sort();
    let expected = [
        format!("8080/tcp -> 127.0.0.1:{}", project.port),
        format!("9902/tcp -> 127.0.0.1:{}", project.observe),
    ];
    assert_eq!(published, expected);

    let mut observe = Conn::open(local(project.observe), Version::H1).await;
    assert_eq!(observe.get("/ready").await.status, 200);
    let metrics = observe.get("/stats/prometheus").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("prefix_router_decisions_total"));
    for hidden in ["/quitquitquit", "/config_dump", "/clusters", "/"] {
        assert_eq!(observe.get(hidden).await.status, 404, "{hidden}");
    }
}
