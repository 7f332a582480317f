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
mod tests;
