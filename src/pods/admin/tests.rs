use super::*;

fn host(address: &str, health: &str) -> String {
    format!(
        r#"{{"stats": [{{"name": "rq_total", "value": "7"}}, {{"name": "rq_error"}}],
                "health_status": {{{health}}}, "weight": 1, "address": {address}}}"#
    )
}

fn socket(ip: &str, port: u16) -> String {
    format!(r#"{{"socket_address": {{"port_value": {port}, "address": "{ip}"}}}}"#)
}

fn dump(clusters: &[(&str, &[String])]) -> String {
    let one = |(name, hosts): &(&str, &[String])| match hosts {
        [] => format!(r#"{{"name": "{name}", "circuit_breakers": {{"thresholds": [{{}}]}}}}"#),
        _ => format!(
            r#"{{"host_statuses": [{}], "name": "{name}"}}"#,
            hosts.join(",")
        ),
    };
    let all: Vec<String> = clusters.iter().map(one).collect();
    format!(
        "{{\n \"cluster_statuses\": [\n{}\n]\n}}\n",
        all.join(" ,\n")
    )
}

fn names(found: &Found) -> Vec<&str> {
    found.pods.iter().map(|pod| pod.name.as_str()).collect()
}

#[test]
fn hosts_of_one_cluster_with_their_health() {
    let ok = r#""eds_health_status": "HEALTHY""#;
    let hosts = [
        host(&socket("10.0.0.9", 80), ok),
        host(&socket("::1", 81), r#""failed_outlier_check": true"#),
        host(
            &socket("10.0.0.3", 80),
            r#""eds_health_status": "DRAINING""#,
        ),
        host(
            &socket("10.0.0.4", 80),
            r#""failed_active_health_check": true, "eds_health_status": "UNHEALTHY""#,
        ),
        host(
            &socket("10.0.0.5", 80),
            r#""failed_active_health_check": false"#,
        ),
        host(r#"{"pipe": {"path": "/run/x"}}"#, ok),
        host(
            r#"{"envoy_internal_address": {"server_listener_name": "connect_originate", "endpoint_id": "10.0.0.7:8000"}}"#,
            ok,
        ),
        host(
            r#"{"envoyInternalAddress": {"endpointId": "somewhere"}}"#,
            ok,
        ),
    ];
    let other = [host(&socket("10.9.9.9", 80), ok)];
    let body = dump(&[("vllm-other", &other), ("vllm", &hosts), ("empty", &[])]);
    let found = read(body.as_bytes(), "vllm").unwrap();
    let seen: Vec<_> = found
        .pods
        .iter()
        .map(|p| (p.name.as_str(), p.health))
        .collect();
    assert_eq!(
        seen,
        [
            ("10.0.0.3:80", Health::DRAINING),
            ("10.0.0.4:80", Health::FAILED_CHECK.with(Health::UNHEALTHY)),
            ("10.0.0.5:80", Health::default()),
            ("10.0.0.7:8000", Health::default()),
            ("10.0.0.9:80", Health::default()),
            ("[::1]:81", Health::OUTLIER),
        ]
    );
    assert_eq!(found.refused, 2);
    assert!(found.pods.iter().all(|pod| pod.name == pod.address));
    assert_eq!(read(body.as_bytes(), "empty"), Some(Found::default()));
    assert_eq!(read(body.as_bytes(), "absent"), Some(Found::default()));
}

#[test]
fn a_host_that_is_listed_twice_is_as_well_as_its_better_half() {
    let bad = r#""failed_outlier_check": true"#;
    let address = socket("10.0.0.1", 80);
    let hosts = [host(&address, bad), host(&address, "")];
    let body = dump(&[("vllm", &hosts)]);
    let found = read(body.as_bytes(), "vllm").unwrap();
    assert_eq!(found.pods.len(), 1);
    assert!(found.pods[0].health.is_healthy());
}

#[test]
fn clusters_are_pods_and_an_aggregate_has_the_host_behind_it() {
    let at = |n| [host(&socket(&format!("10.0.0.{n}"), 80), "")];
    let down = [host(
        &socket("10.0.0.4", 80),
        r#""failed_outlier_check": true"#,
    )];
    let body = dump(&[
        ("vllm-1/only", &at(1)),
        ("vllm-0", &[]),
        ("vllm", &at(9)),
        ("vllm-2", &at(2)),
        ("vllm-1", &[]),
        ("vllm-0/only", &down),
        ("vllm-3/only", &at(3)),
        ("vllm-5", &[]),
        ("vllm-bad\\u0020name", &at(6)),
        ("else", &at(8)),
    ]);
    let found = read(body.as_bytes(), "vllm-*").unwrap();
    let all: Vec<_> = found
        .pods
        .iter()
        .map(|p| (p.name.as_str(), p.address.as_str()))
        .collect();
    assert_eq!(
        all,
        [
            ("vllm-0", "10.0.0.4:80"),
            ("vllm-1", "10.0.0.1:80"),
            ("vllm-2", "10.0.0.2:80"),
            ("vllm-3/only", "10.0.0.3:80"),
        ]
    );
    assert_eq!(found.pods[0].health, Health::OUTLIER);
    assert_eq!(found.refused, 1);
}

#[test]
fn what_is_not_whole_is_no_answer() {
    let hosts = [host(&socket("10.0.0.1", 80), "")];
    let body = dump(&[("vllm", &hosts), ("other", &hosts)]);
    let whole = body.trim_end().len();
    assert!(read(&body.as_bytes()[..whole], "vllm").is_some());
    for cut in 0..whole {
        assert_eq!(read(&body.as_bytes()[..cut], "vllm"), None, "{cut} bytes");
    }
    for junk in [
        "{}",
        "[]",
        "null",
        "<html>",
        r#"{"cluster_statuses": []}"#,
        r#"{"cluster_statuses": 1}"#,
    ] {
        assert_eq!(read(junk.as_bytes(), "vllm"), None, "{junk}");
    }
    let odd = r#"{"cluster_statuses": [1, null, {"name": 7, "host_statuses": {}}]}"#;
    assert_eq!(read(odd.as_bytes(), "vllm"), Some(Found::default()));
    assert_eq!(read(odd.as_bytes(), "v*"), Some(Found::default()));
}

#[test]
fn thousands_of_other_clusters_are_passed_over() {
    let hosts: Vec<String> = (1..=4)
        .map(|n| host(&socket(&format!("10.0.1.{n}"), 80), ""))
        .collect();
    let others: Vec<String> = (0..2000)
        .map(|n| format!("outbound|80||svc-{n}.local"))
        .collect();
    let mut clusters: Vec<(&str, &[String])> =
        others.iter().map(|n| (n.as_str(), &hosts[..])).collect();
    clusters.insert(1000, ("vllm", &hosts[..2]));
    let body = dump(&clusters);
    assert_eq!(
        names(&read(body.as_bytes(), "vllm").unwrap()),
        ["10.0.1.1:80", "10.0.1.2:80"]
    );
}

#[test]
fn the_first_by_name_are_kept() {
    let name = |n: usize| format!("p{:04}", (n * 733) % 2000);
    let all: Vec<(String, [String; 1])> = (0..2000)
        .map(|n| (name(n), [host(&socket("10.0.0.1", 80), "")]))
        .collect();
    let all: Vec<(&str, &[String])> = all.iter().map(|(n, h)| (n.as_str(), &h[..])).collect();
    let found = read(dump(&all).as_bytes(), "p*").unwrap();
    assert_eq!(
        (found.pods.len(), found.left_out),
        (MAX_KEPT, 2000 - MAX_KEPT as u32)
    );
    assert_eq!(found.pods[0].name, "p0000");
    assert_eq!(
        found.pods[MAX_KEPT - 1].name,
        format!("p{:04}", MAX_KEPT - 1)
    );
}

#[test]
fn the_filter_names_what_is_wanted_and_nothing_else() {
    assert_eq!(path("v", "a", false), "/clusters?format=json");
    assert_eq!(
        path("vllm-*", "adm", true),
        "/clusters?format=json&filter=%5E%28vllm-%7Cadm%24%29"
    );
    assert_eq!(
        path("outbound|80||a.b", "adm", true),
        "/clusters?format=json&filter=%5E%28outbound%5C%7C80%5C%7C%5C%7Ca%5C%2Eb%24%7Cadm%24%29"
    );
}

#[test]
fn upstream_addresses_of_an_ambient_mesh_are_mapped_back() {
    assert_eq!(
        ip_port("envoy://connect_originate/10.0.0.5:8000"),
        "10.0.0.5:8000"
    );
    assert_eq!(ip_port("10.0.0.5:8000"), "10.0.0.5:8000");
    assert_eq!(ip_port("envoy://listener"), "listener");
}
