"""One request and what is known of it: the filter's decision, vLLM's account, the times.

Owns where each API says how long the prompt was and how much of it came from the cache.
"""

import json
import re
import time
from dataclasses import dataclass

import aiohttp

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Answer:
    """What one request came to."""

    pod: str | None
    reason: str | None
    matched: int
    chunks: int
    prompt_tokens: int
    cached_tokens: int
    first_byte_s: float
    text: str

    @property
    def predicted_tokens(self) -> float:
        """The filter's claim: the share of the prompt that the pod held."""
        return self.prompt_tokens * self.matched / self.chunks if self.chunks else 0.0


async def ask(session: aiohttp.ClientSession, path: str, body: dict) -> Answer:
    """Sends one request; with `stream` in its body, the first byte is the first token."""
    streams = body.get("stream", False)
    start = time.perf_counter()
    async with session.post(path, json=body) as response:
        first, data = None, b""
        async for piece in response.content.iter_any():
            # The first event of these two only says that an answer begins.
            data += piece
            if first is None and (not streams or _has_token(path, data)):
                first = time.perf_counter() - start
        assert response.status == 200, f"{path}: {response.status} {data[:500]!r}"
        decision = _decision(response.headers.get("x-prefix-router", ""))
    events = _events(data) if streams else [json.loads(data)]
    prompt, cached = _usage(path, events)
    return Answer(
        pod=decision.get("pod"),
        reason=decision.get("reason"),
        matched=int(decision.get("matched", 0)),
        chunks=int(decision.get("chunks", 0)),
        prompt_tokens=prompt,
        cached_tokens=cached,
        first_byte_s=first,
        text="".join(map(_text, events)),
    )


def _decision(header: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="?([^",]*)"?', header))


def _events(data: bytes) -> list[dict]:
    lines = (line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def _has_token(path: str, data: bytes) -> bool:
    marks = {
        CHAT: b'"content":',
        TEXT: b'"text":',
        RESPONSES: b'.delta"',
        MESSAGES: b"content_block_delta",
    }
    return marks[path] in data


def _text(event: dict) -> str:
    choice = (event.get("choices") or [{}])[0]
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("content") or message.get("text") or ""


def _usage(path: str, events: list[dict]) -> tuple[int, int]:
    """Tokens of the prompt, and those of them from the cache."""
    usage: dict = {}
    for event in events:
        holder = event.get("response") or event.get("message") or event
        usage |= {k: v for k, v in (holder.get("usage") or {}).items() if v is not None}
    if path == MESSAGES:
        # The three are disjoint here.
        cached = usage.get("cache_read_input_tokens", 0)
        written = usage.get("cache_creation_input_tokens", 0)
        return usage["input_tokens"] + cached + written, cached
    if path == RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    return usage["prompt_tokens"], details.get("cached_tokens", 0)


async def cache_counters(url: str) -> tuple[int, int]:
    """A pod's `vllm:prefix_cache_queries_total` and `…_hits_total`, in tokens."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        page = await response.text()
    sums = []
    for name in ("queries", "hits"):
        lines = re.findall(rf"^vllm:prefix_cache_{name}_total{{.*}} (\S+)$", page, re.M)
        assert lines, f"no vllm:prefix_cache_{name}_total at {url}"
        sums.append(int(sum(map(float, lines))))
    return sums[0], sums[1]
