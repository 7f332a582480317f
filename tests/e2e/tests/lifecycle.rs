//! Configuration: what Envoy refuses, and what survives an update.

use e2e::bootstrap::{root, Bootstrap};
use e2e::client::Version;
use e2e::decision::Decision;
use e2e::envoy::{self, Envoy, Options};
use e2e::rig::{self, PODS};
use e2e::stub::{only, Stub};
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";

async fn start(concurrency: u32) -> ([Stub; 3], Envoy, Bootstrap) {
    let pods = Stub::three().await;
    let options = Options {
        dynamic: true,
        ..Options::new(concurrency)
    };
    let ports = pods.each_ref().map(Stub::port);
    let bootstrap = Bootstrap::shipped().with_ports(&options, ports);
    let envoy = Envoy::start(&bootstrap, options).await;
    (pods, envoy, bootstrap)
}

async fn ask(envoy: &Envoy, pods: &[Stub], body: &Value) -> Decision {
    let reply = envoy.connect(Version::H1).await.post(CHAT, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let decision = reply.decision();
    assert_eq!(decision.pod, PODS[only(pods).0], "{decision:?}");
    decision
}

/// All prompts are known, from several connections, so that every worker is asked.
async fn known(envoy: &Envoy, pods: &[Stub], homes: &[(Value, Decision)], after: &str) {
    for (body, home) in homes {
        for _ in 0..4 {
            let decision = ask(envoy, pods, body).await;
            assert_eq!(decision.pod, home.pod, "after {after}");
            assert_eq!(decision.hit(), (home.chunks, home.chunks), "after {after}");
        }
    }
}

async fn learn(envoy: &Envoy, pods: &[Stub]) -> Vec<(Value, Decision)> {
    let mut homes = vec![];
    for i in 0..6 {
        let body = rig::prompt(&format!("kept {i}"), 4000);
        let decision = ask(envoy, pods, &body).await;
        assert_eq!(decision.matched, 0);
        homes.push((body, decision));
    }
    homes
}

#[tokio::test]
async fn the_table_survives_a_new_vm_and_a_new_configuration() {
    for concurrency in [1, 4] {
        let (pods, mut envoy, bootstrap) = start(concurrency).await;
        let homes = learn(&envoy, &pods).await;
        known(&envoy, &pods, &homes, "nothing").await;

        envoy.update(&bootstrap.clone().with_new_vm("second")).await;
        known(&envoy, &pods, &homes, "a new VM").await;

        let bootstrap = bootstrap.with_new_vm("second");
        let changed = json!({ "match_bytes": 262144, "match": { "path_prefixes": ["/"] } });
        envoy.update(&bootstrap.clone().with_plugin(changed)).await;
        known(&envoy, &pods, &homes, "a new configuration").await;

        let pods_now = json!({ "chunk_bytes": 512 });
        envoy.update(&bootstrap.clone().with_plugin(pods_now)).await;
        let cold = ask(&envoy, &pods, &homes[0].0).await;
        assert_eq!(cold.matched, 0, "chunks of another size are another table");
        assert!(cold.chunks > 0 && cold.chunks < homes[0].1.chunks);
    }
}

#[tokio::test]
async fn a_pod_that_was_removed_has_no_credit() {
    let (pods, mut envoy, bootstrap) = start(2).await;
    let homes = learn(&envoy, &pods).await;
    let gone = homes[0].1.pod.clone();
    let mut fewer = bootstrap.clone().plugin();
    fewer["pods"]
        .as_array_mut()
        .expect("pods")
        .retain(|p| p["name"] != gone.as_str());
    let mut without = bootstrap.clone();
    without.set_plugin(&fewer);
    envoy.update(&without).await;
    for (body, home) in homes.iter().filter(|(_, home)| home.pod != gone) {
        assert_eq!(
            ask(&envoy, &pods, body).await.hit(),
            (home.chunks, home.chunks)
        );
    }
    assert_ne!(
        ask(&envoy, &pods, &rig::prompt("elsewhere", 1000))
            .await
            .pod,
        gone
    );
    envoy.update(&bootstrap).await;
    for (body, home) in &homes {
        let decision = ask(&envoy, &pods, body).await;
        let expected = if home.pod == gone { 0 } else { home.chunks };
        assert_eq!(
            decision.matched, expected,
            "{decision:?} was at {}",
            home.pod
        );
    }
}

#[tokio::test]
async fn a_bad_update_is_refused_and_the_old_configuration_serves() {
    let (pods, mut envoy, bootstrap) = start(2).await;
    let homes = learn(&envoy, &pods).await;
    let bad = bootstrap.with_plugin(json!({ "chunk_bytes": 1 }));
    envoy.refuse(&bad, "chunk_bytes").await;
    known(&envoy, &pods, &homes, "a bad update").await;
}

/// What `envoy --mode validate` says about a plugin configuration, if it refuses it.
fn refused(configuration: &str) -> Option<String> {
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.set_plugin_text(configuration);
    let file = tempfile::Builder::new()
        .suffix(".json")
        .tempfile()
        .expect("a file");
    std::fs::write(file.path(), bootstrap.text()).expect("write");
    let output = envoy::validate(file.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn shipped_bootstraps_are_valid() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("envoy")).expect("envoy/") {
        let path = entry.expect("an entry").path();
        let is_yaml = path.extension().is_some_and(|e| e == "yaml");
        if is_yaml && !path.ends_with("openapi.yaml") && !path.ends_with("alerts.yaml") {
            let output = envoy::validate(&path);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{path:?}: {said}");
            seen += 1;
        }
    }
    assert!(seen > 0);
}

#[test]
fn bad_configurations_are_refused_with_one_line() {
    let pods = r#""pods": [{"name": "vllm-0", "address": "127.0.0.1:8001"}]"#;
    assert_eq!(
        refused(&format!("{{{pods}}}")),
        None,
        "the least that works"
    );
    // What is wrong, and words that the line has to contain: the key's path and the value.
    let bad = [
        ("", vec![]),
        ("[]", vec![]),
        ("{", vec![]),
        ("{}", vec!["pods"]),
        (r#"{"pods": []}"#, vec!["pods"]),
        (
            &format!(r#"{{{pods}, "chunk_byte": 256}}"#),
            vec!["chunk_byte"],
        ),
        (
            &format!(r#"{{{pods}, "chunk_bytes": 15}}"#),
            vec!["chunk_bytes", "15", "16"],
        ),
        (
            &format!(r#"{{{pods}, "chunk_bytes": 65537}}"#),
            vec!["chunk_bytes", "65537", "65536"],
        ),
        (
            &format!(r#"{{{pods}, "chunk_bytes": "256"}}"#),
            vec!["chunk_bytes", "256"],
        ),
        (
            &format!(r#"{{{pods}, "capacity_chunks": 0}}"#),
            vec!["capacity_chunks", "0"],
        ),
        (
            &format!(r#"{{{pods}, "capacity_chunks": -1}}"#),
            vec!["capacity_chunks", "-1"],
        ),
        (
            &format!(r#"{{{pods}, "mode": "watch"}}"#),
            vec!["mode", "watch", "observe"],
        ),
        (
            &format!(r#"{{{pods}, "response_header": true}}"#),
            vec!["response_header", "true"],
        ),
        (
            &format!(r#"{{{pods}, "match": {{"hosts": "a"}}}}"#),
            vec!["match.hosts"],
        ),
        (
            &format!(r#"{{{pods}, "match": {{"host": ["a"]}}}}"#),
            vec!["match.host"],
        ),
        (
            &format!(r#"{{{pods}, "destination": {{"mode": "magic"}}}}"#),
            vec!["destination.mode", "magic"],
        ),
        (
            &format!(r#"{{{pods}, "policy": {{"name": "luck"}}}}"#),
            vec!["policy.name", "luck"],
        ),
        (
            r#"{"pods": [{"address": "127.0.0.1:8001"}]}"#,
            vec!["pods[0].name"],
        ),
        (
            r#"{"pods": [{"name": "a", "address": "x"}]}"#,
            vec!["pods", "address", "x"],
        ),
        (
            r#"{"pods": [{"name": "a", "address": "127.0.0.1:1"}, {"name": "a", "address": "127.0.0.1:2"}]}"#,
            vec!["pods", "a"],
        ),
    ];
    for (configuration, words) in bad {
        let said = refused(configuration).unwrap_or_else(|| panic!("accepted: {configuration}"));
        let ours: Vec<_> = said.lines().filter(|l| l.contains("wasm log")).collect();
        assert_eq!(
            ours.len(),
            1,
            "one line of ours about {configuration}:\n{said}"
        );
        for word in words {
            assert!(
                ours[0].contains(word),
                "{word:?} about {configuration}: {}",
                ours[0]
            );
        }
        assert!(
            !said.contains("panicked") && !said.contains("RuntimeError"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_struct_does_as_well_as_a_string() {
    let pods = Stub::three().await;
    let keys = json!({ "chunk_bytes": 128, "match": { "path_prefixes": ["/v1"] } });
    let ports = pods.each_ref().map(Stub::port);
    let change = |bootstrap: Bootstrap| bootstrap.with_plugin(keys).with_plugin_as_struct();
    let envoy = rig::envoy_with(ports, 1, change).await;
    let body = rig::prompt("as a struct", 4000);
    let first = ask(&envoy, &pods, &body).await;
    let again = ask(&envoy, &pods, &body).await;
    assert_eq!(again.pod, first.pod);
    assert_eq!(again.hit(), (first.chunks, first.chunks));
    assert!(
        (30..=33).contains(&first.chunks),
        "chunks of 128 bytes: {first:?}"
    );
}
