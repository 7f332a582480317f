#!/usr/bin/env python3
"""Writes the module's bill of materials: CycloneDX 1.6 JSON, from `cargo metadata` on standard input.

What is in it: the crates that the module is built of (scope `required`) or with (`excluded`), each
with its licence and, from Cargo.lock, its SHA-256. Dependencies of tests and other targets are not. The same source gives
the same bytes: no time and no random number.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import uuid

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

LOCKED = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "([0-9a-f]{64})"')


def needed(metadata):
    """Dependencies by package id of all that the root reaches, not through its tests."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    edges, todo = {}, [metadata["resolve"]["root"]]
    while todo:
        package = todo.pop()
        if package in edges:
            continue
        edges[package] = [
            dep["pkg"]
            for dep in nodes[package]["deps"]
            if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        ]
        todo += edges[package]
    return edges


def linked(metadata, edges):
    """Those whose code is in the module: macros run in the compiler, and so does what they use."""
    packages = {p["id"]: p for p in metadata["packages"]}
    found, todo = set(), [metadata["resolve"]["root"]]
    while todo:
        package = todo.pop()
        macro = any("proc-macro" in target["kind"] for target in packages[package]["targets"])
        if not macro and package not in found:
            found.add(package)
            todo += edges[package]
    return found


def component(package, checksums, is_linked):
    name, version = package["name"], package["version"]
    hashes = []
    if package["source"] is not None:
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=checksums[name, version])]
    licence = package["license"].replace("/", " OR ")
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"{name}@{version}",
        purl=PackageURL("cargo", None, name, version),
        licenses=[LicenseFactory().make_from_string(licence)],
        scope=ComponentScope.REQUIRED if is_linked else ComponentScope.EXCLUDED,
        hashes=hashes,
    )


def standard_library():
    """The compiler's own library is in the module as well."""
    version = subprocess.run(["rustc", "-V"], check=True, capture_output=True, text=True)
    version = version.stdout.split()[1]
    return Component(
        type=ComponentType.LIBRARY,
        name="rust-std",
        version=version,
        bom_ref=f"rust-std@{version}",
        purl=PackageURL("generic", None, "rust-std", version),
        licenses=[LicenseFactory().make_from_string("MIT OR Apache-2.0")],
        scope=ComponentScope.REQUIRED,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", required=True, help="the compiled module")
    parser.add_argument("--lock", default="Cargo.lock")
    args = parser.parse_args()
    metadata = json.load(sys.stdin)
    with open(args.lock, encoding="utf-8") as file:
        checksums = {(n, v): checksum for n, v, checksum in LOCKED.findall(file.read())}
    with open(args.module, "rb") as file:
        module = hashlib.sha256(file.read()).hexdigest()

    edges = needed(metadata)
    in_module = linked(metadata, edges)
    every = {
        p["id"]: component(p, checksums, p["id"] in in_module)
        for p in metadata["packages"]
        if p["id"] in edges
    }
    root = every[metadata["resolve"]["root"]]
    std = standard_library()
    root.hashes = [HashType(alg=HashAlgorithm.SHA_256, content=module)]
    bom = Bom(
        metadata=BomMetaData(component=root),
        components=[std, *(c for c in every.values() if c is not root)],
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, module),
    )
    for package, deps in edges.items():
        bom.register_dependency(every[package], [every[dep] for dep in deps])
    bom.register_dependency(root, [std])

    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    text = json.dumps(document, indent=2, sort_keys=True)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        sys.exit(f"not CycloneDX: {fault}")
    print(text)


if __name__ == "__main__":
    main()
