//! Runs prefix-router where it lives: the compiled module in a real Envoy with the shipped
//! bootstrap, in front of simulated vLLM pods.
//!
//! | module | owns |
//! |---|---|
//! | [`bootstrap`] | the shipped `envoy/envoy.yaml`, with other ports |
//! | [`envoy`] | one Envoy process, its logs and its admin listener |
//! | [`hosts`] | hosts of a cluster in a file that Envoy watches |
//! | [`client`] | HTTP/1 and HTTP/2 connections in every framing |
//! | [`raw`] | bytes on a socket, for requests that no library would send |
//! | [`decision`] | what the filter says about a request |
//! | [`metrics`] | Prometheus text |
//! | [`manifest`] | what of Envoy's configuration is inside manifests, and whether it works |
//! | [`control_plane`], [`istio`], [`envoy_gateway`] | what a control plane makes of its manifests |
//! | [`stub`] | a pod that keeps what it received, byte for byte |
//! | [`rig`] | an Envoy in front of three pods; bodies to send |
//!
//! Everything binds 127.0.0.1 on free ports and is stopped by process id.

pub mod bootstrap;
pub mod client;
pub mod control_plane;
pub mod decision;
pub mod envoy;
pub mod envoy_gateway;
pub mod hosts;
pub mod istio;
pub mod manifest;
pub mod metrics;
pub mod raw;
pub mod rig;
pub mod stub;
pub mod tool;
