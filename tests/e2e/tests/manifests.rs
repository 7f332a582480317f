//! What is shipped for other platforms than a bare Envoy: every filter and every bootstrap in it.

use e2e::bootstrap::root;
use e2e::client::{self, Conn, Version};
use e2e::envoy::{Envoy, Options};
use e2e::manifest::{self, bootstraps, documents, files, read, wasm_filters};
use e2e::stub::{local, Stub};
use http::Method;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const KUBERNETES: &str = "envoy/kubernetes";

/// Whoever changes the configuration's keys and forgets a manifest fails here.
#[tokio::test]
async fn every_filter_serves() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let mut seen = 0;
    for file in files() {
        // Those of a control plane are tried as it would place them, in mesh.rs.
        let own = documents(&read(&file));
        let own = own.iter().filter(|d| d["kind"] != "EnvoyFilter");
        // An instance that serves the API is tried where it stands, in api.rs.
        let filters = own.flat_map(wasm_filters);
        for filter in filters.filter(|filter| !serves_the_api(filter)) {
            let options = Options::new(2);
            let bootstrap = manifest::around(&filter, &options, ports);
            let what = file.display().to_string();
            manifest::serves(&bootstrap, options, &pods, &what).await;
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} filters in {:?}", files());
}

fn serves_the_api(filter: &Value) -> bool {
    let plugin = filter["config"]["configuration"]["value"].as_str();
    let plugin: Value = serde_json::from_str(plugin.expect("text")).expect("JSON");
    plugin["api"].is_object()
}

#[tokio::test]
async fn every_bootstrap_serves() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    // Those in envoy/ itself are what all other tests run.
    let tested = root().join("envoy");
    let mut seen = 0;
    for file in files().iter().filter(|f| f.parent() != Some(&tested)) {
        for bootstrap in bootstraps(&documents(&read(file))) {
            let options = Options::new(2);
            let relocated = manifest::relocated(&bootstrap, &options, ports);
            let what = file.display().to_string();
            manifest::serves(&relocated, options, &pods, &what).await;
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} bootstraps");
}

/// A retry goes to another pod: without this the pool, which has the dead pod too, may name it again.
#[test]
fn no_retry_returns_to_the_pod_that_failed() {
    fn check(within: &Value, what: &str) -> usize {
        let (own, parts): (bool, Vec<&Value>) = match within {
            Value::Object(map) => (map.contains_key("retry_on"), map.values().collect()),
            Value::Array(list) => (false, list.iter().collect()),
            _ => (false, Vec::new()),
        };
        if own {
            let name = &within["retry_host_predicate"][0]["name"];
            assert_eq!(name, "envoy.retry_host_predicates.previous_hosts", "{what}");
        }
        let below: usize = parts.into_iter().map(|part| check(part, what)).sum();
        usize::from(own) + below
    }
    let mut seen = 0;
    for file in files() {
        for document in documents(&read(&file)) {
            seen += check(&document, &file.display().to_string());
        }
    }
    assert!(seen >= 6, "{seen} retry policies");
}

/// What `make test-docker` runs is thereby tried for Kubernetes as well.
#[test]
fn docker_and_kubernetes_have_one_bootstrap() {
    let docker = read(&root().join("envoy/docker/envoy.yaml"));
    assert!(docker == read(&root().join(KUBERNETES).join("base/envoy.yaml")));
}

/// The overlay as the cluster would get it, or nothing where there is no kubectl.
fn rendered(overlay: &str) -> Option<Vec<Value>> {
    let at = tempfile::TempDir::new().expect("a temporary directory");
    copy(&root().join(KUBERNETES), at.path());
    let module = at.path().join("base/prefix_router.wasm");
    std::fs::copy(e2e::bootstrap::module(), module).expect("the module; run `make build`");
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("kustomize").arg(at.path().join(overlay));
    let out = match kubectl.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            manifest::skipped(&format!("kubectl kustomize {overlay}"), "no kubectl");
            return None;
        }
        out => out.expect("kubectl runs"),
    };
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    Some(documents(std::str::from_utf8(&out.stdout).expect("UTF-8")))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).expect("copied");
        }
    }
}

#[test]
fn the_overlay_renders_and_fits_together() {
    let Some(all) = rendered("overlays/example") else {
        return;
    };
    let kind = |kind: &str| -> Vec<&Value> { all.iter().filter(|d| d["kind"] == kind).collect() };
    let gateway = &kind("Deployment")[0]["spec"]["template"]["spec"];
    let container = &gateway["containers"][0];
    let bootstrap = &bootstraps(&all)[0];

    // A volume whose names are those of the ConfigMaps, whatever hash these have.
    let maps: BTreeSet<_> = kind("ConfigMap")
        .iter()
        .map(|m| &m["metadata"]["name"])
        .map(Value::to_string)
        .collect();
    let mounted = gateway["volumes"][0]["projected"]["sources"].as_array();
    let mounted = mounted.expect("sources").iter();
    let mounted: BTreeSet<_> = mounted
        .map(|s| s["configMap"]["name"].to_string())
        .collect();
    assert_eq!(mounted, maps);

    // An etcd value has at most 1.5 MiB, a ConfigMap 1 MiB.
    let module = kind("ConfigMap").into_iter().find_map(|map| {
        let encoded = map["binaryData"]["prefix_router.wasm"].as_str()?;
        Some(encoded.len())
    });
    let module = module.expect("the module is in a ConfigMap");
    assert!(module < 1 << 20, "{module} bytes");

    // Every port that is named is one that Envoy listens on, and the admin listener's is not.
    let listeners = bootstrap["static_resources"]["listeners"].as_array();
    let listeners = listeners.expect("listeners").iter();
    let listening: BTreeSet<_> = listeners
        .map(|l| &l["address"]["socket_address"]["port_value"])
        .map(Value::as_u64)
        .collect();
    let ports = |of: &Value, key: &str| -> BTreeSet<_> {
        let of = of.as_array().expect("ports").iter();
        of.map(|port| port[key].as_u64()).collect()
    };
    assert_eq!(ports(&container["ports"], "containerPort"), listening);
    let policies = kind("NetworkPolicy");
    let policy = |p: &&&Value| p["metadata"]["name"] == "prefix-router";
    let policy = policies.iter().find(policy).expect("a policy");
    let rules = policy["spec"]["ingress"].as_array().expect("rules").iter();
    let open: BTreeSet<_> = rules.flat_map(|r| ports(&r["ports"], "port")).collect();
    assert_eq!(open, listening);
    let admin = &bootstrap["admin"]["address"]["socket_address"];
    assert_eq!(admin["address"], "127.0.0.1");

    // The pods of the StatefulSet are those of the filter.
    let stateful = kind("StatefulSet")[0];
    let replicas = stateful["spec"]["replicas"].as_u64().expect("replicas");
    let names = (0..replicas).map(|n| format!("{}-{n}", stateful["metadata"]["name"]));
    let names: BTreeSet<_> = names.map(|name| name.replace('"', "")).collect();
    let plugin = wasm_filters(bootstrap)[0]["config"]["configuration"]["value"].clone();
    let plugin: Value = serde_json::from_str(plugin.as_str().expect("text")).expect("JSON");
    let pods = plugin["pods"].as_array().expect("pods").iter();
    let pods: BTreeSet<_> = pods
        .map(|pod| pod["name"].as_str().expect("a name").to_string())
        .collect();
    assert_eq!(pods, names);
}

/// `drain.sh` ends when the last answer has, and not before.
#[tokio::test]
async fn a_drained_gateway_has_answered() {
    let pods = Stub::three().await;
    let ports = pods.each_ref().map(Stub::port);
    let options = Options::new(1);
    let admin = options.admin;
    let shipped = &bootstraps(&documents(&read(
        &root().join("envoy/kubernetes/base/envoy.yaml"),
    )));
    let bootstrap = manifest::relocated(&shipped[0], &options, ports);
    let envoy = Envoy::start(&bootstrap, options).await;

    let (sender, body) = client::slow();
    let headers = [("content-type", "application/json")];
    let slow = client::request(Method::POST, "/v1/chat/completions", &headers, body);
    let mut conn = envoy.connect(Version::H1).await;
    let answer = tokio::spawn(async move { conn.send(slow).await });
    sender.send("{\"model\":".into()).await.expect("open");
    let busy = || async { envoy.stat("http.llm.downstream_rq_active").await == 1 };
    envoy.eventually("the request is there", busy).await;

    let mut drain = tokio::process::Command::new("bash")
        .arg(root().join(KUBERNETES).join("base/drain.sh"))
        .env("ADMIN_PORT", admin.to_string())
        .envs([("SETTLE_S", "0"), ("PATIENCE_S", "60")])
        .spawn()
        .expect("bash");
    let draining = || async {
        let mut conn = Conn::open(local(admin), Version::H1).await;
        conn.get("/ready").await.status == 503
    };
    envoy.eventually("the gateway is not ready", draining).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(drain.try_wait().expect("a child").is_none(), "too early");

    sender.send("\"sim\"}".into()).await.expect("open");
    drop(sender);
    assert_eq!(answer.await.expect("an answer").status, 200);
    let ended = Instant::now();
    assert!(drain.wait().await.expect("a child").success());
    assert!(ended.elapsed() < Duration::from_secs(5), "too late");
}
