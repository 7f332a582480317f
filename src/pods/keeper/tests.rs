use super::visit::ENDPOINT_HEADER;
use super::*;
use crate::pods::health::Health;
use crate::pods::lease::LEASE_MS;
use crate::store::MemoryStore;

const ONE: &str = r#""destination": {"mode": "override_host"}, "discovery": {"cluster": "vllm"}"#;
const MANY: &str = r#""discovery": {"cluster": "vllm-*"}"#;

fn config(text: &str) -> Config {
    Config::parse(format!("{{{text}}}").as_bytes()).unwrap()
}

fn keeper(owner: u64) -> Keeper {
    Keeper::new("default", owner, true)
}

/// An answer of the admin listener: clusters with the last byte of their hosts' addresses.
fn clusters(all: &[(&str, &[u8])]) -> String {
    let host = |n: &u8| {
        format!(
            r#"{{"address": {{"socket_address": {{"address": "10.0.0.{n}", "port_value": 80}}}}}}"#
        )
    };
    let one = |(name, hosts): &(&str, &[u8])| {
        let hosts: Vec<String> = hosts.iter().map(host).collect();
        format!(
            r#"{{"name": "{name}", "host_statuses": [{}]}}"#,
            hosts.join(",")
        )
    };
    let all: Vec<String> = all.iter().map(one).collect();
    format!(r#"{{"cluster_statuses": [{}]}}"#, all.join(","))
}

/// The same, where hosts have this `health_status`.
fn with_health(clusters: &str, health: &str) -> String {
    clusters.replace(
        "\"address\": {\"socket",
        &format!(r#""health_status": {{{health}}}, "address": {{"socket"#),
    )
}

fn poll(keeper: &mut Keeper, config: &Config, now: u64, status: u16, body: &str) -> News {
    let answer = Answer::Some(status, body.as_bytes());
    keeper.answer(config, Question::Pods, answer, &|| now, &|_| 0)
}

fn metrics(
    keeper: &mut Keeper,
    config: &Config,
    pod: &str,
    now: u64,
    body: &str,
    own: u32,
) -> News {
    let question = Question::Metrics(pod.into());
    let answer = Answer::Some(200, body.as_bytes());
    keeper.answer(config, question, answer, &|| now, &|_| own)
}

fn names(keeper: &Keeper) -> Vec<&str> {
    let pods = keeper.registry().pods.iter();
    pods.map(|pod| pod.name.as_str()).collect()
}

#[test]
fn asks_under_the_lease_alone_and_once_an_interval() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let (mut a, mut b) = (keeper(1), keeper(2));
    assert!(a.calls(&config, 0).is_empty(), "no lease yet");
    assert!(a.hold(&store, &config, 0) && !b.hold(&store, &config, 0));
    assert!(b.calls(&config, 0).is_empty());
    let calls = a.calls(&config, 0);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].clusters.0, "prometheus_stats");
    assert!(calls[0].path.starts_with("/clusters?format=json&filter="));
    assert!(a.calls(&config, 1).is_empty(), "under way");
    let _ = poll(&mut a, &config, 10, 200, &clusters(&[("vllm", &[1])]));
    assert!(a.calls(&config, 800).is_empty());
    assert_eq!(a.calls(&config, 1000).len(), 1);
    assert!(a.calls(&config, LEASE_MS).is_empty(), "the lease ran out");
}

#[test]
fn an_answer_after_the_lease_was_lost_is_dropped_and_the_next_holder_goes_on() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let (mut a, mut b) = (keeper(1), keeper(2));
    a.hold(&store, &config, 0);
    let _ = poll(&mut a, &config, 0, 200, &clusters(&[("vllm", &[1, 2])]));
    a.save(&store);
    a.called(Question::Pods, 7);
    a.called(Question::Pods, 8);
    assert_eq!(a.question(9, 1), None, "nobody asked");
    assert_eq!(a.question(7, 1), Some(Question::Pods));
    assert_eq!(a.question(7, 1), None, "answered once");
    assert_eq!(a.question(8, LEASE_MS), None);
    assert!(b.hold(&store, &config, LEASE_MS));
    assert_eq!(names(&b), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(b.registry().polled_ms, 1);
    a.called(Question::Pods, 9);
    assert!(!a.hold(&store, &config, LEASE_MS));
    assert!(a.hold(&store, &config, 3 * LEASE_MS));
    assert_eq!(
        a.question(9, 3 * LEASE_MS),
        None,
        "asked under the first lease"
    );
}

#[test]
fn pods_come_go_and_come_back_as_new() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let first = poll(
        &mut keeper,
        &config,
        5,
        200,
        &clusters(&[("vllm", &[2, 1])]),
    );
    assert!(first.changed && first.list_changed);
    assert!(first.line.unwrap().starts_with("discovery: 2 pods;"));
    let same = poll(
        &mut keeper,
        &config,
        6,
        200,
        &clusters(&[("vllm", &[1, 2])]),
    );
    assert_eq!(
        same,
        News {
            changed: true,
            seen_ms: 5,
            ..News::default()
        }
    );
    let fewer = poll(&mut keeper, &config, 7, 200, &clusters(&[("vllm", &[2])]));
    assert!(fewer.list_changed);
    let _ = poll(
        &mut keeper,
        &config,
        8,
        200,
        &clusters(&[("vllm", &[1, 2])]),
    );
    let since: Vec<u64> = keeper
        .registry()
        .pods
        .iter()
        .map(|pod| pod.since_ms)
        .collect();
    assert_eq!(
        (names(&keeper), since),
        (vec!["10.0.0.1:80", "10.0.0.2:80"], vec![8, 5])
    );
    let none = poll(&mut keeper, &config, 9, 200, &clusters(&[("vllm", &[])]));
    assert!(none.list_changed && keeper.registry().pods.is_empty());
}

#[test]
fn whatever_fails_the_last_list_stays_and_is_said_once() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let good = clusters(&[("vllm", &[1])]);
    let _ = poll(&mut keeper, &config, 1, 200, &good);
    let before = keeper.registry().clone();
    let mut lines = vec![];
    let cut = &good[..good.len() - 1];
    for answer in [
        Answer::None,
        Answer::None,
        Answer::TooLong,
        Answer::Some(503, b"no"),
        Answer::Some(503, good.as_bytes()),
        Answer::Some(200, b"<html>"),
        Answer::Some(200, b"{}"),
        Answer::Some(200, cut.as_bytes()),
    ] {
        let news = keeper.answer(&config, Question::Pods, answer, &|| 100, &|_| 0);
        assert!(news.failed_poll && !news.changed && !news.list_changed);
        lines.extend(news.line);
    }
    assert_eq!(*keeper.registry(), before);
    assert_eq!(lines.len(), 4, "{lines:?}");
    let news = poll(&mut keeper, &config, 200, 200, &good);
    assert!(news.line.is_some() && !news.list_changed, "well again");
    assert_eq!(keeper.registry().polled_ms, 200);
}

#[test]
fn the_first_by_name_are_kept_when_there_are_more_than_there_is_room_for() {
    let (store, config) = (
        MemoryStore::default(),
        config(&format!(r#"{ONE}, "max_pods": 2"#)),
    );
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let body = clusters(&[("vllm", &[5, 3, 4, 1])]);
    let news = poll(&mut keeper, &config, 1, 200, &body);
    assert_eq!(names(&keeper), ["10.0.0.1:80", "10.0.0.3:80"]);
    assert_eq!(keeper.registry().left_out, 2);
    assert!(news.line.unwrap().contains("2 more than max_pods"));
    assert_eq!(
        poll(&mut keeper, &config, 2, 200, &body).line,
        None,
        "said once"
    );
}

#[test]
fn another_address_under_the_same_name_is_another_process() {
    let (store, config) = (MemoryStore::default(), config(MANY));
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let _ = poll(&mut keeper, &config, 1, 200, &clusters(&[("vllm-0", &[1])]));
    let news = poll(&mut keeper, &config, 9, 200, &clusters(&[("vllm-0", &[2])]));
    assert_eq!(news.restarted[0].name, "vllm-0");
    assert!(!news.list_changed);
    assert_eq!(keeper.registry().pods[0].since_ms, 9);
}

#[test]
fn a_pod_that_envoy_could_not_reach_for_long_holds_nothing() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let mut keeper = keeper(1);
    assert!(keeper.hold(&store, &config, 0));
    let well = clusters(&[("vllm", &[1])]);
    let with = |health: &str| with_health(&well, health);
    let (ill, drains) = (
        with(r#""failed_active_health_check": true"#),
        with(r#""eds_health_status": "DRAINING""#),
    );
    let mut said = |body: &str, now| {
        let news = poll(&mut keeper, &config, now, 200, body);
        let pod = &keeper.registry().pods[0];
        (
            pod.health.is_healthy(),
            news.serving.len(),
            news.restarted.len(),
        )
    };
    assert_eq!(said(&well, 1), (true, 1, 0), "new");
    assert_eq!(said(&ill, 1000), (false, 0, 0));
    assert_eq!(said(&ill, 9000), (false, 0, 0));
    // Envoy's workers may not know yet.
    assert_eq!(said(&well, 11_000), (false, 1, 0));
    assert_eq!(said(&well, 12_499), (false, 0, 0));
    assert_eq!(said(&well, 12_500), (true, 0, 0), "10 s");
    assert_eq!(said(&well, 13_500), (true, 0, 0));
    assert_eq!(said(&ill, 20_000), (false, 0, 0));
    assert_eq!(said(&well, 29_000), (false, 1, 0));
    assert_eq!(said(&ill, 30_000), (false, 0, 0), "not for long");
    assert_eq!(said(&well, 30_001), (false, 1, 0));
    assert_eq!(said(&well, 31_501), (true, 0, 1), "longer");
    assert_eq!(said(&well, 32_000), (true, 0, 0));
    assert_eq!(said(&drains, 33_000), (false, 0, 0));
    assert_eq!(said(&well, 90_000), (true, 0, 0), "it was there all along");
}

#[test]
fn pods_of_the_configuration_get_what_is_found_of_them() {
    let text = r#""pods": [{"name": "vllm-1"}, {"name": "far", "address": "10.9.0.1:80"}], "discovery": {"cluster": "vllm-*"}"#;
    let (store, config) = (MemoryStore::default(), config(text));
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    assert_eq!(names(&keeper), ["vllm-1", "far"]);
    let down = r#"{"cluster_statuses": [{"name": "vllm-1", "host_statuses": [{"address":
        {"socket_address": {"address": "10.0.0.1", "port_value": 80}}, "health_status": {"failed_outlier_check": true}}]}]}"#;
    let _ = poll(&mut keeper, &config, 1, 200, down);
    let pods = keeper.registry().pods(&config);
    assert_eq!(pods.len(), 2);
    assert_eq!(pods[0].health, Health::OUTLIER);
    assert_eq!(pods[0].address.as_deref(), Some("10.0.0.1:80"));
    assert!(pods[1].health.is_healthy());
    // Its cluster has no host any more, and then another.
    let without = clusters(&[("vllm-2", &[2])]);
    let news = poll(&mut keeper, &config, 2, 200, &without);
    let restarted: Vec<_> = news.restarted.iter().map(|pod| &pod.name).collect();
    assert_eq!(restarted, ["vllm-1"]);
    assert_eq!(names(&keeper), ["vllm-2", "vllm-1", "far"]);
    let back = clusters(&[("vllm-1", &[7])]);
    let news = poll(&mut keeper, &config, 3, 200, &back);
    assert_eq!(news.restarted, []);
}

#[test]
fn a_pod_that_was_found_ill_and_is_no_more_serves() {
    let (store, config) = (MemoryStore::default(), config(ONE));
    let mut keeper = keeper(1);
    assert!(keeper.hold(&store, &config, 0));
    let well = clusters(&[("vllm", &[1])]);
    let with = |health: &str| with_health(&well, health);
    let checked = with(r#""failed_active_health_check": true"#);
    let told = with(r#""eds_health_status": "UNHEALTHY""#);
    let ejected = with(r#""failed_outlier_check": true"#);
    let drains = with(r#""eds_health_status": "DRAINING""#);
    let gone = clusters(&[("vllm", &[])]);
    let mut serves = |body: &str, now| {
        let news = poll(&mut keeper, &config, now, 200, body);
        (news.serving.len(), news.seen_ms)
    };
    assert_eq!(serves(&well, 1000), (1, 0), "since ever: proves nothing");
    assert_eq!(serves(&well, 2000).0, 0, "nothing new");
    let mut at = 0;
    for (ill, expected) in [
        (checked, 1),
        (told, 1),
        (gone, 1),
        (ejected, 0),
        (drains, 0),
    ] {
        at += 10_000;
        assert_eq!(serves(&ill, at).0, 0);
        assert_eq!(serves(&ill, at + 1000).0, 0);
        assert_eq!(serves(&well, at + 2000), (expected, at + 1000), "{ill}");
        assert_eq!(serves(&well, at + 3000).0, 0, "told once");
        assert_eq!(serves(&well, at + 4000).0, 0, "told once");
    }
}

#[test]
fn a_good_answer_says_when_it_was_asked_for() {
    let config = config(r#""pods": [{"name": "a"}], "metrics_scrape": {}"#);
    let mut keeper = keeper_of(&config);
    assert_eq!(keeper.calls(&config, 100).len(), 2);
    let mut ask = |question: fn(String) -> Question, answer| {
        let news = keeper.answer(&config, question("a".into()), answer, &|| 700, &|_| 0);
        (news.serving.len(), news.seen_ms)
    };
    let models: &[u8] = br#"{"data": [{"id": "m"}]}"#;
    let good = (1, 100);
    assert_eq!(
        ask(Question::Metrics, Answer::Some(200, SCRAPED.as_bytes())),
        good
    );
    assert_eq!(ask(Question::Models, Answer::Some(200, models)), good);
    for answer in [
        Answer::None,
        Answer::NoCluster,
        Answer::TooLong,
        Answer::Some(503, models),
        Answer::Some(503, SCRAPED.as_bytes()),
        Answer::Some(200, b"<html>"),
    ] {
        assert_eq!(ask(Question::Metrics, answer).0, 0);
        assert_eq!(ask(Question::Models, answer).0, 0);
    }
}

const SCRAPED: &str =
    "vllm:num_requests_running 3\nvllm:num_requests_waiting 4\nprocess_start_time_seconds 100.5\n";

#[test]
fn a_process_that_started_again_holds_nothing() {
    let text = r#""pods": [{"name": "a"}], "metrics_scrape": {}"#;
    let (store, config) = (MemoryStore::default(), config(text));
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let calls = keeper.calls(&config, 0);
    assert_eq!(calls.len(), 2, "metrics and models");
    assert_eq!(calls[0].clusters, ("a/only".into(), Some("a".into())));
    assert_eq!(calls[1].path, "/v1/models");
    let first = metrics(&mut keeper, &config, "a", 5, SCRAPED, 2);
    assert!(first.changed && first.restarted.is_empty());
    let scraped = keeper.registry().pods[0].scraped.unwrap();
    assert_eq!(
        (scraped.running, scraped.waiting, scraped.others),
        (3, 4, 5)
    );
    let same = metrics(&mut keeper, &config, "a", 6, SCRAPED, 9);
    assert!(same.restarted.is_empty());
    assert_eq!(keeper.registry().pods[0].scraped.unwrap().others, 0);
    let later = SCRAPED.replace("100.5", "100.6");
    let news = metrics(&mut keeper, &config, "a", 7, &later, 0);
    assert_eq!(news.restarted[0].name, "a");
    assert!(keeper
        .calls(&config, 8)
        .iter()
        .any(|call| call.path == "/v1/models"));
    // No start time is no sign of anything.
    let silent = metrics(
        &mut keeper,
        &config,
        "a",
        8,
        "vllm:num_requests_running 1\n",
        0,
    );
    assert!(silent.restarted.is_empty());
    let junk = metrics(&mut keeper, &config, "a", 9, "junk", 0);
    assert!(!junk.changed);
    let gone = metrics(&mut keeper, &config, "b", 9, SCRAPED, 0);
    assert_eq!(gone, News::default(), "a pod that is none any more");
}

#[test]
fn few_pods_are_asked_at_a_time_and_all_in_the_end() {
    let pods: Vec<String> = (0..40).map(|n| format!(r#"{{"name": "p{n}"}}"#)).collect();
    let config = config(&format!(
        r#""pods": [{}], "metrics_scrape": {{}}"#,
        pods.join(",")
    ));
    let store = MemoryStore::default();
    let mut keeper = keeper(1);
    keeper.hold(&store, &config, 0);
    let (mut asked, mut rounds) = (0, 0);
    loop {
        let calls = keeper.calls(&config, 1);
        if calls.is_empty() {
            break;
        }
        assert!(calls.len() <= PARALLEL);
        asked += calls.len();
        rounds += 1;
        for call in calls {
            let _ = keeper.answer(&config, call.question, Answer::None, &|| 1, &|_| 0);
        }
    }
    assert_eq!((asked, rounds), (80, 10));
}

#[test]
fn a_single_pod_is_reached_by_its_address_or_not_at_all() {
    let reach_of = |more: &str, address: Option<&str>| {
        let config = config(&format!("{more}, \"metrics_scrape\": {{}}"));
        let pod = Known {
            name: "p".into(),
            address: address.map(Into::into),
            ..Known::default()
        };
        reach(&config, &pod).map(|((cluster, other), host)| (cluster, other, host))
    };
    let header = |name: &str| Some((name.to_owned(), "1.2.3.4:5".to_owned()));
    let at = Some("1.2.3.4:5");
    assert_eq!(
        reach_of(ONE, at),
        Some((
            "vllm".into(),
            None,
            header("x-gateway-destination-endpoint")
        ))
    );
    assert_eq!(reach_of(ONE, None), None);
    let fixed = r#""pods": [{"name": "p", "address": "1.2.3.4:5"}], "destination": {"mode": "override_host"}"#;
    assert_eq!(reach_of(fixed, at), None);
    let in_one = format!(r#"{fixed}, "match": {{"clusters": ["side"]}}"#);
    assert_eq!(
        reach_of(&in_one, at).map(|reach| reach.0),
        Some("side".into())
    );
    assert_eq!(
        reach_of(MANY, None),
        Some(("p/only".into(), Some("p".into()), None))
    );
    let sticky = config(
        r#""pods": [{"name": "p", "address": "1.2.3.4:5"}], "destination": {"mode": "stateful_session"}, "metrics_scrape": {"cluster": "each"}"#,
    );
    let pod = &keeper_of(&sticky).registry.pods[0];
    assert_eq!(
        reach(&sticky, pod),
        Some((("each".into(), None), header(ENDPOINT_HEADER)))
    );
}

fn keeper_of(config: &Config) -> Keeper {
    let mut keeper = keeper(1);
    keeper.hold(&MemoryStore::default(), config, 0);
    keeper
}

#[test]
fn models_are_kept_and_a_failure_changes_nothing() {
    let config = config(r#""pods": [{"name": "a"}], "metrics_scrape": {}"#);
    let mut keeper = keeper_of(&config);
    let mut listed = |status, body: &str| {
        let answer = Answer::Some(status, body.as_bytes());
        let question = Question::Models("a".into());
        let news = keeper.answer(&config, question, answer, &|| 1, &|_| 0);
        (news.changed, keeper.registry().pods[0].models.clone())
    };
    let models = r#"{"data": [{"id": "m"}]}"#;
    assert_eq!(listed(200, models), (true, vec!["m".to_owned()]));
    assert!(!listed(200, models).0);
    assert_eq!(listed(401, "{}"), (false, vec!["m".to_owned()]));
}
