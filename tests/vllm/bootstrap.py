"""The shipped bootstrap, `envoy/envoy.yaml`, for as many pods as there are.

Invariant: what is tested is what is shipped. Only ports, the number of pods and the module's path
are replaced, and what is to be replaced must be there. Round robin is the same file without the
filter, its pool in turn.
"""

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "target/wasm32-wasip1/release/prefix_router.wasm"
LISTENER, ADMIN = 8080, 9901


def pod_name(index: int) -> str:
    """A pod's name in the plugin's configuration, and of its cluster."""
    return f"vllm-{index}"


def with_filter(listener: int, admin: int, pods: list[int]) -> dict:
    """What is shipped, with these ports."""
    # Through JSON: YAML's aliases must not share what is edited.
    shipped = yaml.safe_load((ROOT / "envoy/envoy.yaml").read_text())
    shipped = json.loads(json.dumps(shipped))
    clusters = {c["name"]: c for c in shipped["static_resources"]["clusters"]}
    endpoints = clusters["vllm"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    plugin = _wasm(shipped)["configuration"]
    keys = json.loads(plugin["value"])
    assert len(endpoints) == len(keys["pods"]) >= len(pods)

    for index in range(len(endpoints)):
        name = pod_name(index)
        if index >= len(pods):
            del clusters[name], clusters[f"{name}/only"]
            continue
        alone = clusters[f"{name}/only"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        for endpoint in (alone[0], endpoints[index]):
            endpoint["endpoint"]["address"]["socket_address"]["port_value"] = pods[index]
        assert keys["pods"][index]["name"] == name
        keys["pods"][index]["address"] = f"127.0.0.1:{pods[index]}"
    del endpoints[len(pods) :], keys["pods"][len(pods) :]
    shipped["static_resources"]["clusters"] = list(clusters.values())
    plugin["value"] = json.dumps(keys)

    code = _wasm(shipped)["vm_config"]["code"]["local"]
    assert str(MODULE).endswith(code["filename"])
    code["filename"] = str(MODULE)
    _replace_port(shipped["static_resources"]["listeners"][0], LISTENER, listener)
    _replace_port(shipped["admin"], ADMIN, admin)
    return shipped


def round_robin(listener: int, admin: int, pods: list[int]) -> dict:
    """The same without the filter: every request takes the second route, pods take turns."""
    edited = with_filter(listener, admin, pods)
    filters = _manager(edited)["http_filters"]
    filters.remove(next(f for f in filters if f["name"] == "prefix_router"))
    clusters = edited["static_resources"]["clusters"]
    pool = next(c for c in clusters if c["name"] == "vllm")
    assert pool["lb_policy"] == "LEAST_REQUEST"
    pool["lb_policy"] = "ROUND_ROBIN"
    return edited


def _manager(bootstrap: dict) -> dict:
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def _wasm(bootstrap: dict) -> dict:
    filters = _manager(bootstrap)["http_filters"]
    return next(f for f in filters if f["name"] == "prefix_router")["typed_config"]["config"]


def _replace_port(owner: dict, before: int, after: int) -> None:
    address = owner["address"]["socket_address"]
    assert address["port_value"] == before
    address["port_value"] = after
