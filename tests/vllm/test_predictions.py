"""What the filter predicts is what vLLM finds in its cache, for every kind of request.

Each case is a sequence of requests that share prefixes, one after the other. Nothing is evicted
between them, so a claim without a hit is an error of the filter.
"""

import asyncio
import random
from dataclasses import replace

import aiohttp
import pytest

from client import CHAT, MESSAGES, RESPONSES, TEXT, Answer, ask, cache_counters
from prompts import text

# A chunk is 256 bytes, about 55 tokens; a block of vLLM is 32. Each rounds the match down.
ROUNDING = 96
# Tools are identity: their own tokens, which come first, are in no chunk and so in no claim.
UNCLAIMED = {"chat with tools": 400}
BATCH = 3

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"look_up_{i}",
            "description": text(f"tool {i}", 400),
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
    for i in range(4)
]


def chat(seed: str, turns: int, size: int = 6000) -> list[dict]:
    """A chat of so many turns; that of fewer turns is its prefix."""
    messages = [
        {"role": "system", "content": text(f"{seed}, the system", size // 2)},
        {"role": "user", "content": text(f"{seed}, the question", size // 2)},
    ]
    for turn in range(1, turns):
        messages.append({"role": "assistant", "content": text(f"{seed}, answer {turn}", 300)})
        messages.append({"role": "user", "content": text(f"{seed}, turn {turn}", 500)})
    return messages


def parts(messages: list[dict], kind: str = "text") -> list[dict]:
    """The same messages, their contents as lists of parts."""
    return [
        {"role": m["role"], "content": [{"type": kind, "text": m["content"]}]} for m in messages
    ]


def ids(seed: str, size: int) -> list[int]:
    """Token ids; fewer are a prefix of more."""
    rng = random.Random(seed)
    return [rng.randrange(300, 4000) for _ in range(size)]


def texts(seed: str, size: int) -> list[str]:
    return [text(f"{seed}, text {i}", 4000)[:size] for i in range(BATCH)]


def chats(topic: str, /, **more) -> list[dict]:
    return [{"messages": chat(topic, turns), "max_tokens": 4, **more} for turns in (1, 2, 3, 4)]


def prompts(*values, **more) -> list[dict]:
    return [{"prompt": value, "max_tokens": 4, **more} for value in values]


def inputs(*values, **more) -> list[dict]:
    return [{"input": value, "max_output_tokens": 16, **more} for value in values]


def anthropic(topic: str, /, **more) -> list[dict]:
    bodies = []
    for turns in (1, 2, 3, 4):
        system, *messages = chat(topic, turns)
        bodies.append(
            {"system": system["content"], "messages": messages, "max_tokens": 4, **more}
        )
    return bodies


STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CASES: dict[str, list[tuple[str, list[dict]]]] = {
    "chat, turn by turn": [(CHAT, chats("a chat"))],
    "chat, streamed": [(CHAT, chats("a stream", **STREAM))],
    "chat, content as parts": [
        (CHAT, chats("parts")[:2]),
        (CHAT, [{"messages": parts(chat("parts", n)), "max_tokens": 4} for n in (2, 3)]),
    ],
    "chat with tools": [
        (CHAT, chats("tools", tools=TOOLS, tool_choice="none")),
        # The tools come first in the template: without them nothing is left.
        (CHAT, chats("tools")[1:2]),
    ],
    "chat with sampling that differs": [
        (CHAT, chats("sampling", temperature=0.1, seed=1)[:2]),
        (CHAT, chats("sampling", temperature=0.9, top_p=0.5, logprobs=True, user="x")[2:]),
    ],
    "chat with an effort": [
        (CHAT, chats("effort", reasoning_effort="low")[:2]),
        (CHAT, chats("effort", reasoning_effort="high")[:2]),
        (CHAT, chats("effort", reasoning_effort="low")[2:]),
    ],
    "log-probabilities of the prompt": [
        (CHAT, chats("scored")[:2]),
        # Computed anew, whatever the cache holds, and cached all the same.
        (CHAT, chats("scored", prompt_logprobs=1)[2:3]),
        (CHAT, chats("scored", echo=True)[2:3]),
        (CHAT, chats("scored")[3:]),
        (TEXT, prompts(text("scored text", 5000), echo=True)),
        (TEXT, prompts(text("scored text", 5000), echo=True, logprobs=1)),
    ],
    "a shared system prompt": [
        (CHAT, [
            {
                "messages": [
                    {"role": "system", "content": text("what all share", 8000)},
                    {"role": "user", "content": text(f"user {i}", 400)},
                ],
                "max_tokens": 4,
            }
            for i in range(6)
        ]),
    ],
    "text": [(TEXT, prompts(*(text("a text", 9000)[:n] for n in (5000, 7000, 9000, 7000))))],
    "text, streamed": [
        (TEXT, prompts(*(text("text in a stream", 9000)[:n] for n in (5000, 9000)), **STREAM)),
    ],
    "token ids": [(TEXT, prompts(*(ids("ids", n) for n in (1200, 1500, 1800, 1500))))],
    "a batch of texts": [(TEXT, prompts(*(texts("batch", n) for n in (2500, 3500, 4000))))],
    "a batch of token ids": [
        (TEXT, prompts(*([ids(f"batch {i}", n) for i in range(BATCH)] for n in (700, 900)))),
    ],
    "model names": [
        (CHAT, chats("adapter a", model="adapter-a")),
        (TEXT, prompts(*(text("adapter b", 6000)[:n] for n in (4000, 6000)), model="adapter-b")),
    ],
    "`cache_salt`": [
        (CHAT, chats("salt", cache_salt="one")[:2]),
        (CHAT, chats("salt", cache_salt="two")[:2]),
        (CHAT, chats("salt")[:2]),
        (CHAT, chats("salt", cache_salt="one")[2:]),
        (TEXT, prompts(ids("salt", 900), ids("salt", 1200), cache_salt="one")),
        (TEXT, prompts(ids("salt", 900), ids("salt", 1200), cache_salt="two")),
    ],
    "`/v1/responses`": [
        (RESPONSES, inputs(*(text("responses", 9000)[:n] for n in (5000, 7000, 9000)))),
        (RESPONSES, inputs(*(chat("items", n)[1:] for n in (1, 2, 3)),
                           instructions=text("instructions", 3000))),
        (RESPONSES, inputs(*(chat("salted items", n) for n in (1, 2)), cache_salt="one")),
    ],
    "`/v1/responses`, streamed": [
        (RESPONSES, inputs(*(chat("streamed items", n) for n in (1, 2, 3)), stream=True)),
    ],
    "`/v1/messages`": [
        (MESSAGES, anthropic("messages")),
        (MESSAGES, anthropic("salted messages", cache_salt="one")[:2]),
        (MESSAGES, anthropic("messages with an effort", output_config={"effort": "low"})[:2]),
        (MESSAGES, anthropic("messages with an effort", output_config={"effort": "high"})[:2]),
        (MESSAGES, anthropic("messages with an effort", thinking={"type": "disabled"})[:2]),
        (MESSAGES, anthropic("messages with an effort", thinking={"type": "adaptive"})[:2]),
    ],
    "`/v1/messages`, streamed": [(MESSAGES, anthropic("streamed messages", stream=True))],
}  # fmt: skip


async def play(rig, steps: list[tuple[str, list[dict]]]) -> list[Answer]:
    """The requests of a case, one after the other."""
    answers = []
    async with aiohttp.ClientSession(rig.filtered) as session:
        for path, body in [(path, body) for path, bodies in steps for body in bodies]:
            before = await hits(rig)
            answer = await ask(session, path, {"model": "base"} | body)
            if is_batch(body):
                # vLLM's answer tells of the last prompt of a batch only; its counter of all.
                answer = replace(answer, cached_tokens=await hits(rig) - before)
            answers.append(answer)
    return answers


def is_batch(body: dict) -> bool:
    prompt = body.get("prompt")
    return isinstance(prompt, list) and not isinstance(prompt[0], int)


async def hits(rig) -> int:
    """Tokens that all pods have found in their caches so far."""
    return sum([(await cache_counters(pod))[1] for pod in rig.pods])


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_what_vllm_finds(rig, ledger, case):
    answers = asyncio.run(play(rig, CASES[case]))
    ledger.predictions[case] = answers
    rounding = ROUNDING * (BATCH if "batch" in case else 1)
    for answer in answers:
        assert answer.chunks > 0, answer
        if answer.matched:
            assert answer.cached_tokens > 0, f"a claim without a hit: {answer}"
        off = answer.predicted_tokens - answer.cached_tokens
        unclaimed = UNCLAIMED.get(case, 0) if answer.matched else 0
        assert -rounding - unclaimed <= off <= rounding, f"{off:.0f} tokens off: {answer}"
    assert any(answer.matched for answer in answers)


def test_another_model_name_claims_nothing(rig):
    """Of one model under two names vLLM shares the cache; of two adapters it does not."""
    body = chats("under two names")[0]
    steps = [(CHAT, [body | {"model": name} for name in ("base", "adapter-a", "base")])]
    first, other, again = asyncio.run(play(rig, steps))
    assert first.matched == 0 and other.matched == 0
    assert again.matched == again.chunks
