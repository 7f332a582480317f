#!/usr/bin/env python3
"""Checks a compiled module: what it asks of its host, what it offers, and its size.

A module that imports a function which Envoy does not have is refused at start, so an import
that is new here deserves a look.
"""

import argparse
import sys

ABI = "proxy_abi_version_0_2_1"
# Of WASI, Envoy has clocks, random numbers, the environment and standard output.
WASI = {
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_write",
    "proc_exit",
    "random_get",
}
# Of proxy-wasm, what Envoy implements (ABI 0.2.1).
PROXY = {
    "proxy_" + name
    for name in (
        "add_header_map_value call_foreign_function clear_route_cache close_stream"
        " continue_stream define_metric dequeue_shared_queue done enqueue_shared_queue"
        " get_buffer_bytes get_buffer_status get_current_time_nanoseconds"
        " get_header_map_pairs get_header_map_size get_header_map_value get_log_level"
        " get_metric get_property get_shared_data get_status grpc_call grpc_cancel"
        " grpc_close grpc_send grpc_stream http_call increment_metric log"
        " record_metric register_shared_queue remove_header_map_value"
        " replace_header_map_value resolve_shared_queue send_local_response"
        " set_buffer_bytes set_effective_context set_header_map_pairs set_property"
        " set_shared_data set_tick_period_milliseconds"
    ).split()
}
EXPORTS = {ABI, "proxy_on_configure", "proxy_on_request_headers", "proxy_on_memory_allocate"}


class Reader:
    """Reads a WebAssembly binary."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def number(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def name(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def limits(self):
        flags = self.byte()
        self.number()
        if flags & 1:
            self.number()


def imports_and_exports(data):
    if data[:8] != b"\0asm\1\0\0\0":
        raise ValueError("not a WebAssembly module")
    reader, imports, exports = Reader(data), [], []
    reader.at = 8
    while reader.at < len(data):
        section, size = reader.byte(), reader.number()
        end = reader.at + size
        if section == 2:
            for _ in range(reader.number()):
                imports.append((reader.name(), reader.name()))
                kind = reader.byte()
                if kind == 0:
                    reader.number()
                elif kind == 1:
                    reader.byte()
                    reader.limits()
                elif kind == 2:
                    reader.limits()
                else:
                    reader.at += 2
        elif section == 7:
            for _ in range(reader.number()):
                exports.append(reader.name())
                reader.byte()
                reader.number()
        reader.at = end
    return imports, exports


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--max-bytes", type=int, required=True)
    args = parser.parse_args()
    with open(args.module, "rb") as file:
        data = file.read()
    imports, exports = imports_and_exports(data)
    allowed = {("env", name) for name in PROXY} | {("wasi_snapshot_preview1", n) for n in WASI}
    faults = [f"imports {module}.{name}" for module, name in imports if (module, name) not in allowed]
    faults += [f"does not export {name}" for name in sorted(EXPORTS - set(exports))]
    if len(data) > args.max_bytes:
        faults.append(f"has {len(data)} bytes, more than {args.max_bytes}")
    for home in (b"/home/", b"/root/", b"/Users/", b"/.cargo/"):
        if home in data:
            faults.append(f"names a path of the build machine ({home.decode()}…)")
    for fault in faults:
        print(f"{args.module} {fault}", file=sys.stderr)
    print(f"{args.module}: {len(data)} bytes of {args.max_bytes}, {len(imports)} imports")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
