//! The hosts of the cluster `vllm` in a file that Envoy watches.

use serde_json::json;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The file and its directory.
pub struct Hosts {
    dir: TempDir,
    version: u32,
}

impl Hosts {
    /// Hosts at these ports of this machine.
    pub fn new(ports: &[u16]) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let mut this = Self { dir, version: 0 };
        this.set(ports);
        this
    }

    /// Where Envoy reads it.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("eds.json")
    }

    /// Other hosts, all healthy.
    pub fn set(&mut self, ports: &[u16]) {
        let healthy: Vec<_> = ports.iter().map(|port| (*port, "HEALTHY")).collect();
        self.set_health(&healthy);
    }

    /// Other hosts, and what the control plane says of each.
    pub fn set_health(&mut self, hosts: &[(u16, &str)]) {
        self.version += 1;
        let host = |(port, health): &(u16, &str)| {
            let address = json!({ "address": "127.0.0.1", "port_value": port });
            let endpoint = json!({ "address": { "socket_address": address } });
            json!({ "endpoint": endpoint, "health_status": health })
        };
        let hosts: Vec<_> = hosts.iter().map(host).collect();
        let response = json!({
            "version_info": self.version.to_string(),
            "resources": [{
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": "vllm",
                "endpoints": [{ "lb_endpoints": hosts }],
            }],
        });
        move_into_place(&self.file(), &response.to_string());
    }
}

/// Writes beside the file and moves into place: Envoy watches for the move.
pub fn move_into_place(file: &Path, text: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, text).expect("write");
    std::fs::rename(next, file).expect("move into place");
}
