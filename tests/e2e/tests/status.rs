//! The status: the JSON against what was sent, the page in a real browser against the JSON.

use e2e::client::{full, request, Conn, Reply, Version};
use e2e::envoy::Envoy;
use e2e::rig::{self, PODS};
use e2e::stub::Stub;
use e2e::tool;
use http::Method;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::Command;

const CHAT: &str = "/v1/chat/completions";
const STATUS: &str = "/prefix-router/status";

async fn get(envoy: &Envoy, method: Method, accept: &str) -> Reply {
    let request = request(method, STATUS, &[("accept", accept)], full(""));
    let mut api = Conn::open(envoy.api_address(), Version::H1).await;
    api.send(request).await
}

async fn status(envoy: &Envoy) -> Value {
    let reply = get(envoy, Method::GET, "application/json").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/json");
    reply.json()
}

fn sum(reasons: &Value) -> u64 {
    let reasons = reasons.as_object().expect("reasons").values();
    reasons.map(|n| n.as_u64().expect("a count")).sum()
}

#[tokio::test]
async fn the_json_counts_what_all_workers_did() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 4).await;
    let fresh = status(&envoy).await;
    assert_eq!(sum(&fresh["decisions"]), 0);
    for pod in fresh["pods"].as_array().expect("pods") {
        assert_eq!(
            (&pod["idle"], &pod["healthy"]),
            (&json!("no_requests"), &json!(true))
        );
    }
    let (mut chunks, mut matched, mut to) = (0, 0, [0u64; 3]);
    for n in 0..24 {
        let body = rig::prompt(&format!("chat {}", n % 3), 4000);
        let decision = rig::ask(&envoy, &pods, Version::H1, CHAT, &body).await;
        chunks += decision.chunks;
        matched += decision.matched;
        to[rig::index(&decision.pod)] += 1;
    }
    for _ in 0..4 {
        let now = status(&envoy).await;
        assert_eq!(sum(&now["decisions"]), 24, "{now}");
        assert_eq!(now["decisions"]["cold"], 3);
        assert_eq!(now["prompt_chunks"], chunks);
        assert_eq!(now["matched_chunks"], matched);
        assert_eq!(
            (&now["mode"], &now["discovery"]),
            (&json!("route"), &Value::Null)
        );
        for (pod, sent) in now["pods"].as_array().expect("pods").iter().zip(to) {
            assert_eq!(sum(&pod["decisions"]), sent, "{pod}");
            assert_eq!(pod["in_flight"], 0);
            assert_eq!(pod["capacity_chunks"], 8192);
            assert_eq!(pod["health_source"], "requests");
            assert_eq!(pod["stored_chunks"].as_u64() > Some(0), sent > 0, "{pod}");
            assert_eq!(pod["idle"].is_null(), sent > 0, "{pod}");
            assert_eq!(pod["last_answer_seconds"].is_u64(), sent > 0, "{pod}");
        }
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_reached_is_said_to_be_ejected() {
    let pods = Stub::three().await;
    let dead = e2e::envoy::free_port();
    let [a, b, _] = pods.each_ref().map(Stub::port);
    let options = e2e::envoy::Options::new(2);
    let bootstrap = e2e::bootstrap::Bootstrap::shipped().with_ports(&options, [a, b, dead]);
    let envoy = Envoy::start(&bootstrap, options).await;
    let ejected = || async {
        let body = rig::prompt(&format!("{:?}", std::time::Instant::now()), 2000);
        envoy.connect(Version::H1).await.post(CHAT, &body).await;
        status(&envoy).await["pods"][2]["state"] == "ejected"
    };
    envoy.eventually("vllm-2 is ejected", ejected).await;
    let pod = status(&envoy).await["pods"][2].clone();
    assert_eq!(
        (&pod["healthy"], &pod["idle"]),
        (&json!(false), &json!("ejected"))
    );
    assert!(
        pod["retry_seconds"].as_u64().expect("a time") <= 60,
        "{pod}"
    );
    assert!(pod["state_seconds"].is_u64(), "{pod}");
}

#[tokio::test]
async fn the_page_is_for_browsers_and_the_rest_is_refused() {
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    let page = get(
        &envoy,
        Method::GET,
        "text/html,application/xhtml+xml,*/*;q=0.8",
    )
    .await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["cache-control"], "no-store");
    let policy = page.headers["content-security-policy"]
        .to_str()
        .expect("ASCII");
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let text = String::from_utf8_lossy(&page.body);
    assert!(
        text.len() <= 8192 && !text.contains("http"),
        "one small file without others"
    );
    assert_eq!(
        get(&envoy, Method::GET, "*/*").await.headers["content-type"],
        "application/json"
    );
    let refused = get(&envoy, Method::POST, "*/*").await;
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["allow"]),
        (405, &http::HeaderValue::from_static("GET"))
    );
}

/// The page as a browser has it after a while; a screenshot beside it under `target/`.
struct Browser(PathBuf);

impl Browser {
    async fn run(&self, envoy: &Envoy, more: &[&str]) -> String {
        let home = tempfile::TempDir::new().expect("a directory");
        let mut chromium = Command::new(&self.0);
        chromium
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .args(["--hide-scrollbars", "--virtual-time-budget=1500"])
            .args(more)
            .arg(format!("http://{}{STATUS}", envoy.api_address()));
        let output = tool::run(chromium).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn dom(&self, envoy: &Envoy) -> String {
        self.run(envoy, &["--dump-dom"]).await
    }

    async fn shot(&self, envoy: &Envoy, name: &str, size: &str, more: &[&str]) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("status-{name}.png"));
        let _ = std::fs::remove_file(&file);
        let (to, size) = (
            format!("--screenshot={}", file.display()),
            format!("--window-size={size}"),
        );
        self.run(envoy, &[&[to.as_str(), &size], more].concat())
            .await;
        let png = std::fs::metadata(&file).expect("a screenshot").len();
        assert!(png > 10_000, "{name}: {png} bytes");
    }
}

/// The texts of a part of the page, in their order.
fn texts(html: &str) -> Vec<String> {
    let texts = html.split('<').filter_map(|part| part.split_once('>'));
    let plain = |text: &str| {
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
    };
    let texts = texts.map(|(_, text)| plain(text.trim()));
    texts.filter(|text| !text.is_empty()).collect()
}

/// The texts of each row, by the name of its pod.
fn rows(dom: &str) -> Vec<Vec<String>> {
    let rows = dom.split("<tr data-pod=").skip(1);
    rows.map(|row| {
        texts(&format!(
            "<tr {}",
            row.split("</tr>").next().expect("a row")
        ))
    })
    .collect()
}

fn grouped(n: &Value) -> String {
    let digits = n.as_u64().expect("a number").to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

#[tokio::test]
async fn a_browser_shows_what_the_json_says() {
    let Some(browser) = tool::find("the page in a browser", "chromium").map(Browser) else {
        return;
    };
    let pods = Stub::three().await;
    let envoy = rig::envoy(pods.each_ref().map(Stub::port), 2).await;
    for n in 0..12 {
        let seed = format!("chat {}", n % 2);
        rig::ask(
            &envoy,
            &pods,
            Version::H1,
            CHAT,
            &rig::prompt(&seed, 400_000),
        )
        .await;
    }
    let now = status(&envoy).await;
    let dom = browser.dom(&envoy).await;
    let all = texts(&dom);
    assert!(all.contains(&"● live".into()), "{all:?}");
    assert!(all.contains(&"Pods: 3 of 3 healthy".into()), "{all:?}");
    let of = format!(
        "{} of {}",
        grouped(&now["matched_chunks"]),
        grouped(&now["prompt_chunks"])
    );
    assert!(all.contains(&of), "{of}: {all:?}");
    let rows = rows(&dom);
    assert_eq!(rows.len(), 3);
    for ((row, pod), name) in rows
        .iter()
        .zip(now["pods"].as_array().expect("pods"))
        .zip(PODS)
    {
        let fill = format!(
            "{} / {}",
            grouped(&pod["stored_chunks"]),
            grouped(&pod["capacity_chunks"])
        );
        let sent = sum(&pod["decisions"]);
        assert_eq!(row[0], name);
        assert!(row.contains(&fill), "{fill}: {row:?}");
        assert!(
            row.iter()
                .any(|text| text.starts_with(&format!("{sent} ("))),
            "{row:?}"
        );
        let idle = row
            .iter()
            .any(|text| text.starts_with("No traffic: other pods held"));
        assert_eq!(idle, sent == 0, "{row:?}");
    }
    let dark = "--blink-settings=preferredColorScheme=0";
    browser.shot(&envoy, "light", "1280,800", &[]).await;
    browser.shot(&envoy, "dark", "1280,800", &[dark]).await;
    browser.shot(&envoy, "phone", "500,1400", &[]).await;
}

#[tokio::test]
async fn many_pods_with_long_names_are_shown_as_they_are() {
    let Some(browser) = tool::find("the page with 64 pods", "chromium").map(Browser) else {
        return;
    };
    let name = |n: usize| match n {
        0 => "<script>document.title=1</script>&amp;<b>".into(),
        n if n % 3 == 0 => format!(
            "outbound|8000|{n}|{}.svc.cluster.local",
            "inference-".repeat(18)
        ),
        n => format!("vllm-deepseek-r1-distill-70b-decode-{n}"),
    };
    let names: Vec<String> = (0..64).map(name).collect();
    let list: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let pods = Stub::three().await;
    let change = |b: e2e::bootstrap::Bootstrap| b.with_plugin(json!({ "pods": list }));
    let envoy = rig::envoy_with(pods.each_ref().map(Stub::port), 1, change).await;
    let dom = browser.dom(&envoy).await;
    let shown: Vec<String> = rows(&dom).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(shown, names);
    assert!(dom.contains("<title>prefix-router</title>"));
    browser.shot(&envoy, "many", "1280,2200", &[]).await;
    browser.shot(&envoy, "many-phone", "500,2200", &[]).await;
}
