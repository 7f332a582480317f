//! A shipped bootstrap, `envoy/*.yaml`, with other ports.
//!
//! Invariant: what is tested is what is shipped. Only ports, the module's path and what a test is
//! about are replaced, and a replacement that finds nothing to replace is an error.

use crate::envoy::Options;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Ports that the shipped file names, and how often each stands in Envoy's own configuration.
pub const LISTENER: u16 = 8080;
/// Port of the API's listener in the shipped file.
pub const API: u16 = 8090;
/// Port of the admin listener in the shipped file.
pub const ADMIN: u16 = 9901;
/// Ports of the pods in the shipped file.
pub const PODS: [u16; 3] = [8001, 8002, 8003];

/// What two instances of one pool have to agree on.
const AGREED: [&str; 9] = [
    "pool",
    "pods",
    "discovery",
    "destination",
    "chunk_bytes",
    "capacity_chunks",
    "max_pods",
    "max_capacity_chunks",
    "metrics_scrape",
];

/// How Envoy is told which pod: a bootstrap is shipped for each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shipped {
    /// A cluster for each pod, named in a header.
    ClusterHeader,
    /// One cluster whose policy takes addresses from a header.
    OverrideHost,
    /// One cluster and the session filter.
    StatefulSession,
}

impl Shipped {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::ClusterHeader,
        Self::OverrideHost,
        Self::StatefulSession,
    ];

    /// The file, under `envoy/`.
    pub fn file(self) -> &'static str {
        match self {
            Self::ClusterHeader => "envoy.yaml",
            Self::OverrideHost => "override-host.yaml",
            Self::StatefulSession => "stateful-session.yaml",
        }
    }

    /// The header by which the filter tells Envoy.
    pub fn header(self) -> &'static str {
        match self {
            Self::ClusterHeader => "x-vllm-cluster",
            Self::OverrideHost => "x-gateway-destination-endpoint",
            Self::StatefulSession => "x-vllm-host",
        }
    }

    /// How often a pod's address stands in Envoy's own configuration: in the pool and, where it
    /// has one, in the pod's own cluster.
    fn addresses(self) -> usize {
        if self == Self::ClusterHeader {
            2
        } else {
            1
        }
    }
}

/// An Envoy bootstrap as JSON (YAML aliases resolved).
#[derive(Debug, Clone)]
pub struct Bootstrap(Value, Shipped);

/// Root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("tests/e2e").to_path_buf()
}

/// The module that `make build` leaves.
pub fn module() -> PathBuf {
    root().join("target/wasm32-wasip1/release/prefix_router.wasm")
}

impl Bootstrap {
    /// The first of the shipped files, with the module's path made absolute.
    pub fn shipped() -> Self {
        Self::of(Shipped::ClusterHeader)
    }

    /// A shipped file, with the module's path made absolute.
    pub fn of(shipped: Shipped) -> Self {
        let path = root().join("envoy").join(shipped.file());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let json = serde_yaml_ng::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let mut this = Self(json, shipped);
        for part in this.parts() {
            let name = this.at("/vm_config/code/local/filename", *part);
            let shipped = name.as_str().expect("path of the module").to_string();
            assert!(
                module().ends_with(&shipped),
                "`make build` does not build {shipped}"
            );
            *name = module().to_str().expect("UTF-8 path").into();
        }
        this
    }

    /// Any other bootstrap of this kind.
    pub fn from_value(value: Value, kind: Shipped) -> Self {
        Self(value, kind)
    }

    /// The shipped file with another filter: the `typed_config` of a Wasm filter, from a manifest.
    pub fn with_filter(mut self, typed_config: &Value) -> Self {
        let plugin = typed_config.get("config").expect("a Wasm filter");
        *self.at("", Part::Plugin) = plugin.clone();
        self
    }

    /// The places of the plugin: not every file serves the API.
    fn parts(&self) -> &'static [Part] {
        match self.1 {
            Shipped::ClusterHeader => &[Part::Plugin, Part::Api],
            _ => &[Part::Plugin],
        }
    }

    /// Replaces every port of the shipped file: listener, API, admin, and the three pods.
    pub fn with_ports(mut self, options: &Options, pods: [u16; 3]) -> Self {
        // The admin listener is also a cluster.
        let mut map = vec![(LISTENER, options.listener, 1), (ADMIN, options.admin, 2)];
        if self.parts().contains(&Part::Api) {
            map.push((API, options.api, 1));
        }
        let times = self.1.addresses();
        let pairs = PODS.into_iter().zip(pods);
        map.extend(pairs.map(|(from, to)| (from, to, times)));
        let mut seen = vec![0; map.len()];
        replace_ports(&mut self.0, &map, &mut seen);
        for ((from, _, expected), seen) in map.iter().zip(seen) {
            assert_eq!(seen, *expected, "port {from} in {}", self.1.file());
        }
        let mut plugin = self.plugin();
        let static_pods = plugin["pods"].as_array_mut().expect("static pods");
        assert_eq!(static_pods.len(), PODS.len());
        for (pod, (from, to)) in static_pods.iter_mut().zip(PODS.into_iter().zip(pods)) {
            assert_eq!(pod["address"], format!("127.0.0.1:{from}"));
            pod["address"] = format!("127.0.0.1:{to}").into();
        }
        self.set_plugin(&plugin);
        self
    }

    /// Pods beyond the shipped three: `vllm-3`, `vllm-4`, …, each in the three places that the
    /// file's head names.
    pub fn with_more_pods(mut self, ports: &[u16]) -> Self {
        let mut plugin = self.plugin();
        for (index, port) in ports.iter().enumerate() {
            let name = format!("vllm-{}", PODS.len() + index);
            let address = format!("127.0.0.1:{port}");
            let static_pods = plugin["pods"].as_array_mut().expect("static pods");
            static_pods.push(serde_json::json!({ "name": name, "address": address }));
            let clusters = self.0["static_resources"]["clusters"].as_array_mut();
            let clusters = clusters.expect("clusters");
            let find = |clusters: &[Value], name: &str| {
                let at = clusters.iter().position(|c| c["name"] == name);
                at.unwrap_or_else(|| panic!("no cluster {name}"))
            };
            let endpoints = "/load_assignment/endpoints/0/lb_endpoints";
            let own = clusters[find(clusters, "vllm-2/only")].to_string();
            let mut own: Value = serde_json::from_str(&own.replace("vllm-2", &name)).expect("JSON");
            let endpoint = own.pointer_mut(endpoints).expect("one endpoint");
            endpoint[0]["endpoint"]["address"]["socket_address"]["port_value"] = (*port).into();
            let endpoint = endpoint[0].clone();
            let both = clusters[find(clusters, "vllm-2")].to_string();
            let both = serde_json::from_str(&both.replace("vllm-2", &name)).expect("JSON");
            let pool = find(clusters, "vllm");
            let pool = clusters[pool].pointer_mut(endpoints).expect("endpoints");
            pool.as_array_mut().expect("a list").push(endpoint);
            clusters.extend([both, own]);
        }
        self.set_plugin(&plugin);
        self
    }

    /// The plugin's configuration.
    pub fn plugin(&mut self) -> Value {
        let text = self.at("/configuration/value", Part::Plugin);
        serde_json::from_str(text.as_str().expect("a StringValue")).expect("JSON")
    }

    /// Replaces the plugin's configuration, and in the API's instance what a pool agrees on.
    pub fn set_plugin(&mut self, plugin: &Value) {
        self.set_plugin_text(&plugin.to_string());
        if !self.parts().contains(&Part::Api) {
            return;
        }
        let text = self.at("/configuration/value", Part::Api);
        let mut api: Value = serde_json::from_str(text.as_str().expect("text")).expect("JSON");
        for key in AGREED {
            match plugin.get(key) {
                Some(value) => api[key] = value.clone(),
                None => drop(api.as_object_mut().expect("an object").remove(key)),
            }
        }
        *text = api.to_string().into();
    }

    /// Replaces the plugin's configuration by a text that may be wrong.
    pub fn set_plugin_text(&mut self, text: &str) {
        *self.at("/configuration/value", Part::Plugin) = text.into();
    }

    /// Sets keys of the plugin's configuration.
    pub fn with_plugin(mut self, keys: Value) -> Self {
        let mut plugin = self.plugin();
        let plugin_keys = plugin.as_object_mut().expect("an object");
        for (key, value) in keys.as_object().expect("an object") {
            plugin_keys.insert(key.clone(), value.clone());
        }
        self.set_plugin(&plugin);
        self
    }

    /// A second instance of the filter behind the first, with other keys.
    pub fn with_second_filter(mut self, keys: Value) -> Self {
        let mut second = self.clone().with_plugin(keys);
        let filter = |filters: &Value| {
            let mut filters = filters.as_array().expect("http_filters").iter();
            let place = filters.position(|f| f["name"] == "prefix_router");
            place.expect("the filter is in the chain")
        };
        let mut copy = {
            let filters = second.at("/http_filters", Part::Manager);
            let place = filter(filters);
            filters[place].take()
        };
        copy["name"] = "second".into();
        let filters = self.at("/http_filters", Part::Manager);
        let place = filter(filters) + 1;
        filters.as_array_mut().expect("a list").insert(place, copy);
        self
    }

    /// The same configuration as a protobuf Struct, as Kubernetes manifests give it.
    pub fn with_plugin_as_struct(mut self) -> Self {
        let plugin = self.plugin();
        *self.at("/configuration", Part::Plugin) = serde_json::json!({
            "@type": "type.googleapis.com/google.protobuf.Struct",
            "value": plugin,
        });
        self
    }

    /// What an environment variable of the VM does not change, except the VM itself: with
    /// another value Envoy starts another VM under the same `vm_id`.
    pub fn with_new_vm(mut self, mark: &str) -> Self {
        for part in self.parts() {
            let vm = self.at("/vm_config", *part);
            vm["environment_variables"] = serde_json::json!({ "key_values": { "MARK": mark } });
        }
        self
    }

    /// Another file for the module.
    pub fn with_module(mut self, file: &Path) -> Self {
        for part in self.parts() {
            *self.at("/vm_config/code/local/filename", *part) =
                file.to_str().expect("UTF-8").into();
        }
        self
    }

    /// Without the filter: what remains when it is bypassed. The API goes with it: its listener
    /// would keep the VMs.
    pub fn without_filter(mut self) -> Self {
        if self.parts().contains(&Part::Api) {
            let listeners = self.0["static_resources"]["listeners"].as_array_mut();
            listeners.expect("listeners").truncate(1);
        }
        self.without_http_filter("prefix_router")
    }

    /// Without one of the HTTP filters.
    pub fn without_http_filter(mut self, name: &str) -> Self {
        let filters = self.at("/http_filters", Part::Manager);
        let filters = filters.as_array_mut().expect("http_filters");
        let before = filters.len();
        filters.retain(|f| f["name"] != name);
        assert_eq!(filters.len(), before - 1);
        self
    }

    /// Splits the route by weight between the pool, which keeps its first pods, and a new cluster
    /// `other` like it with the rest.
    pub fn with_split(mut self, first: usize, weights: [u32; 2], other: &str) -> Self {
        let clusters = &mut self.0["static_resources"]["clusters"];
        let clusters = clusters.as_array_mut().expect("clusters");
        let pool = clusters.iter().position(|c| c["name"] == "vllm");
        let pool = pool.expect("one cluster of all pods");
        let mut second = clusters[pool].clone();
        second["name"] = other.into();
        second["load_assignment"]["cluster_name"] = other.into();
        let endpoints = "/load_assignment/endpoints/0/lb_endpoints";
        let list = |cluster: &mut Value| {
            let list = cluster.pointer_mut(endpoints).expect("endpoints");
            list.as_array_mut().map(std::mem::take).expect("a list")
        };
        let mut pods = list(&mut clusters[pool]);
        list(&mut second);
        *second.pointer_mut(endpoints).expect("endpoints") = pods.split_off(first).into();
        *clusters[pool].pointer_mut(endpoints).expect("endpoints") = pods.into();
        let name = clusters[pool]["name"].clone();
        clusters.push(second);
        let route = "/route_config/virtual_hosts/0/routes/0/route";
        let route = self
            .at(route, Part::Manager)
            .as_object_mut()
            .expect("route");
        route.remove("cluster").expect("one cluster");
        let [a, b] = weights;
        let split = serde_json::json!({ "clusters": [
            { "name": name, "weight": a }, { "name": other, "weight": b },
        ] });
        route.insert("weighted_clusters".into(), split);
        self
    }

    /// Sets a key of the HTTP connection manager.
    pub fn with_manager(mut self, key: &str, value: Value) -> Self {
        self.at("", Part::Manager)[key] = value;
        self
    }

    /// The listener's limit alone, for a connection and for a request, and HTTP/2 with the least window.
    pub fn with_buffer_limit(mut self, bytes: u32) -> Self {
        let listener = &mut self.0["static_resources"]["listeners"][0];
        listener["per_connection_buffer_limit_bytes"] = bytes.into();
        let manager = self.at("", Part::Manager);
        let host = &mut manager["route_config"]["virtual_hosts"][0];
        let limit = host.as_object_mut().expect("a host");
        let limit = limit.remove("request_body_buffer_limit");
        assert!(limit.is_some(), "the shipped file has one");
        let window = bytes.max(65_535);
        self.with_manager(
            "http2_protocol_options",
            serde_json::json!({ "initial_stream_window_size": window, "initial_connection_window_size": window }),
        )
    }

    /// Passes trailers on in HTTP/1 too, which Envoy drops by default.
    pub fn with_http1_trailers(self) -> Self {
        let on = serde_json::json!({ "enable_trailers": true });
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        self.with_manager("http_protocol_options", on.clone())
            .with_clusters(
                |name| name == "vllm" || name.ends_with("/only"),
                |cluster| {
                    let protocol = &mut cluster["typed_extension_protocol_options"][options];
                    assert!(protocol["explicit_http_config"].is_object(), "{cluster}");
                    protocol["explicit_http_config"]["http_protocol_options"] = on.clone();
                },
            )
    }

    /// Lets CONNECT reach the filter.
    pub fn with_connect(mut self) -> Self {
        let manager = self.at("", Part::Manager);
        let upgrades = manager["upgrade_configs"].as_array_mut().expect("upgrades");
        upgrades.push(serde_json::json!({ "upgrade_type": "CONNECT" }));
        let routes = &mut manager["route_config"]["virtual_hosts"][0]["routes"];
        let tunnel = serde_json::json!({
            "match": { "connect_matcher": {} },
            "route": { "cluster": "vllm", "upgrade_configs": [{ "upgrade_type": "CONNECT" }] },
        });
        routes.as_array_mut().expect("routes").insert(0, tunnel);
        self
    }

    /// Sets a key of every cluster for which `which` holds.
    pub fn with_clusters(mut self, which: fn(&str) -> bool, edit: impl Fn(&mut Value)) -> Self {
        let clusters = &mut self.0["static_resources"]["clusters"];
        let mut edited = 0;
        for cluster in clusters.as_array_mut().expect("clusters") {
            if which(cluster["name"].as_str().expect("a name")) {
                edit(cluster);
                edited += 1;
            }
        }
        assert!(edited > 0, "no cluster to edit");
        self
    }

    /// One more cluster.
    pub fn with_cluster(mut self, cluster: Value) -> Self {
        let clusters = &mut self.0["static_resources"]["clusters"];
        clusters.as_array_mut().expect("clusters").push(cluster);
        self
    }

    /// No pods of the configuration: they are discovered.
    pub fn with_discovery(mut self, discovery: Value) -> Self {
        let mut plugin = self.plugin();
        plugin.as_object_mut().expect("an object").remove("pods");
        plugin["discovery"] = discovery;
        self.set_plugin(&plugin);
        self
    }

    /// The pool's hosts from a file that Envoy watches, and no active checks of them.
    pub fn with_pool_from(self, file: &Path) -> Self {
        self.with_clusters(
            |name| name == "vllm",
            |cluster| {
                let keys = cluster.as_object_mut().expect("a cluster");
                for key in ["load_assignment", "health_checks"] {
                    assert!(keys.remove(key).is_some(), "the pool has no {key}");
                }
                cluster["type"] = "EDS".into();
                cluster["eds_cluster_config"] = serde_json::json!({ "eds_config": {
                    "resource_api_version": "V3",
                    "path_config_source": {
                        "path": file, "watched_directory": { "path": file.parent() },
                    },
                } });
            },
        )
    }

    /// The listeners, as resources of a file that Envoy watches.
    pub fn listener_resources(&self) -> Vec<Value> {
        let listeners = self.0["static_resources"]["listeners"].as_array();
        let typed = listeners
            .expect("listeners")
            .iter()
            .cloned()
            .map(|mut listener| {
                listener["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener".into();
                listener
            });
        typed.collect()
    }

    /// The bootstrap that reads its listeners from `file`.
    pub fn with_listeners_from(mut self, file: &Path) -> Self {
        self.0["static_resources"]["listeners"] = Value::Array(vec![]);
        self.0["dynamic_resources"] = serde_json::json!({
            "lds_config": { "resource_api_version": "V3", "path_config_source": {
                "path": file, "watched_directory": { "path": file.parent() },
            } },
        });
        self
    }

    /// As JSON, which is YAML.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(&self.0).expect("JSON")
    }

    fn at(&mut self, pointer: &str, part: Part) -> &mut Value {
        let listener = if part == Part::Api { 1 } else { 0 };
        let manager = format!(
            "/static_resources/listeners/{listener}/filter_chains/0/filters/0/typed_config"
        );
        let base = self.0.pointer_mut(&manager).expect("connection manager");
        let base = match part {
            Part::Manager => base,
            Part::Plugin | Part::Api => {
                let filters = base["http_filters"].as_array_mut().expect("http_filters");
                let wasm = filters.iter_mut().find(|f| f["name"] == "prefix_router");
                let wasm = wasm.expect("the filter is in the chain");
                wasm.pointer_mut("/typed_config/config").expect("plugin")
            }
        };
        base.pointer_mut(pointer)
            .unwrap_or_else(|| panic!("the bootstrap has no {pointer}"))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The connection manager of the traffic's listener.
    Manager,
    /// The plugin there.
    Plugin,
    /// The plugin of the API's listener.
    Api,
}

fn replace_ports(value: &mut Value, map: &[(u16, u16, usize)], seen: &mut [usize]) {
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                if key != "port_value" {
                    replace_ports(value, map, seen);
                    continue;
                }
                let index = map.iter().position(|(from, ..)| *value == *from);
                let index = index.unwrap_or_else(|| panic!("unknown port {value}"));
                *value = map[index].1.into();
                seen[index] += 1;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|v| replace_ports(v, map, seen)),
        _ => {}
    }
}
