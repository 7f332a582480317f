# The module as an OCI image in the layout that Istio and Envoy Gateway expect: `plugin.wasm` at
# the root, and nothing else. Context: the root of the repository, after `make build`.
FROM scratch
COPY target/wasm32-wasip1/release/prefix_router.wasm /plugin.wasm
