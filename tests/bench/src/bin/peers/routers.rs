//! What is compared: the shipped Envoy with the filter, the same Envoy without it, and the
//! cache-aware routers that anybody can install, each with the settings that the report states.
//!
//! A peer lives in a virtual environment of its own under `target/peers-venv`, because two of
//! them install the same command. One that is not there or does not serve is skipped by name.

use anyhow::{bail, Context, Result};
use bench::load;
use e2e::bootstrap::{root, Bootstrap};
use e2e::envoy::{free_port, Envoy, Options};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The row of the filter.
pub const OURS: &str = "prefix-router";
/// The row of Envoy without it.
pub const STOCK: &str = "stock Envoy";
/// The pods themselves, what a router's cost is counted from.
pub const DIRECT: &str = "direct";

/// What the pods of a phase can hold, for settings that follow from it.
#[derive(Clone, Copy)]
pub struct Fleet<'a> {
    pub ports: &'a [u16],
    /// Tokens of one pod's cache, where it is small enough to matter; else all stay at their
    /// defaults.
    pub cache_tokens: Option<usize>,
    /// Worker threads of Envoy.
    pub workers: u32,
    /// Instead of what [`radix`] says.
    pub radix: Option<&'a str>,
}

/// A router of somebody else.
struct Peer {
    name: &'static str,
    command: &'static str,
    /// Before the options.
    subcommand: &'static [&'static str],
    /// What differs from its defaults, as the report states it.
    settings: fn(Fleet) -> String,
    /// How it is told of pods, ports and logs.
    plumbing: fn(&[String], u16) -> Vec<String>,
    /// Its memory of prompts decides.
    cache_aware: bool,
}

/// What the three of one family share. Their gate abandons the cache when one worker has so many
/// requests more than another: 64 by default, which these chats never reach, so they get a fair
/// one. Their trees are told what the pods can hold, in characters, of which four are a token.
fn radix(fleet: Fleet, trees_share: usize) -> String {
    let Some(tokens) = fleet.cache_tokens else {
        return "--policy cache_aware".into();
    };
    if let Some(given) = fleet.radix {
        return given.into();
    }
    format!(
        "--policy cache_aware --balance-abs-threshold 8 --balance-rel-threshold 1.5 --max-tree-size {} \
         --eviction-interval-secs 5",
        tokens * 4 * trees_share
    )
}

fn rust_router(pods: &[String], port: u16, level: &str) -> Vec<String> {
    let prometheus = free_port();
    let fixed = format!(
        "--host 127.0.0.1 --port {port} --log-level {level} --worker-startup-check-interval 1 \
         --prometheus-host 127.0.0.1 --prometheus-port {prometheus} --worker-urls"
    );
    let fixed = fixed.split(' ').map(str::to_string);
    fixed.chain(pods.iter().cloned()).collect()
}

const PEERS: [Peer; 4] = [
    Peer {
        name: "sglang-router",
        command: "sglang-router",
        subcommand: &["launch"],
        settings: |fleet| radix(fleet, 1),
        plumbing: |pods, port| rust_router(pods, port, "warn"),
        cache_aware: true,
    },
    Peer {
        name: "vllm-router",
        command: "vllm-router",
        subcommand: &[],
        settings: |fleet| radix(fleet, 1),
        plumbing: |pods, port| rust_router(pods, port, "warning"),
        cache_aware: true,
    },
    Peer {
        name: "smg",
        command: "smg",
        subcommand: &["launch"],
        // One tree for all workers.
        settings: |fleet| radix(fleet, fleet.ports.len()),
        plumbing: |pods, port| rust_router(pods, port, "warn"),
        cache_aware: true,
    },
    Peer {
        name: "production-stack",
        command: "vllm-router",
        subcommand: &[],
        settings: |_| "--routing-logic prefixaware".into(),
        plumbing: |pods, port| {
            let models = vec!["m"; pods.len()].join(",");
            let pods = pods.join(",");
            let all = format!(
                "--host 127.0.0.1 --port {port} --log-level warning --service-discovery static \
                 --static-models {models} --static-backends {pods}"
            );
            all.split(' ').map(str::to_string).collect()
        },
        cache_aware: true,
    },
];

enum Process {
    None,
    Envoy(Box<Envoy>),
    Peer(Child),
}

/// A running router; ended when dropped.
pub struct Router {
    pub name: String,
    pub version: String,
    pub settings: String,
    pub cache_aware: bool,
    pub address: SocketAddr,
    process: Process,
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Process::Peer(child) = &mut self.process {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Router {
    /// Process id; the pods themselves have none here.
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::None => None,
            Process::Envoy(envoy) => Some(envoy.pid()),
            Process::Peer(child) => Some(child.id()),
        }
    }

    /// Waits until a chat is answered through it, several times in a row.
    fn wait_until_it_serves(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let body = br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"are you there?"}]}"#;
        let mut answered = 0;
        while answered < 5 {
            if let Process::Peer(child) = &mut self.process {
                if let Some(status) = child.try_wait()? {
                    bail!("ended with {status}");
                }
            }
            match load::once(self.address, &load::request(body)) {
                Ok(_) => answered += 1,
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => answered = 0,
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// Starts everything whose name is in `only` (everything, when that is empty) in front of a
/// fleet; with it, why the others were skipped.
pub async fn start(fleet: Fleet<'_>, only: &[String]) -> Result<(Vec<Router>, Vec<String>)> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    let mut started = Vec::new();
    let mut skipped = Vec::new();
    if wanted(DIRECT) {
        started.push(direct(fleet)?);
    }
    for name in [STOCK, OURS] {
        if wanted(name) {
            started.push(envoy(fleet, name).await);
        }
    }
    for peer in PEERS.iter().filter(|peer| wanted(peer.name)) {
        match launch(peer, fleet) {
            Ok(router) => started.push(router),
            Err(error) => skipped.push(format!("{}: {error:#}", peer.name)),
        }
    }
    let mut routers = Vec::new();
    for mut router in started {
        match router.wait_until_it_serves() {
            Ok(()) => routers.push(router),
            Err(error) => skipped.push(format!("{}: does not serve: {error:#}", router.name)),
        }
    }
    Ok((routers, skipped))
}

fn direct(fleet: Fleet) -> Result<Router> {
    let port = *fleet.ports.first().context("a pod")?;
    Ok(Router {
        name: DIRECT.into(),
        version: String::new(),
        settings: "one of the pods, no router".into(),
        cache_aware: false,
        address: (Ipv4Addr::LOCALHOST, port).into(),
        process: Process::None,
    })
}

async fn envoy(fleet: Fleet<'_>, name: &str) -> Router {
    let options = Options::new(fleet.workers);
    let (first, more) = fleet.ports.split_at(3);
    let shipped = Bootstrap::shipped()
        .with_ports(&options, [first[0], first[1], first[2]])
        .with_more_pods(more);
    let ours = name == OURS;
    let mut settings = "shipped `envoy.yaml`".to_string();
    let mut bootstrap = shipped;
    if !ours {
        settings.push_str(" less the filter: `LEAST_REQUEST`");
        bootstrap = bootstrap.without_filter();
    } else if let Some(tokens) = fleet.cache_tokens {
        // A chunk is 256 bytes, 64 tokens of the simulated pods.
        let capacity = tokens / 64;
        settings.push_str(&format!(", `capacity_chunks` {capacity}"));
        bootstrap = bootstrap.with_plugin(serde_json::json!({ "capacity_chunks": capacity }));
    }
    let envoy = Envoy::start(&bootstrap, options).await;
    Router {
        name: name.into(),
        version: format!("{} workers", fleet.workers),
        settings,
        cache_aware: ours,
        address: envoy.address(),
        process: Process::Envoy(Box::new(envoy)),
    }
}

fn launch(peer: &Peer, fleet: Fleet) -> Result<Router> {
    let bin = root().join("target/peers-venv").join(peer.name).join("bin");
    let command = bin.join(peer.command);
    if !command.is_file() {
        bail!("not installed ({} does not exist)", relative(&command));
    }
    let port = free_port();
    let urls: Vec<String> = fleet
        .ports
        .iter()
        .map(|p| format!("http://127.0.0.1:{p}"))
        .collect();
    let settings = (peer.settings)(fleet);
    let log = log_file(peer.name)?;
    let child = Command::new(&command)
        .args(peer.subcommand)
        .args((peer.plumbing)(&urls, port))
        .args(settings.split_whitespace())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(Router {
        name: peer.name.into(),
        version: version(&bin, peer.command),
        settings: format!("`{settings}`"),
        cache_aware: peer.cache_aware,
        address: (Ipv4Addr::LOCALHOST, port).into(),
        process: Process::Peer(child),
    })
}

fn version(bin: &std::path::Path, package: &str) -> String {
    let ask = format!("import importlib.metadata as m; print(m.version('{package}'))");
    let said = Command::new(bin.join("python")).args(["-c", &ask]).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    said.unwrap_or_default()
}

fn log_file(name: &str) -> Result<File> {
    let directory = root().join("target/peers");
    std::fs::create_dir_all(&directory)?;
    Ok(File::create(directory.join(format!("{name}.log")))?)
}

fn relative(path: &std::path::Path) -> String {
    let root: PathBuf = root();
    path.strip_prefix(&root)
        .unwrap_or(path)
        .display()
        .to_string()
}
