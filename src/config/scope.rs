//! Which requests an instance is for: `match` of the configuration.

/// Hosts, path prefixes and clusters; an empty list is no condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Lower-case host names, with a port only where the port matters; `*.example.com` covers
    /// every name below it.
    pub hosts: Vec<String>,
    /// Path prefixes that end at a segment.
    pub path_prefixes: Vec<String>,
    /// Names of clusters: the one that Envoy's route has picked, before the filter says anything.
    /// So each side of a route that is split by weight is a pool of its own.
    pub clusters: Vec<String>,
}

impl Scope {
    /// Whether every host and path is covered, so that the host need not be read.
    pub fn is_everything(&self) -> bool {
        self.hosts.is_empty() && self.path_prefixes.is_empty()
    }

    /// Whether a request is covered for which Envoy has `picked` this cluster.
    pub fn covers_cluster(&self, picked: &dyn Fn() -> Option<Vec<u8>>) -> bool {
        let is = |picked: Vec<u8>| self.clusters.iter().any(|name| name.as_bytes() == picked);
        self.clusters.is_empty() || picked().is_some_and(is)
    }

    /// Whether a request to this authority and path is covered.
    pub fn covers(&self, authority: &[u8], path: &[u8]) -> bool {
        let host = self.hosts.is_empty() || self.hosts.iter().any(|h| host_covers(h, authority));
        let path_covers = |prefix: &String| prefix_covers(prefix.as_bytes(), path);
        host && (self.path_prefixes.is_empty() || self.path_prefixes.iter().any(path_covers))
    }
}

fn host_covers(host: &str, authority: &[u8]) -> bool {
    let (name, port) = split_port(authority);
    let (wanted, wanted_port) = split_port(host.as_bytes());
    if wanted_port.is_some() && wanted_port != port {
        return false;
    }
    match wanted.strip_prefix(b"*") {
        Some(suffix) => {
            let start = name.len().checked_sub(suffix.len());
            let tail = start.filter(|at| *at > 0).and_then(|at| name.get(at..));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(suffix))
        }
        None => name.eq_ignore_ascii_case(wanted),
    }
}

/// `host:port`, `[::1]:port` or either without a port.
fn split_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut parts = authority.rsplitn(2, |byte| *byte == b':');
    match (parts.next(), parts.next()) {
        (Some(port), Some(name)) if !port.is_empty() && port.iter().all(u8::is_ascii_digit) => {
            // Without brackets a second colon makes it a bare IPv6 address.
            if name.contains(&b':') && !name.ends_with(b"]") {
                (authority, None)
            } else {
                (name, Some(port))
            }
        }
        _ => (authority, None),
    }
}

fn prefix_covers(prefix: &[u8], path: &[u8]) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => {
            prefix.ends_with(b"/") || matches!(rest.first(), None | Some(b'/' | b'?' | b'#'))
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(hosts: &[&str], prefixes: &[&str]) -> Scope {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Scope {
            hosts: owned(hosts),
            path_prefixes: owned(prefixes),
            clusters: Vec::new(),
        }
    }

    #[test]
    fn hosts_compare_without_case_and_port() {
        let one = scope(&["llm.example.com"], &[]);
        for good in ["llm.example.com", "LLM.Example.COM", "llm.example.com:8080"] {
            assert!(one.covers(good.as_bytes(), b"/"), "{good}");
        }
        for bad in [
            "",
            "example.com",
            "xllm.example.com",
            "llm.example.com.evil",
        ] {
            assert!(!one.covers(bad.as_bytes(), b"/"), "{bad}");
        }
        let port = scope(&["llm:81"], &[]);
        assert!(port.covers(b"llm:81", b"/") && !port.covers(b"llm", b"/"));
        assert!(!port.covers(b"llm:80", b"/"));
        let below = scope(&["*.example.com"], &[]);
        assert!(below.covers(b"a.example.com:1", b"/") && below.covers(b"a.b.EXAMPLE.com", b"/"));
        assert!(!below.covers(b"example.com", b"/") && !below.covers(b".example.com", b"/"));
        let v6 = scope(&["[::1]"], &[]);
        assert!(v6.covers(b"[::1]:8080", b"/") && v6.covers(b"[::1]", b"/"));
    }

    #[test]
    fn a_cluster_is_asked_for_only_where_one_is_named() {
        assert!(scope(&["a"], &[]).covers_cluster(&|| panic!("asked")));
        let canary = Scope {
            clusters: vec!["canary".into(), "other".into()],
            ..Scope::default()
        };
        let covers = |name: &str| canary.covers_cluster(&|| Some(name.into()));
        assert!(covers("canary") && covers("other"));
        assert!(!covers("vllm") && !covers("canary2") && !covers(""));
        assert!(!canary.covers_cluster(&|| None), "no route");
    }

    #[test]
    fn prefixes_end_at_a_segment() {
        let team = scope(&[], &["/team-a"]);
        for good in ["/team-a", "/team-a/v1", "/team-a?x=1"] {
            assert!(team.covers(b"", good.as_bytes()), "{good}");
        }
        for bad in ["", "/", "/team-ab", "/x/team-a"] {
            assert!(!team.covers(b"", bad.as_bytes()), "{bad}");
        }
        assert!(scope(&[], &["/"]).covers(b"", b"/anything"));
        assert!(scope(&["a", "b"], &["/x", "/y"]).covers(b"b", b"/y/z"));
        assert!(!scope(&["a"], &["/x"]).covers(b"a", b"/y"));
        assert!(Scope::default().covers(b"\xff", b"\xff"));
    }
}
