//! What an operator has: metrics whose truth is the pods', the dashboard and the alert rules in a
//! real Prometheus that scrapes the real Envoy.

use e2e::bootstrap::{root, Shipped};
use e2e::client::{full, request, Conn, Reply, Version};
use e2e::envoy::{free_port, Envoy};
use e2e::metrics::Samples;
use e2e::rig::{self, PODS};
use e2e::tool;
use http::Method;
use serde_json::{json, Value};
use sim_vllm::{PodConfig, SimPod};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROMPT: &str = "prefix_router_prompt_tokens_total";
const PREDICTED: &str = "prefix_router_predicted_cached_tokens_total";
const REPORTED: &str = "prefix_router_reported_cached_tokens_total";
const SAVED: &str = "prefix_router_saved_prefill_tokens_total";

async fn start(concurrency: u32) -> ([SimPod; 3], Envoy) {
    let pods = PODS.map(|name| SimPod::start(PodConfig::named(name)).expect("the pod starts"));
    let ports = pods.each_ref().map(|pod| pod.addr.port());
    (pods, rig::envoy(ports, concurrency).await)
}

async fn ask(envoy: &Envoy, path: &str, body: &Value) -> Reply {
    let reply = envoy.connect(Version::H1).await.post(path, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply
}

/// One conversation of four turns, by all APIs, streamed and not.
async fn conversations(envoy: &Envoy, seed: &str) {
    let text = rig::text(seed, 6000);
    for turn in 0..4 {
        let text = format!("{text} Turn {turn}.");
        let chat = json!([{ "role": "user", "content": text }]);
        for stream in [false, true] {
            let mut body = json!({ "model": "sim", "max_tokens": 8, "stream": stream });
            if stream {
                body["stream_options"] = json!({ "include_usage": true });
            }
            let with = |key: &str, value: &Value| {
                let mut body = body.clone();
                body[key] = value.clone();
                body
            };
            ask(envoy, "/v1/chat/completions", &with("messages", &chat)).await;
            ask(envoy, "/v1/completions", &with("prompt", &json!(text))).await;
            ask(envoy, "/v1/messages", &with("messages", &chat)).await;
            let mut input = with("input", &json!(text));
            input
                .as_object_mut()
                .expect("an object")
                .remove("stream_options");
            ask(envoy, "/v1/responses", &input).await;
        }
    }
}

fn total(samples: &Samples, name: &str) -> f64 {
    samples.sum(name, &[]).unwrap_or(0.0)
}

#[tokio::test]
async fn the_reported_tokens_are_the_pods_own_and_the_predicted_are_near() {
    for concurrency in [1, 2] {
        let (pods, envoy) = start(concurrency).await;
        for chat in 0..3 {
            conversations(&envoy, &format!("chat {chat}")).await;
        }
        let stats = pods.each_ref().map(|pod| pod.stats());
        let (prompt, cached) = stats.iter().fold((0, 0), |(prompt, cached), stats| {
            (prompt + stats.prompt_tokens, cached + stats.cached_tokens)
        });
        let settled = || async { total(&envoy.prometheus().await, PROMPT) == prompt as f64 };
        envoy
            .eventually("all prompt tokens are counted", settled)
            .await;
        let vms = || async {
            let live = total(&envoy.prometheus().await, "prefix_router_live_vms");
            live == f64::from(concurrency) + 1.0
        };
        envoy.eventually("one VM a worker and one more", vms).await;
        let samples = envoy.prometheus().await;
        assert_eq!(total(&samples, REPORTED), cached as f64);
        let predicted = total(&samples, PREDICTED);
        assert!(
            (predicted / cached as f64 - 1.0).abs() < 0.05,
            "{predicted} for {cached}"
        );
        let saved = samples.sum(SAVED, &[("baseline", "random"), ("pool", "default")]);
        let saved = saved.expect("labelled");
        assert!(
            saved > 0.3 * predicted && saved < predicted,
            "{saved} of {predicted}"
        );
    }
}

#[tokio::test]
async fn histograms_have_buckets_of_use() {
    let (_pods, envoy) = start(2).await;
    conversations(&envoy, "histograms").await;
    let samples = envoy.prometheus().await;
    for name in [
        "prefix_router_matched_percent",
        "prefix_router_decision_microseconds",
    ] {
        let flushed = || async {
            let count = envoy
                .prometheus()
                .await
                .sum(&format!("{name}_count"), &[("pool", "default")]);
            count == Some(32.0)
        };
        // Envoy merges histograms every 5 s.
        envoy.within(Duration::from_secs(20), name, flushed).await;
    }
    let buckets = |name: &str| -> BTreeSet<String> {
        let name = format!("{name}_bucket");
        let of = samples.starting_with(&name);
        of.map(|sample| sample.labels["le"].clone()).collect()
    };
    assert_eq!(buckets("prefix_router_matched_percent").len(), 12);
    assert!(buckets("prefix_router_decision_microseconds").contains("2500"));
}

/// Names, types and labels by Prometheus' own linter. Envoy writes no help texts, and its
/// histograms hold whole numbers, which rules out seconds.
#[tokio::test]
async fn metrics_are_as_prometheus_wants_them() {
    let Some(promtool) = tool::find("the linter of metrics", "promtool") else {
        return;
    };
    for shipped in Shipped::ALL {
        let pods = PODS.map(|name| SimPod::start(PodConfig::named(name)).expect("the pod starts"));
        let ports = pods.each_ref().map(|pod| pod.addr.port());
        let envoy = rig::envoy_of(shipped, ports, 1, |b| b).await;
        conversations(&envoy, "lint").await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let all = envoy.admin("/stats/prometheus").await;
        let all = String::from_utf8_lossy(&all.body).into_owned();
        let ours: String = all
            .lines()
            .filter(|line| {
                line.trim_start_matches("# TYPE ")
                    .starts_with("prefix_router")
            })
            .fold(String::new(), |text, line| text + line + "\n");
        let names: BTreeSet<_> = ours
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .collect();
        assert!(names.len() >= 20, "{names:?}");
        assert!(!ours.contains(".=."), "a label without its rule: {ours}");
        let dir = tempfile::TempDir::new().expect("a directory");
        let file = dir.path().join("metrics");
        std::fs::write(&file, &ours).expect("write");
        let mut lint = Command::new(&promtool);
        lint.args(["check", "metrics"])
            .stdin(std::fs::File::open(&file).expect("open"));
        let output = tool::run(lint).await;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let known = |line: &&str| {
            line.contains("no help text")
                || line.contains("prefix_router_decision_microseconds use base unit")
        };
        let wrong: Vec<_> = said
            .lines()
            .filter(|line| !known(line) && !line.trim().is_empty())
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// A Prometheus that scrapes an Envoy every second.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    async fn start(program: &Path, envoy: &Envoy) -> Self {
        let dir = tempfile::TempDir::new().expect("a directory");
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [root().join("envoy/alerts.yaml")],
            "scrape_configs": [{
                "job_name": "envoy", "metrics_path": "/stats/prometheus",
                "static_configs": [{ "targets": [envoy.admin_address().to_string()] }],
            }],
        });
        let file = dir.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).expect("write");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus starts");
        Self {
            child,
            address,
            _dir: dir,
        }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let mut conn = Conn::try_open(self.address, Version::H1).await.ok()?;
        let reply = conn
            .try_send(request(Method::GET, path, &[], full("")))
            .await
            .ok()?;
        serde_json::from_slice(&reply.body).ok()
    }

    async fn query(&self, expression: &str) -> Option<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        self.get(&format!("/api/v1/query?query={encoded}")).await
    }
}

/// All panels of the dashboard with their queries.
fn panels() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("envoy/grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36));
    assert_eq!(dashboard["uid"], "prefix-router");
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let variables: Vec<_> = variables.iter().map(|v| &v["name"]).collect();
    assert_eq!(variables, ["datasource", "pool"]);
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    let panels = dashboard["panels"].as_array().expect("panels");
    let of = |panel: &Value| {
        assert!(
            ids.insert(panel["id"].as_u64().expect("an id")),
            "an id twice"
        );
        let place = &panel["gridPos"];
        let side = |key: &str| place[key].as_u64().expect("a place");
        assert!(side("x") + side("w") <= 24 && side("h") > 0, "{place}");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(places.insert((x, y)), "two panels at {x}, {y}");
            }
        }
        assert!(
            ["stat", "timeseries", "heatmap"].contains(&panel["type"].as_str().expect("a type"))
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        let targets = panel["targets"].as_array().expect("targets").iter();
        let queries = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
        (
            panel["title"].as_str().expect("a title").to_owned(),
            queries.collect(),
        )
    };
    panels.iter().map(of).collect()
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_work_in_prometheus() {
    let panels = panels();
    assert!(panels.len() >= 12);
    let Some(program) = tool::find("the dashboard in Prometheus", "prometheus") else {
        return;
    };
    let (_pods, envoy) = start(2).await;
    // A counter with a label is there from its first count on, which is then no increase.
    conversations(&envoy, "before").await;
    let prometheus = Prometheus::start(&program, &envoy).await;
    let scraped = || async {
        let counted = prometheus
            .query("count_over_time(prefix_router_pod_fit[1m]) >= 2")
            .await;
        counted.is_some_and(|answer| {
            !answer["data"]["result"]
                .as_array()
                .is_none_or(Vec::is_empty)
        })
    };
    envoy
        .within(Duration::from_secs(30), "two scrapes", scraped)
        .await;
    conversations(&envoy, "after").await;
    // Envoy merges histograms every 5 s.
    tokio::time::sleep(Duration::from_secs(7)).await;
    for (title, queries) in &panels {
        for query in queries {
            let query = query
                .replace("$__rate_interval", "1m")
                .replace("$pool", ".*");
            assert!(!query.contains('$'), "{title}: {query}");
            let answer = prometheus.query(&query).await.expect("an answer");
            assert_eq!(answer["status"], "success", "{title}: {answer}");
            let series = answer["data"]["result"].as_array().expect("a vector");
            assert!(!series.is_empty(), "{title} has nothing: {query}");
            let numbers = series.iter().all(|s| s["value"][1] != "NaN");
            assert!(numbers, "{title}: {query}: {answer}");
        }
    }
    let rules = prometheus.get("/api/v1/rules").await.expect("the rules");
    let rules = rules["data"]["groups"][0]["rules"]
        .as_array()
        .expect("rules")
        .clone();
    let shipped = std::fs::read_to_string(root().join("envoy/alerts.yaml")).expect("the alerts");
    assert_eq!(rules.len(), shipped.matches("- alert: ").count());
    for rule in rules {
        assert_eq!(
            (&rule["health"], &rule["state"]),
            (&json!("ok"), &json!("inactive")),
            "{rule}"
        );
    }
}

/// Each alert fires on what it is for, and not on what is well.
#[tokio::test]
async fn every_alert_fires() {
    let Some(promtool) = tool::find("the alert rules", "promtool") else {
        return;
    };
    let mut test = Command::new(promtool);
    test.args(["test", "rules"])
        .arg(root().join("tests/e2e/tests/alerts.yaml"));
    let output = tool::run(test).await;
    assert!(output.status.success(), "{output:?}");
}
