"""Mixed requests while engine, scheduler and gateway are killed in turn: what clients were told is what the ledger has.

Streamed and whole answers, chats and texts, one and two choices, the base model and two versions. Every few seconds one process is
killed with its children; the stack's supervisor starts it again. At the end the ledger is compared with each client's `usage`, and, for
those who got no last event, with the tokens that replicas sent.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.serving.http import CHAT, TEXT, Answer, ask, session
from bench.serving.overheard import Overheard, overhearing
from bench.serving.stacks import POOL, Serving, serving_stack, trained, wait_until

PACKAGES = ("rollout", "scheduler", "gateway")
PER_S = 12.0
SETTLED_S = 6.0
REPEAT_S = 0.5
BOOKED = "SELECT request, prompt_tokens, sampled_tokens FROM served_requests"
TWICE = "SELECT request FROM served_requests GROUP BY request HAVING count(*) > 1"
KINDS = {"prompt": "served_prompt", "sampled": "served_sampled"}


@dataclass
class Asked:
    body: dict[str, Any]
    path: str
    answer: Answer

    @property
    def choices(self) -> int:
        return int(self.body.get("n", 1))


def run(*, small: bool) -> dict[str, Any]:
    with serving_stack() as serving:
        return asyncio.run(_measured(serving, 40 if small else 1000, 3 if small else 9))


async def _measured(serving: Serving, count: int, kills: int) -> dict[str, Any]:
    async with serving.client() as client:
        name = await trained(client, 2)
    victims = [serving.names(package)[0] for package in PACKAGES]
    models = [POOL, f"{name}@1", f"{name}@2"]
    asked = [_asked(number, models) for number in range(count)]
    async with session(serving.key) as http, overhearing(serving.nats_url, serving.creds) as heard:
        running = [asyncio.create_task(_send(http, serving.urls[0], one, number)) for number, one in enumerate(asked)]
        killed: Counter[str] = Counter()
        for number in range(kills):
            await asyncio.sleep(count / PER_S / (kills + 1))
            victim = victims[number % len(victims)]
            await asyncio.to_thread(wait_until, f"{victim} runs", lambda victim=victim: serving.is_ready(victim))
            serving.kill(victim)
            killed[victim] += 1
        await asyncio.gather(*running)
        for victim in victims:
            await asyncio.to_thread(wait_until, f"{victim} runs", lambda victim=victim: serving.is_ready(victim))
        await _settled(serving)
        return {"requests": count, "killed": dict(killed), **_compared(serving, heard, asked)}


def _asked(number: int, models: list[str]) -> Asked:
    rng = random.Random(number)
    body: dict[str, Any] = {"model": rng.choice(models), "max_tokens": rng.randint(1, 120), "seed": number, "stream": rng.random() < 0.5}
    if rng.random() < 0.25:
        body["n"] = 2
    if rng.random() < 0.5:
        return Asked({**body, "prompt": f"What is {number} * 7?"}, TEXT, Answer())
    return Asked({**body, "messages": [{"role": "user", "content": f"What is {number} * 7?"}]}, CHAT, Answer())


async def _send(http: aiohttp.ClientSession, url: str, one: Asked, number: int) -> None:
    """Again where no gateway answered at all: no service has such a request."""
    await asyncio.sleep(number / PER_S)
    await ask(http, url, one.path, one.body, one.answer)
    while one.answer.error == "cut" and not one.answer.status:
        await asyncio.sleep(REPEAT_S)
        one.answer = await ask(http, url, one.path, one.body)


async def _settled(serving: Serving) -> None:
    """Until no more requests are booked."""
    before = -1
    while (now := len(serving.rows(BOOKED))) != before:
        before = now
        await asyncio.sleep(SETTLED_S)


def _compared(serving: Serving, heard: Overheard, asked: list[Asked]) -> dict[str, Any]:
    booked = {str(request): (int(str(prompt)), int(str(sampled))) for request, prompt, sampled in serving.rows(BOOKED)}
    complete = [one for one in asked if one.answer.is_complete and one.answer.completion_tokens is not None]
    others = [one for one in asked if one not in complete]
    usage = {kind: int(str(total)) for kind, total in serving.rows("SELECT kind, sum(quantity) FROM served_usage GROUP BY kind")}
    totals = {"prompt": sum(prompt for prompt, _ in booked.values()), "sampled": sum(sampled for _, sampled in booked.values())}
    failed_whole = [one for one in others if not one.body["stream"] and one.answer.status >= 500]
    return {
        "complete": len(complete),
        "ended_otherwise": dict(Counter(one.answer.error or str(one.answer.status) for one in others)),
        "usage_is_not_the_ledgers": sum(not _agrees(one, booked) for one in complete),
        "resumed": sum(heard.attempts(f"{one.answer.request}n0") > 1 for one in complete),
        "cut_and_booked_above_what_was_sampled": sum(_is_above(one, booked, heard) for one in others),
        "failed_whole_answers": len(failed_whole),
        "failed_whole_answers_booked": sum(any(f"{one.answer.request}n{n}" in booked for n in range(one.choices)) for one in failed_whole),
        "booked_requests": len(booked),
        "booked_twice": len(serving.rows(TWICE)) + sum(usage.get(kind, 0) != totals[name] for name, kind in KINDS.items()),
    }


def _agrees(one: Asked, booked: dict[str, tuple[int, int]]) -> bool:
    found = [booked.get(f"{one.answer.request}n{number}", (0, 0)) for number in range(one.choices)]
    told = (one.answer.prompt_tokens, one.answer.completion_tokens)
    return told == (sum(prompt for prompt, _ in found), sum(sampled for _, sampled in found))


def _is_above(one: Asked, booked: dict[str, tuple[int, int]], heard: Overheard) -> bool:
    if not one.answer.request:
        return False
    ids = [f"{one.answer.request}n{number}" for number in range(one.choices)]
    return any(booked.get(request, (0, 0))[1] > heard.sampled(request) for request in ids)
