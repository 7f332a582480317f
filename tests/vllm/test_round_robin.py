"""Time to first token and cache hits, against round robin through the same Envoy.

The two take turns, each with prompts of its own, of the same sizes: neither profits from what the
other left in the caches, and a noisy machine is noisy for both. Clients wait for their answers
(closed loop), so round robin is not measured under a load that it could not carry at all.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

import aiohttp

from client import CHAT, Answer, ask, cache_counters
from ledger import Phase
from prompts import text
from test_predictions import CASES

REPEATS = int(os.environ.get("REPEATS", "2"))
CLIENTS = 4


async def chats(session: aiohttp.ClientSession, seed: str, count: int, turns: int) -> list[Answer]:
    """So many chats, each with a document of its own, turn after turn in random order."""
    histories = [[{"role": "user", "content": text(f"{seed}, chat {i}", 12000)}] for i in range(count)]
    rng = random.Random(seed)
    limit = asyncio.Semaphore(CLIENTS)
    answers = []

    async def one_turn(index: int, turn: int) -> None:
        async with limit:
            history = histories[index]
            answer = await ask(session, CHAT, _streamed(history))
        answers.append(answer)
        history.append({"role": "assistant", "content": answer.text})
        history.append({"role": "user", "content": text(f"{seed}, chat {index}, turn {turn}", 350)})

    for turn in range(turns):
        order = rng.sample(range(count), count)
        await asyncio.gather(*(one_turn(index, turn) for index in order))
    return answers


async def questions(session: aiohttp.ClientSession, seed: str, count: int) -> list[Answer]:
    """One system prompt, and a question of each of so many users."""
    system = {"role": "system", "content": text(f"{seed}, the system", 12000)}
    limit = asyncio.Semaphore(CLIENTS)

    async def one(index: int) -> Answer:
        user = {"role": "user", "content": text(f"{seed}, user {index}", 500)}
        async with limit:
            return await ask(session, CHAT, _streamed([system, user]))

    return await asyncio.gather(*map(one, range(count)))


def _streamed(messages: list[dict]) -> dict:
    return {
        "model": "base",
        "messages": messages,
        "max_tokens": 8,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def play(rig, phase: Phase, url: str, workload: Callable[..., Awaitable[list]]) -> None:
    before = [await cache_counters(pod) for pod in rig.pods]
    async with aiohttp.ClientSession(url) as session:
        phase.answers += await workload(session)
    for pod, (queries, hits) in zip(rig.pods, before):
        now = await cache_counters(pod)
        phase.queries += now[0] - queries
        phase.hits += now[1] - hits


def compare(rig, ledger, name: str, workload: Callable[..., Awaitable[list]]) -> tuple[Phase, Phase]:
    """Plays a workload through both Envoys, in turn."""
    arms = {"round_robin": (Phase(), rig.round_robin), "filtered": (Phase(), rig.filtered)}
    for repeat in range(REPEATS):
        for arm in sorted(arms, reverse=repeat % 2 == 0):
            phase, url = arms[arm]
            seed = f"{name}, {arm}, {repeat}"
            asyncio.run(play(rig, phase, url, lambda session: workload(session, seed)))
    turns, routed = arms["round_robin"][0], arms["filtered"][0]
    assert len(turns.answers) == len(routed.answers)
    ledger.phases[name] = {"round_robin": turns, "filtered": routed}
    ledger.predictions[name] = routed.answers
    return turns, routed


def test_chats_that_one_pod_cannot_hold(rig, ledger):
    """16 chats of up to 3,700 tokens: 1.5 times the cache of a pod, three quarters of both."""
    workload = lambda session, seed: chats(session, seed, 16, 12)
    turns, routed = compare(rig, ledger, "16 chats, more than one pod can hold", workload)
    assert routed.hits > turns.hits
    assert routed.mean_s <= turns.mean_s / 3


def test_chats_that_every_pod_can_hold(rig, ledger):
    """4 chats: round robin computes each once per pod, and then has it everywhere."""
    workload = lambda session, seed: chats(session, seed, 4, 12)
    turns, routed = compare(rig, ledger, "4 chats, few enough for every pod", workload)
    assert routed.hits > turns.hits
    assert routed.mean_s < turns.mean_s


def test_a_shared_system_prompt(rig, ledger):
    """Nothing to win but the second computation; nothing may be lost either."""
    workload = lambda session, seed: questions(session, seed, 40)
    turns, routed = compare(rig, ledger, "40 questions to one system prompt", workload)
    assert routed.mean_s < turns.mean_s * 1.25


def test_the_run_as_a_whole(ledger):
    """The last one: predicted and cached tokens of all that went through the filter."""
    answers = ledger.all_predictions()
    predicted = sum(answer.predicted_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    unfounded = [a for a in answers if a.matched and not a.cached_tokens]
    assert not unfounded, unfounded
    assert abs(predicted - cached) <= 0.05 * cached, f"{predicted:.0f} for {cached}"
    ledger.complete = len(ledger.phases) == 3 and CASES.keys() <= ledger.predictions.keys()
