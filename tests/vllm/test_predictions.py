"""What the filter predicts is what vLLM finds in its cache, for every kind of request.

Each case is a sequence of requests that share prefixes, one after the other. Nothing is evicted
between them, so a claim without a hit is an error of the filter.
"""

import asyncio
import random

import aiohttp
import pytest

from client import CHAT, MESSAGES, RESPONSES, TEXT, Answer, ask
from prompts import text

# A chunk is 256 bytes, about 70 tokens; a block of vLLM is 32. Each rounds the match down.
ROUNDING = 96

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
    return [text(f"{seed}, text {i}", 4000)[:size] for i in range(3)]


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
        (CHAT, chats("tools", tools=TOOLS)),
        # The tools come first in the template: without them nothing is left.
        (CHAT, chats("tools")[1:2]),
    ],
    "chat with sampling that differs": [
        (CHAT, chats("sampling", temperature=0.1, seed=1)[:2]),
        (CHAT, chats("sampling", temperature=0.9, top_p=0.5, logprobs=True, n=2, user="x")[2:]),
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
        (TEXT, prompts(*([ids(f"batch {i}", n) for i in range(3)] for n in (700, 900)))),
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
    ],
    "`/v1/messages`, streamed": [(MESSAGES, anthropic("streamed messages", stream=True))],
}  # fmt: skip


async def play(url: str, steps: list[tuple[str, list[dict]]]) -> list[Answer]:
    """The requests of a case, one after the other."""
    async with aiohttp.ClientSession(url) as session:
        return [
            await ask(session, path, {"model": "base"} | body)
            for path, bodies in steps
            for body in bodies
        ]


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_what_vllm_finds(rig, ledger, case):
    answers = asyncio.run(play(rig.filtered, CASES[case]))
    ledger.predictions[case] = answers
    per_answer = ROUNDING * (3 if "batch" in case else 1)
    for answer in answers:
        assert answer.chunks > 0, answer
        if answer.matched:
            assert answer.cached_tokens > 0, f"a claim without a hit: {answer}"
        off = abs(answer.predicted_tokens - answer.cached_tokens)
        assert off <= per_answer, f"{off:.0f} tokens off: {answer}"
    assert any(answer.matched for answer in answers)


def test_another_model_name_claims_nothing(rig):
    """Of one model under two names vLLM shares the cache; of two adapters it does not."""
    body = chats("under two names")[0]
    steps = [(CHAT, [body | {"model": name} for name in ("base", "adapter-a", "base")])]
    first, other, again = asyncio.run(play(rig.filtered, steps))
    assert first.matched == 0 and other.matched == 0
    assert again.matched == again.chunks
