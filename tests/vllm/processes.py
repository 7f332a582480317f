"""The processes of a run: vLLM pods and Envoys, each with its log under `target/vllm/`.

Invariant: what was started is ended, by its id. All listen on 127.0.0.1, on free ports.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from bootstrap import ROOT

OUT = ROOT / "target/vllm"
# Prefill in steps of this many tokens, blocks of the size that vLLM takes on a CPU.
STEP_TOKENS, BLOCK_TOKENS = 2048, 32


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A child in a process group of its own, so that its workers end with it."""

    def __init__(self, name: str, command: list[str], ready: str, env: dict[str, str]):
        self.name, self.ready = name, ready
        self.log = OUT / f"{name}.log"
        self.child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_ready(self, seconds: float) -> None:
        """Returns once its readiness probe answers 200."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.child.poll() is not None:
                raise RuntimeError(f"{self.name} ended:\n{self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(self.ready, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        raise TimeoutError(f"{self.name} is not ready; see {self.log}")

    def end(self) -> None:
        """Asks it to end, then makes it."""
        for sign, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            if self.child.poll() is None:
                os.killpg(self.child.pid, sign)
                try:
                    self.child.wait(patience)
                except subprocess.TimeoutExpired:
                    continue


def start_pod(name: str, port: int, model: Path, names: list[str], blocks: int) -> Process:
    """One vLLM on the CPU that answers to all of `names`."""
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", str(model),
        "--served-model-name", *names,
        "--host", "127.0.0.1", "--port", str(port),
        "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager",
        "--max-num-seqs", "16", "--max-num-batched-tokens", str(STEP_TOKENS),
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks),
        "--enable-prefix-caching", "--enable-prompt-tokens-details",
    ]  # fmt: skip
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # A core for each pod: threads that share cores wait for each other at every step.
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(OUT / "cache"),
        "HF_HOME": str(OUT / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    return Process(name, command, f"http://127.0.0.1:{port}/health", env)


def start_envoy(name: str, admin: int, bootstrap: dict) -> Process:
    """One Envoy with two workers."""
    config = OUT / f"{name}.json"
    config.write_text(json.dumps(bootstrap, indent=1))
    installed = ROOT / "target/envoy-venv/bin/envoy"
    binary = os.environ.get("ENVOY") or shutil.which("envoy") or str(installed)
    command = [binary, "-c", str(config), "--concurrency", "2", "--use-dynamic-base-id"]
    return Process(name, command, f"http://127.0.0.1:{admin}/ready", {})
