//! `GET /clusters?format=json` of Envoy's admin listener -> the pods.
//!
//! Owns what is believed of that answer: zero values are left out, the order of keys varies. With
//! one cluster the pods are its hosts, by `ip:port`; with `name*` they are the clusters, each with
//! its first host. A cluster `vllm-0` beside one of the name `vllm-0/only` is an aggregate over
//! it, which lists no hosts itself: the pod is called `vllm-0` and its host is that of the other.
//! Invariant: an answer that is not whole, or lists no cluster at all, is no answer.
//! Cost: one pass, in the memory of the largest cluster; many other clusters cost time alone.

use super::health::Health;
use crate::config::{is_ip_port, is_pod_name};
use crate::prompt::json::{Tape, Value};

/// Ending of the name of a cluster that holds one pod and stands behind an aggregate cluster.
pub const ONLY: &str = "/only";
/// Hosts or clusters that are kept, the first by name; more than any pool has room for.
pub const MAX_KEPT: usize = 1024;
/// A longer answer is not read.
pub const MAX_BYTES: usize = 16 << 20;

/// A pod as Envoy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of its cluster, or its address.
    pub name: String,
    /// `ip:port`.
    pub address: String,
    /// Envoy's view of its health.
    pub health: Health,
}

/// What an answer says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The pods by name.
    pub pods: Vec<Seen>,
    /// Hosts or clusters beyond the first [`MAX_KEPT`].
    pub left_out: u32,
    /// Hosts and clusters that cannot be pods: an address that is no `ip:port`, a name that
    /// cannot be a header or a label.
    pub refused: u32,
}

/// The path to ask for. `filter`: this Envoy can leave out the other clusters (1.38).
pub fn path(cluster: &str, admin_cluster: &str, filter: bool) -> String {
    let mut path = "/clusters?format=json".to_owned();
    if filter {
        // The admin's own cluster is always there: an answer without any cluster is no answer.
        path.push_str("&filter=%5E%28");
        match cluster.strip_suffix('*') {
            Some(prefix) => quote(prefix, &mut path),
            None => {
                quote(cluster, &mut path);
                path.push_str("%24");
            }
        }
        path.push_str("%7C");
        quote(admin_cluster, &mut path);
        path.push_str("%24%29");
    }
    path
}

/// Quotes a text for a regular expression, and that for a query.
fn quote(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            out.push(char::from(byte));
            continue;
        }
        let hex = |digit: u8| char::from(*HEX.get(usize::from(digit)).unwrap_or(&b'0'));
        out.push_str("%5C%");
        out.push(hex(byte >> 4));
        out.push(hex(byte & 15));
    }
}

/// Reads an answer. Nothing when it is none.
pub fn read(body: &[u8], cluster: &str) -> Option<Found> {
    let mut finds = Finds::default();
    let prefix = cluster.strip_suffix('*');
    each_cluster(body, |status| {
        let [name, statuses] = status.pick(["name", "host_statuses"]);
        let Some(name) = name.and_then(text) else {
            return;
        };
        match prefix {
            Some(prefix) if name.starts_with(prefix) => finds.cluster(&name, statuses),
            None if name == cluster => finds.hosts_of(statuses),
            _ => {}
        }
    })?;
    let seen = |pair: Pair| {
        // A cluster without hosts is nowhere to send a request to.
        let (address, health) = pair.only.or(pair.own)?;
        let ending = if pair.is_there { "" } else { ONLY };
        Some(Seen {
            name: pair.name + ending,
            address,
            health,
        })
    };
    Some(Found {
        pods: finds.pairs.into_iter().filter_map(seen).collect(),
        left_out: finds.left_out,
        refused: finds.refused,
    })
}

/// The `ip:port` of what Envoy names as `upstream.address`: hosts of an ambient mesh are behind
/// an internal listener, as `envoy://connect_originate/10.0.0.5:8000`.
pub fn ip_port(upstream: &str) -> &str {
    match upstream.strip_prefix("envoy://") {
        Some(internal) => internal.split_once('/').map_or(internal, |(_, to)| to),
        None => upstream,
    }
}

/// A name, and the hosts of its cluster and of the one behind it.
#[derive(Default)]
struct Pair {
    name: String,
    /// There is a cluster of that very name.
    is_there: bool,
    own: Option<(String, Health)>,
    only: Option<(String, Health)>,
}

/// What is found, by name.
#[derive(Default)]
struct Finds {
    pairs: Vec<Pair>,
    left_out: u32,
    refused: u32,
}

impl Finds {
    /// The entry of a name; none when there is no room, which the first names have.
    fn entry(&mut self, name: &str) -> Option<&mut Pair> {
        let found = self
            .pairs
            .binary_search_by(|pair| pair.name.as_str().cmp(name));
        let at = match found {
            Ok(at) => at,
            Err(at) => {
                if self.pairs.len() >= MAX_KEPT {
                    self.left_out = self.left_out.saturating_add(1);
                    if at >= MAX_KEPT {
                        return None;
                    }
                    self.pairs.pop();
                }
                let new = Pair {
                    name: name.to_owned(),
                    ..Pair::default()
                };
                self.pairs.insert(at, new);
                at
            }
        };
        self.pairs.get_mut(at)
    }

    fn refuse(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    fn hosts_of(&mut self, statuses: Option<Value<'_>>) {
        for host in statuses.into_iter().flat_map(Value::items) {
            let Some((address, health)) = host_of(host) else {
                self.refuse();
                continue;
            };
            if let Some(pair) = self.entry(&address) {
                let known = pair.own.as_ref().map_or(health, |own| own.1.common(health));
                pair.is_there = true;
                pair.own = Some((address, known));
            }
        }
    }

    fn cluster(&mut self, name: &str, statuses: Option<Value<'_>>) {
        let mut hosts = statuses.into_iter().flat_map(Value::items).peekable();
        let listed = hosts.peek().is_some();
        let host = hosts.find_map(host_of);
        if !is_pod_name(name) || (listed && host.is_none()) {
            return self.refuse();
        }
        if let Some(front) = name.strip_suffix(ONLY) {
            if let Some(pair) = self.entry(front) {
                pair.only = host;
            }
        } else if let Some(pair) = self.entry(name) {
            pair.is_there = true;
            pair.own = host;
        }
    }
}

/// Address and health of a host status.
fn host_of(host: Value<'_>) -> Option<(String, Health)> {
    let [address, health] = host.pick(["address", "health_status"]);
    let [socket, internal, internal_too] = address?.pick([
        "socket_address",
        "envoy_internal_address",
        "envoyInternalAddress",
    ]);
    let address = match (socket, internal.or(internal_too)) {
        (Some(socket), _) => {
            let [ip, port] = socket.pick(["address", "port_value"]);
            let (ip, port) = (text(ip?)?, port?.as_u32()?);
            match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }
        }
        (None, Some(internal)) => {
            let [snake, camel] = internal.pick(["endpoint_id", "endpointId"]);
            text(snake.or(camel)?)?
        }
        (None, None) => return None,
    };
    let health = health.map_or(Health::default(), health_of);
    is_ip_port(&address).then_some((address, health))
}

fn health_of(status: Value<'_>) -> Health {
    let [eds, check, outlier, at_once] = status.pick([
        "eds_health_status",
        "failed_active_health_check",
        "failed_outlier_check",
        "excluded_via_immediate_hc_fail",
    ]);
    let is = |value: Option<Value<'_>>| value.is_some_and(|value| value.raw() == b"true");
    let mut health = match eds.and_then(text).as_deref() {
        Some("UNHEALTHY" | "TIMEOUT") => Health::UNHEALTHY,
        Some("DRAINING") => Health::DRAINING,
        _ => Health::default(),
    };
    if is(check) || is(at_once) {
        health = health.with(Health::FAILED_CHECK);
    }
    if is(outlier) {
        health = health.with(Health::OUTLIER);
    }
    health
}

pub(super) fn text(value: Value<'_>) -> Option<String> {
    String::from_utf8(value.text()?.to_bytes()).ok()
}

/// Calls `each` for every member of `cluster_statuses`; nothing when the answer is not whole.
fn each_cluster(body: &[u8], mut each: impl FnMut(Value<'_>)) -> Option<()> {
    let rest = after(body, b"{")?;
    let rest = after(rest, b"\"cluster_statuses\"")?;
    let rest = after(rest, b":")?;
    let mut rest = after(rest, b"[")?;
    loop {
        let (tape, end) = Tape::first(rest).ok()?;
        each(tape.root()?);
        rest = rest.get(end..)?;
        match after(rest, b",") {
            Some(next) => rest = next,
            None => break,
        }
    }
    let rest = after(after(rest, b"]")?, b"}")?;
    rest.trim_ascii().is_empty().then_some(())
}

fn after<'a>(text: &'a [u8], token: &[u8]) -> Option<&'a [u8]> {
    text.trim_ascii_start().strip_prefix(token)
}

#[cfg(test)]
mod tests {
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
}
