//! One Envoy process, its logs and its admin listener.
//!
//! Invariant: a run in which the module crashed fails the test, whatever else was asserted: when
//! an [`Envoy`] goes, its log is searched. The process is ended by its id.

use crate::bootstrap::{root, Bootstrap};
use crate::client::{Conn, Reply, Version};
use crate::hosts::move_into_place;
use crate::metrics::Samples;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What only a crashed module or a crashed Envoy writes.
const CRASHES: [&str; 4] = [
    "panicked at",
    "RuntimeError",
    "in-VM backtrace",
    "Caught Segmentation fault",
];

/// The binary: `$ENVOY`, else `envoy` on the path, else the one that `make envoy` installed.
pub fn binary() -> PathBuf {
    if let Some(given) = std::env::var_os("ENVOY") {
        return given.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join("envoy"));
    let installed = root().join("target/envoy-venv/bin/envoy");
    found.find(|p| p.is_file()).unwrap_or(installed)
}

/// A port that nobody listens on. Below the range from which the system takes the ports of
/// outgoing connections, so that none of those takes it before Envoy does.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 12_000 + (std::process::id() % 1000) as u16 * 20;
    loop {
        let port = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000 + 12_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Runs `envoy --mode validate` on a file, from the root of the repository.
pub fn validate(file: &Path) -> Output {
    let mut envoy = Command::new(binary());
    envoy
        .args(["--mode", "validate", "--log-level", "warn"])
        .args(["--service-node", "e2e", "--service-cluster", "e2e", "-c"])
        .arg(file);
    envoy.current_dir(root()).output().expect("envoy runs")
}

/// How to run Envoy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads.
    pub concurrency: u32,
    /// Port of the listener.
    pub listener: u16,
    /// Port of the API's listener.
    pub api: u16,
    /// Port of the admin listener.
    pub admin: u16,
    /// Read the listener from a file, so that [`Envoy::update`] can replace it.
    pub dynamic: bool,
    /// Seconds that an old listener has to end in.
    pub drain_s: u32,
}

impl Options {
    /// On free ports.
    pub fn new(concurrency: u32) -> Self {
        Self {
            concurrency,
            listener: free_port(),
            api: free_port(),
            admin: free_port(),
            dynamic: false,
            drain_s: 1,
        }
    }
}

/// A running Envoy.
pub struct Envoy {
    child: Child,
    dir: TempDir,
    options: Options,
    /// Version of the listener's file, and how many of them were refused.
    version: u32,
    rejected: u64,
    may_end: bool,
}

impl Envoy {
    /// Starts Envoy and waits until it is ready. `bootstrap` has to carry the ports of `options`.
    pub async fn start(bootstrap: &Bootstrap, options: Options) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let mut bootstrap = bootstrap.clone();
        if options.dynamic {
            let file = dir.path().join("lds").join("listeners.json");
            std::fs::create_dir(dir.path().join("lds")).expect("a directory");
            write_listener(&file, &bootstrap, 0);
            bootstrap = bootstrap.with_listeners_from(&file);
        }
        let config = dir.path().join("envoy.json");
        std::fs::write(&config, bootstrap.text()).expect("write the bootstrap");
        let create = |name: &str| File::create(dir.path().join(name)).expect("a log file");
        let child = Command::new(binary())
            .arg("-c")
            .arg(&config)
            .args(["--concurrency", &options.concurrency.to_string()])
            .args(["--use-dynamic-base-id", "--log-level", "info"])
            .args(["--service-node", "e2e", "--service-cluster", "e2e"])
            .args(["--file-flush-interval-msec", "50"])
            .args(["--drain-time-s", &options.drain_s.to_string()])
            .args([
                "--parent-shutdown-time-s",
                &(options.drain_s + 1).to_string(),
            ])
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(create("access.log"))
            .stderr(create("envoy.log"))
            .spawn()
            .unwrap_or_else(|e| panic!("{:?}: {e}; run `make envoy`", binary()));
        let mut this = Self {
            child,
            dir,
            options,
            version: 0,
            rejected: 0,
            may_end: false,
        };
        this.wait_until_ready().await;
        this
    }

    async fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("envoy ended with {status}:\n{}", tail(&self.log(), 30));
            }
            if let Ok(mut conn) = Conn::try_open(self.admin_address(), Version::H1).await {
                let ready = crate::client::request(
                    http::Method::GET,
                    "/ready",
                    &[],
                    crate::client::full(""),
                );
                if conn.try_send(ready).await.is_ok_and(|r| r.status == 200) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("envoy is not ready after 30 s:\n{}", tail(&self.log(), 30));
    }

    /// Where requests go.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.options.listener).into()
    }

    /// Where the API is.
    pub fn api_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.options.api).into()
    }

    /// Where the admin listener is.
    pub fn admin_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.options.admin).into()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Envoy's log, the module's lines among them.
    pub fn log(&self) -> String {
        read(&self.dir.path().join("envoy.log"))
    }

    /// The access log.
    pub fn access_log(&self) -> String {
        read(&self.dir.path().join("access.log"))
    }

    /// A connection to the listener.
    pub async fn connect(&self, version: Version) -> Conn {
        Conn::open(self.address(), version).await
    }

    /// GETs a page of the admin listener.
    pub async fn admin(&self, path: &str) -> Reply {
        Conn::open(self.admin_address(), Version::H1)
            .await
            .get(path)
            .await
    }

    /// All metrics as Prometheus sees them.
    pub async fn prometheus(&self) -> Samples {
        let reply = self.admin("/stats/prometheus").await;
        Samples::parse(&String::from_utf8_lossy(&reply.body))
    }

    /// The counter or gauge that Envoy itself calls `name`; 0 when it has never been touched.
    pub async fn stat(&self, name: &str) -> u64 {
        let reply = self.admin("/stats?format=json").await.json();
        let all = reply["stats"].as_array().expect("stats").iter();
        let mut all = all.filter(|s| s["name"] == name);
        all.next().and_then(|s| s["value"].as_u64()).unwrap_or(0)
    }

    /// Replaces the listener, and waits until the workers use it.
    pub async fn update(&mut self, bootstrap: &Bootstrap) {
        assert!(self.options.dynamic, "this Envoy has a static listener");
        self.version += 1;
        let file = self.dir.path().join("lds").join("listeners.json");
        write_listener(&file, bootstrap, self.version);
        const UNFINISHED: [&str; 3] = [
            "listener_manager.total_listeners_warming",
            "listener_manager.total_listeners_draining",
            "listener_manager.total_filter_chains_draining",
        ];
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let loaded = self.stat("listener_manager.lds.update_success").await;
            let rejected = self.stat("listener_manager.lds.update_rejected").await;
            assert_eq!(
                rejected,
                self.rejected,
                "refused:\n{}",
                tail(&self.log(), 9)
            );
            let mut unfinished = 0;
            for stat in UNFINISHED {
                unfinished += self.stat(stat).await;
            }
            if loaded == u64::from(self.version) + 1 - rejected && unfinished == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the update did not arrive:\n{}", tail(&self.log(), 30));
    }

    /// Tries to replace the listener by one that Envoy has to refuse, with `word` in its reason.
    pub async fn refuse(&mut self, bootstrap: &Bootstrap, word: &str) {
        self.version += 1;
        self.rejected += 1;
        let file = self.dir.path().join("lds").join("listeners.json");
        write_listener(&file, bootstrap, self.version);
        let once_more =
            || async { self.stat("listener_manager.lds.update_rejected").await == self.rejected };
        self.eventually("the update is refused", once_more).await;
        let log = self.log();
        assert!(
            log.lines()
                .any(|l| l.contains("wasm log") && l.contains(word)),
            "{}",
            tail(&log, 9)
        );
    }

    /// Waits until `holds`, and fails with `what` after 10 s.
    pub async fn eventually<F: std::future::Future<Output = bool>>(
        &self,
        what: &str,
        holds: impl FnMut() -> F,
    ) {
        self.within(Duration::from_secs(10), what, holds).await;
    }

    /// The same with other patience.
    pub async fn within<F: std::future::Future<Output = bool>>(
        &self,
        patience: Duration,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) {
        let deadline = Instant::now() + patience;
        while !holds().await {
            assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends Envoy, if it has not ended already: Ctrl-C in a terminal reaches it as well.
    pub fn stop(mut self) {
        self.may_end = true;
    }

    /// Lines of the log that only a crash writes.
    pub fn crashes(&self) -> Vec<String> {
        let log = self.log();
        let crashed = |line: &&str| CRASHES.iter().any(|crash| line.contains(crash));
        log.lines().filter(crashed).map(str::to_string).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten();
        if std::thread::panicking() {
            // The access log is written every 50 ms.
            std::thread::sleep(Duration::from_millis(150));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- end of Envoy's log\n{}", tail(&self.log(), 25));
            eprintln!(
                "--- end of the access log\n{}",
                tail(&self.access_log(), 10)
            );
            return;
        }
        assert!(
            ended.is_none(),
            "envoy ended by itself: {ended:?}\n{}",
            tail(&self.log(), 30)
        );
        let crashes = self.crashes();
        assert!(
            crashes.is_empty(),
            "the module crashed:\n{}",
            crashes.join("\n")
        );
    }
}

fn write_listener(file: &Path, bootstrap: &Bootstrap, version: u32) {
    let response = serde_json::json!({
        "version_info": version.to_string(),
        "resources": bootstrap.listener_resources(),
    });
    move_into_place(file, &response.to_string());
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
