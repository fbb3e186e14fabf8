"""Streams survive the death of the replica that samples them: two replicas, 50 greedy streams, the busier replica killed, ten times."""

import asyncio
import re
import statistics
from collections import Counter
from typing import Any

import aiohttp

from bench.serving.http import TEXT, Answer, ask, session
from bench.serving.oracle import oracle, tokenizer
from bench.serving.overheard import Overheard, overhearing
from bench.serving.stacks import POOL, Serving, serving_stack, task, wait_until

TOKENS = 240
KILL_AT = 0.3
"""Share of all tokens after which the replica is killed."""
TIE = 1e-5
SERVING = re.compile(r"^marlaas_rollout_serving (\S+)", re.MULTILINE)


def run(*, small: bool) -> dict[str, Any]:
    streams, rounds = (6, 1) if small else (50, 10)
    with serving_stack(samplers=2) as serving:
        return asyncio.run(_survived(serving, streams, rounds))


async def _survived(serving: Serving, streams: int, rounds: int) -> dict[str, Any]:
    async with serving.client() as client:
        await client.submit(task(1))
    async with session(serving.key) as http, overhearing(serving.nats_url, serving.creds) as heard:
        undisturbed = await _streams(http, serving.urls[0], streams, [])
        found = [await _round(serving, http, heard, undisturbed, streams) for _ in range(rounds)]
    pauses = [one.pop("longest_pause_s") for one in found]
    return {
        "streams": streams,
        "rounds": rounds,
        "complete": sum(one["complete"] for one in found),
        "errors": dict(sum((Counter(one["errors"]) for one in found), Counter[str]())),
        "resumed": sum(one["resumed"] for one in found),
        "text_differs": sum(one["text_differs"] for one in found),
        "of_these_no_tie": sum(one["of_these_no_tie"] for one in found),
        "tokens_wrong_in_number": sum(one["tokens_wrong_in_number"] for one in found),
        "undisturbed_pause_s": round(max(_pauses(undisturbed)), 3),
        "longest_pause_s": {"median": round(statistics.median(pauses), 3), "max": round(max(pauses), 3)},
        "each": found,
    }


async def _round(
    serving: Serving, http: aiohttp.ClientSession, heard: Overheard, undisturbed: list[Answer], streams: int
) -> dict[str, Any]:
    answers: list[Answer] = []
    running = asyncio.create_task(_streams(http, serving.urls[0], streams, answers))
    wanted = KILL_AT * streams * TOKENS
    while sum(len(one.came_s) for one in answers) < wanted and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    loads = {name: await _load(http, serving.http_port(name)) for name in serving.names("rollout")}
    busier = max(loads, key=lambda name: loads[name])
    killed = serving.process(busier)
    serving.kill(busier)
    await running
    different = [number for number, one in enumerate(answers) if one.text != undisturbed[number].text]
    result = {
        "loads": list(loads.values()),
        "complete": sum(one.is_complete for one in answers),
        "errors": dict(Counter(f"{one.status} {one.error} after {len(one.came_s)} events" for one in answers if not one.is_complete)),
        "resumed": sum(heard.attempts(f"{one.request}n0") > 1 for one in answers),
        "text_differs": len(different),
        "of_these_no_tie": sum(not _is_tie(number, answers[number], undisturbed[number]) for number in different),
        "tokens_wrong_in_number": sum(one.completion_tokens != TOKENS for one in answers if one.is_complete),
        "longest_pause_s": max(_pauses(answers)),
    }
    await asyncio.to_thread(wait_until, f"{busier} is back", lambda: serving.is_back(busier, killed))
    return result


async def _streams(http: aiohttp.ClientSession, url: str, streams: int, answers: list[Answer]) -> list[Answer]:
    """`answers` gets them from the beginning, as they grow."""
    banned = {str(token): -100 for token in tokenizer().all_special_ids}
    body: dict[str, Any] = {"model": POOL, "temperature": 0, "max_tokens": TOKENS, "logit_bias": banned, "stream": True}
    answers += [Answer() for _ in range(streams)]
    asked = [ask(http, url, TEXT, {**body, "prompt": _prompt(number)}, found) for number, found in enumerate(answers)]
    return list(await asyncio.gather(*asked))


def _prompt(number: int) -> str:
    return f"What is {number} * 7?"


def _pauses(answers: list[Answer]) -> list[float]:
    """The longest of each answer."""
    return [max((later - earlier for earlier, later in zip(one.came_s, one.came_s[1:], strict=False)), default=0.0) for one in answers]


async def _load(http: aiohttp.ClientSession, port: int) -> float:
    async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
        found = SERVING.search(await response.text())
    return float(found[1]) if found else 0.0


def _is_tie(number: int, answer: Answer, undisturbed: Answer) -> bool:
    """Whether the two differ from a token on that is as likely as the other."""
    words = tokenizer()
    one, other = (words.encode(text, add_special_tokens=False) for text in (answer.text, undisturbed.text))
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if place is None:
        return False
    prompt = words.encode(_prompt(number))
    with oracle(None) as judge:
        (a, *_), (b, *_) = (judge.judge([*prompt, *one[:place]], [ids[place]])[0] for ids in (one, other))
    return abs(a - b) <= TIE
