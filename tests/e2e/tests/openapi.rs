//! Live answers of the API against `envoy/openapi.yaml`, by schemathesis.

use e2e::bootstrap::root;
use e2e::rig;
use e2e::stub::Stub;
use std::process::Command;

/// Calls that are made up from the description, right ones and wrong ones, are answered as it
/// says. Not checked here: that right ones are accepted, since whether an id is a pod and a time
/// is near is not in the description; other methods, since those that Envoy's own parser does not
/// know are its 400 (`status.rs` and `api.rs` have the 405).
#[tokio::test]
async fn answers_are_as_described() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let tool = root().join("target/schemathesis-venv/bin/schemathesis");
    let url = format!("http://{}/prefix-router", envoy.api_address());
    let run = tokio::task::spawn_blocking(move || {
        Command::new(&tool)
            .args(["run", "envoy/openapi.yaml", "--url", &url])
            .args(["--phases", "examples,coverage,fuzzing"])
            .args([
                "--exclude-checks",
                "positive_data_acceptance,unsupported_method",
            ])
            .args(["--max-time", "20", "--seed", "1", "--no-color"])
            .args(["--warnings", "off"])
            .current_dir(root())
            .output()
            .unwrap_or_else(|e| panic!("{tool:?}: {e}; run `make schemathesis`"))
    });
    let output = run.await.expect("it ran");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Tested: 4"), "{text}");
}
