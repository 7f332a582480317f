"""Two vLLM pods, and two Envoys before them: the shipped one, and round robin.

Everything starts once and ends with the run. What the tests measure goes into one `Ledger`, whose
tables are written at the end, if all of it was measured.
"""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import pytest

import bootstrap
import model
from ledger import Ledger
from processes import BLOCK_TOKENS, OUT, Process, free_port, start_envoy, start_pod

# Names that one model answers to, as LoRA adapters are named.
NAMES = ["base", "adapter-a", "adapter-b"]
# Cache of a pod, in blocks: 38,400 tokens.
BLOCKS = 1200
PODS = 2

# Asked to end, pytest ends in order, and what it started with it.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@dataclass(frozen=True)
class Rig:
    """Where everything listens."""

    pods: list[str]
    filtered: str
    round_robin: str


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    OUT.mkdir(parents=True, exist_ok=True)
    folder = model.make(OUT / "model")
    pods = [free_port() for _ in range(PODS)]
    processes: list[Process] = []
    try:
        for index, port in enumerate(pods):
            name = bootstrap.pod_name(index)
            processes.append(start_pod(name, port, folder, NAMES, BLOCKS))
        for process in processes:
            process.wait_until_ready(300)
        urls = []
        for name, edit in (("filter", bootstrap.with_filter), ("round-robin", bootstrap.round_robin)):
            listener, admin = free_port(), free_port()
            envoy = start_envoy(f"envoy-{name}", admin, edit(listener, admin, pods))
            processes.append(envoy)
            envoy.wait_until_ready(30)
            urls.append(f"http://127.0.0.1:{listener}")
        rig = Rig([f"http://127.0.0.1:{port}" for port in pods], *urls)
        # The first request of a pod pays for what is compiled and allocated on the way.
        asyncio.run(_warm_up(rig.pods))
        yield rig
    finally:
        for process in reversed(processes):
            process.end()


async def _warm_up(pods: list[str]) -> None:
    body = {"model": NAMES[0], "prompt": list(range(100, 2600)), "max_tokens": 2}
    for url in pods:
        async with aiohttp.ClientSession(url) as session:
            async with session.post("/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()


@pytest.fixture(scope="session")
def ledger(rig: Rig) -> Iterator[Ledger]:
    ledger = Ledger(cache_tokens=BLOCKS * BLOCK_TOKENS)
    yield ledger
    ledger.write()
