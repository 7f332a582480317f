//! What Istio makes of the manifests in `envoy/istio`: as much of it as they use.
//!
//! Invariant: what is not understood here is an error, not left out: another field to match, an
//! operation that is not known, a patch that fits nothing.

use crate::bootstrap::Bootstrap;
use crate::control_plane::{self as plane, list, of_kind, text};
use crate::envoy::Options;
use crate::hosts::move_into_place;
use crate::rig::PODS;
use serde_json::{json, Value};
use tempfile::TempDir;

/// The proxy that the manifests are for.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// `GATEWAY` or `SIDECAR_OUTBOUND`.
    pub context: &'static str,
    /// Services on port 8000: their name and the ports of their pods.
    pub services: Vec<(&'static str, Vec<u16>)>,
}

/// A bootstrap and the files that it names.
pub struct Assembled {
    /// The bootstrap.
    pub bootstrap: Bootstrap,
    /// What comes by discovery.
    _files: TempDir,
}

/// The bootstrap of the proxy, once all documents have been applied.
pub fn assemble(documents: &[Value], proxy: &Proxy, options: &Options) -> Assembled {
    let manager = plane::manager("outbound", virtual_hosts(documents, proxy).into());
    let listener = json!({
        "name": "0.0.0.0_8000", "filter_chains": [{ "filters": [manager] }],
    });
    let clusters = clusters(documents, proxy);
    let mut bootstrap = plane::bootstrap(listener, clusters, options);
    let mut extensions = vec![];
    for filter in of_kind(documents, "EnvoyFilter") {
        selects(filter, proxy);
        for patch in list(&filter["spec"]["configPatches"]) {
            apply(patch, proxy, &mut bootstrap, &mut extensions);
        }
    }
    let files = TempDir::new().expect("a temporary directory");
    deliver(&mut bootstrap, extensions, &files);
    Assembled {
        bootstrap: plane::finished(bootstrap),
        _files: files,
    }
}

/// Where the proxies of the manifests are, and their labels.
fn place(proxy: &Proxy) -> (&'static str, Value) {
    match proxy.context {
        "GATEWAY" => ("istio-system", json!({ "istio": "ingressgateway" })),
        _ => ("chat", json!({ "app": "chat" })),
    }
}

/// An EnvoyFilter counts in its own namespace, for the proxies with its labels.
fn selects(filter: &Value, proxy: &Proxy) {
    let (namespace, labels) = place(proxy);
    assert_eq!(filter["metadata"]["namespace"], namespace, "{filter}");
    let selected = &filter["spec"]["workloadSelector"]["labels"];
    assert_eq!(*selected, labels, "{filter}");
}

/// The routes of a VirtualService for a host are a gateway's when one of its Gateways is, and has
/// that host.
fn on_gateway(documents: &[Value], service: &Value, host: &str, proxy: &Proxy) -> bool {
    let named = |gateway: &Value| {
        let own = |name: &Value| gateway["metadata"]["name"] == *name;
        list(&service["spec"]["gateways"]).iter().any(own)
            && gateway["metadata"]["namespace"] == service["metadata"]["namespace"]
    };
    let gateways = of_kind(documents, "Gateway");
    gateways.into_iter().filter(|g| named(g)).any(|gateway| {
        let servers = list(&gateway["spec"]["servers"]);
        gateway["spec"]["selector"] == place(proxy).1
            && servers.iter().any(|server| {
                server["port"]["number"] == 80 && list(&server["hosts"]).iter().any(|h| h == host)
            })
    })
}

fn outbound(subset: &str, host: &str) -> String {
    format!("outbound|8000|{subset}|{host}")
}

/// One for each host of a VirtualService; in a sidecar one for each Service that none is about.
fn virtual_hosts(documents: &[Value], proxy: &Proxy) -> Vec<Value> {
    let host_of = |host: &str, port: u16, routes: Vec<Value>| {
        let domains = [host.to_string(), format!("{host}:*")];
        json!({ "name": format!("{host}:{port}"), "domains": domains, "routes": routes })
    };
    let mut all = vec![];
    for service in of_kind(documents, "VirtualService") {
        for host in list(&service["spec"]["hosts"]) {
            if proxy.context == "SIDECAR_OUTBOUND" {
                // Those of a gateway do not count in a mesh.
                continue;
            }
            let served = on_gateway(documents, service, text(host), proxy);
            assert!(served, "no Gateway has {host}");
            let rules = list(&service["spec"]["http"]).iter();
            let routes = rules.filter(|rule| match &rule["match"] {
                Value::Null => true,
                conditions => conditions[0]["authority"]["exact"] == *host,
            });
            all.push(host_of(text(host), 80, routes.map(route).collect()));
        }
    }
    if proxy.context == "SIDECAR_OUTBOUND" {
        for (host, _) in &proxy.services {
            let route = json!({
                "match": { "prefix": "/" },
                "route": {
                    "cluster": outbound("", host),
                    "timeout": "0s",
                    // What Istio gives to a route that nobody wrote.
                    "retry_policy": {
                        "retry_on": "connect-failure,refused-stream,unavailable,cancelled",
                        "num_retries": 2,
                    },
                },
            });
            all.push(host_of(host, 8000, vec![route]));
        }
    }
    all
}

fn route(rule: &Value) -> Value {
    let [only] = list(&rule["route"]) else {
        panic!("one destination: {rule}");
    };
    let to = &only["destination"];
    assert_eq!(to["port"]["number"], 8000, "{rule}");
    json!({
        "name": rule["name"],
        "match": { "prefix": "/" },
        "route": {
            "cluster": outbound("", text(&to["host"])),
            "timeout": rule["timeout"],
            "retry_policy": {
                "retry_on": rule["retries"]["retryOn"],
                "num_retries": rule["retries"]["attempts"],
                "retry_host_predicate": [{
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": { "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate" },
                }],
                "host_selection_retry_max_attempts": "5",
            },
        },
    })
}

/// One for each Service, one for each of its subsets.
fn clusters(documents: &[Value], proxy: &Proxy) -> Vec<Value> {
    let mut all = vec![];
    for (host, ports) in &proxy.services {
        let rules = of_kind(documents, "DestinationRule");
        // A file for subsets takes the place of the general rule: the last counts.
        let rule = rules
            .into_iter()
            .rfind(|rule| rule["spec"]["host"] == *host);
        let rule = rule.map_or(&Value::Null, |rule| &rule["spec"]);
        let of_all = [("", ports.clone())].into_iter();
        let subsets = list(&rule["subsets"]).iter().map(|subset| {
            let pod = &subset["labels"]["statefulset.kubernetes.io/pod-name"];
            let pod = PODS.iter().position(|name| pod == name).expect("a pod");
            (text(&subset["name"]), vec![ports[pod]])
        });
        for (subset, ports) in of_all.chain(subsets) {
            let mut cluster = plane::cluster(&outbound(subset, host), &ports);
            let policy = &rule["trafficPolicy"];
            if let Some(outlier) = policy["outlierDetection"].as_object() {
                cluster["outlier_detection"] = outlier_detection(&Value::Object(outlier.clone()));
            }
            let idle = &policy["connectionPool"]["http"]["idleTimeout"];
            if idle.is_string() {
                plane::idle_timeout(&mut cluster, idle);
            }
            all.push(cluster);
        }
    }
    all
}

fn outlier_detection(given: &Value) -> Value {
    json!({
        "split_external_local_origin_errors": given["splitExternalLocalOriginErrors"],
        "consecutive_local_origin_failure": given["consecutiveLocalOriginFailures"],
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "consecutive_5xx": given["consecutive5xxErrors"],
        "enforcing_consecutive_5xx": 100,
        "enforcing_success_rate": 0,
        "interval": given["interval"],
        "base_ejection_time": given["baseEjectionTime"],
        "max_ejection_percent": given["maxEjectionPercent"],
    })
}

fn apply(patch: &Value, proxy: &Proxy, bootstrap: &mut Value, extensions: &mut Vec<Value>) {
    let (to, condition) = (text(&patch["applyTo"]), &patch["match"]);
    let (operation, value) = (text(&patch["patch"]["operation"]), &patch["patch"]["value"]);
    if to == "BOOTSTRAP" {
        assert_eq!(operation, "MERGE");
        plane::merge(bootstrap, value);
        return;
    }
    assert_eq!(condition["context"], proxy.context, "{patch}");
    let listener = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let found = match (to, operation) {
        ("NETWORK_FILTER", "MERGE") => {
            only_keys(&condition["listener"], &["portNumber", "filterChain"]);
            let manager = bootstrap.pointer_mut(listener).expect("a manager");
            plane::merge(manager, &value["typed_config"]);
            1
        }
        ("HTTP_FILTER", "INSERT_BEFORE") => {
            only_keys(&condition["listener"], &["portNumber", "filterChain"]);
            let before = &condition["listener"]["filterChain"]["filter"]["subFilter"]["name"];
            let manager = bootstrap.pointer_mut(listener).expect("a manager");
            let filters = manager["http_filters"].as_array_mut().expect("filters");
            let place = filters.iter().position(|f| f["name"] == *before);
            filters.insert(place.expect("the filter to be before"), value.clone());
            1
        }
        ("VIRTUAL_HOST" | "HTTP_ROUTE", _) => {
            let name = &condition["routeConfiguration"]["vhost"]["name"];
            let hosts = format!("{listener}/route_config/virtual_hosts");
            let hosts = bootstrap.pointer_mut(&hosts).expect("virtual hosts");
            let hosts = hosts.as_array_mut().expect("a list").iter_mut();
            let mut found = 0;
            for host in hosts.filter(|host| host["name"] == *name) {
                match (to, operation) {
                    ("VIRTUAL_HOST", "MERGE") => plane::merge(host, value),
                    ("HTTP_ROUTE", "INSERT_FIRST") => {
                        let routes = host["routes"].as_array_mut().expect("routes");
                        routes.insert(0, value.clone());
                    }
                    _ => panic!("{operation} of {to}"),
                }
                found += 1;
            }
            found
        }
        ("CLUSTER", "ADD") => {
            only_keys(condition, &["context"]);
            let clusters = &mut bootstrap["static_resources"]["clusters"];
            clusters.as_array_mut().expect("a list").push(value.clone());
            1
        }
        ("CLUSTER", "MERGE") => {
            only_keys(&condition["cluster"], &["service", "portNumber"]);
            assert_eq!(condition["cluster"]["portNumber"], 8000);
            let of = format!("|{}", text(&condition["cluster"]["service"]));
            let clusters = &mut bootstrap["static_resources"]["clusters"];
            let clusters = clusters.as_array_mut().expect("a list").iter_mut();
            let mine = clusters.filter(|c| text(&c["name"]).ends_with(&of));
            mine.map(|cluster| plane::merge(cluster, value)).count()
        }
        ("EXTENSION_CONFIG", "ADD") => {
            only_keys(condition, &["context"]);
            extensions.push(value.clone());
            1
        }
        _ => panic!("{operation} of {to}"),
    };
    assert!(found > 0, "fits nothing: {patch}");
}

fn only_keys(of: &Value, known: &[&str]) {
    let keys = of.as_object().into_iter().flatten();
    for (key, _) in keys {
        assert!(known.contains(&key.as_str()), "a match by {key}");
    }
}

/// The agent: what Envoy asks for by name is in a file, with the module as a local file.
fn deliver(bootstrap: &mut Value, mut extensions: Vec<Value>, files: &TempDir) {
    let filters =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    let filters = bootstrap.pointer_mut(filters).expect("filters");
    for filter in filters.as_array_mut().expect("a list") {
        let Some(source) = filter.pointer_mut("/config_discovery/config_source") else {
            continue;
        };
        let file = files.path().join("extension.json");
        let place = source.as_object_mut().expect("a source");
        assert!(place.remove("ads").is_some());
        place.insert("path_config_source".into(), json!({ "path": file }));
        let name = filter["name"].clone();
        let extension = extensions.iter().position(|e| e["name"] == name);
        let mut extension = extensions.remove(extension.expect("an extension of that name"));
        let code = &extension["typed_config"]["config"]["vm_config"]["code"]["remote"];
        assert_eq!(code["sha256"].as_str().map(str::len), Some(64), "{code}");
        crate::manifest::at_home(&mut extension);
        extension["@type"] = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig".into();
        let response = json!({ "version_info": "1", "resources": [extension] });
        move_into_place(&file, &response.to_string());
    }
    assert!(extensions.is_empty(), "nobody asks for {extensions:?}");
}
