"""Streamed text = whole text = the decoding of all tokens at once, cut at the first stop string; usage = tokens counted.

Two parts. Made-up replies (`cases.py`), since the tiny model writes neither emoji nor calls: the sampler's own serving, NATS and the
gateway are real, and a committed source of tokens stands in for the engine. Then the engine itself, at temperature 2.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.harness.report import ROOT
from bench.serving.http import CHAT, TEXT, Answer, ask, session
from bench.serving.overheard import Overheard, overhearing
from bench.serving.stacks import POOL, Serving, serving_stack, task, with_tenant
from bench.serving.standins.cases import KINDS, SCHEMAS, TOOLS, Case, case_of, cut
from bench.serving.standins.source import CONTEXT, Source, replica
from common.tool_calls import ToolCall, find_calls, without_calls
from rollout_svc.chat import Chat

AT_ONCE = 24
MAX_SHOWN = 10
Found = tuple[list[str], list[str]]
"""Kinds of a case, and what is wrong with it."""
ENGINE_TOKENS = 60


def run(*, small: bool) -> dict[str, Any]:
    chat = Chat.load(str(ROOT / "models" / "tiny"))
    with serving_stack(without_model=True) as serving:
        made = asyncio.run(_made(serving, chat, 40 if small else 2000))
    with serving_stack() as serving:
        sampled = asyncio.run(_sampled(serving, chat, 4 if small else 200))
    return {"source": "committed replies in place of the engine (bench/serving/standins/cases.py)", "made": made, "engine": sampled}


async def _made(serving: Serving, chat: Chat, count: int) -> dict[str, Any]:
    async with serving.client() as client:
        await with_tenant(client)
    async with (
        session(serving.key) as http,
        overhearing(serving.nats_url, serving.creds) as heard,
        replica(serving.nats_url, serving.creds, chat, Source(chat).sample),
    ):
        return await _all(count, lambda number: _made_case(http, serving.urls[0], heard, chat, number))


async def _all(count: int, one: Callable[[int], Awaitable[Found]]) -> dict[str, Any]:
    """Counts of cases and of what was wrong with them."""
    seats = asyncio.Semaphore(AT_ONCE)
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []

    async def run_one(number: int) -> None:
        async with seats:
            kinds, faults = await one(number)
        counts.update(kinds)
        wrong.extend({"case": number, "fault": fault} for fault in faults)

    await asyncio.gather(*(run_one(number) for number in range(count)))
    return {"cases": count, **dict(sorted(counts.items())), "wrong": len({one["case"] for one in wrong}), "faults": wrong[:MAX_SHOWN]}


async def _made_case(http: aiohttp.ClientSession, url: str, heard: Overheard, chat: Chat, number: int) -> tuple[list[str], list[str]]:
    case = case_of(number, chat)
    path, body = _body(case)
    streamed = await ask(http, url, path, {**body, "stream": True})
    whole = await ask(http, url, path, body)
    faults = _differences(streamed, whole)
    for answer in (streamed, whole):
        ids = await _ids(heard, answer)
        faults += _counted(answer, ids)
        if ids != case.ids[: len(ids)]:
            faults.append("tokens are not the source's")
        faults += _calls_wrong(answer, chat.decode(case.ids)) if case.has_tools else _text_wrong(answer, chat.decode(case.ids), case.stop)
    kinds = [f"of {KINDS[number % len(KINDS)]}", f"ended by {streamed.finish}"]
    return [*kinds, *(["with calls"] if streamed.calls else [])], faults


async def _ids(heard: Overheard, answer: Answer) -> list[int]:
    """None of an answer that failed."""
    if answer.error:
        return []
    await heard.ended(f"{answer.request}n0")
    return heard.ids(f"{answer.request}n0")


def _body(case: Case) -> tuple[str, dict[str, Any]]:
    common: dict[str, Any] = {"model": POOL, "max_tokens": CONTEXT // 2, "seed": case.number}
    if case.stop:
        common["stop"] = case.stop
    if case.has_tools:
        common["tools"] = TOOLS
    if case.has_tools or case.number % 3:
        return CHAT, {**common, "messages": [{"role": "user", "content": f"case {case.number}"}]}
    return TEXT, {**common, "prompt": f"case {case.number}"}


def _differences(streamed: Answer, whole: Answer) -> list[str]:
    if streamed.error or whole.error:
        return [f"error {streamed.error or whole.error}"]
    names = ("status", "text", "finish", "prompt_tokens", "completion_tokens", "error")
    found = [f"{name}: streamed {getattr(streamed, name)!r}, whole {getattr(whole, name)!r}" for name in names
             if getattr(streamed, name) != getattr(whole, name)]  # fmt: skip
    calls = [[(name, json.loads(arguments)) for name, arguments in one.calls] for one in (streamed, whole)]
    return [*found, *(["calls differ"] if calls[0] != calls[1] else [])]


def _counted(answer: Answer, ids: list[int]) -> list[str]:
    return [] if answer.error or answer.completion_tokens == len(ids) else [f"usage {answer.completion_tokens}, tokens {len(ids)}"]


def _text_wrong(answer: Answer, whole: str, stop: list[str]) -> list[str]:
    wanted = cut(whole, stop)
    finish = "stop" if any(string in whole for string in stop) else "length"
    found = [] if answer.text == wanted else [f"text {answer.text!r}, decoded at once {wanted!r}"]
    return [*found, *([] if answer.finish == finish else [f"finish {answer.finish}, not {finish}"])]


def _calls_wrong(answer: Answer, whole: str) -> list[str]:
    """Blanks beside calls are left out."""
    found = find_calls(whole, SCHEMAS)
    wanted = [(call.name, call.arguments) for call in found if isinstance(call, ToolCall)]
    faults = [] if [(name, json.loads(arguments)) for name, arguments in answer.calls] == wanted else [f"calls {answer.calls} of {whole!r}"]
    if not wanted and answer.text != whole:
        faults.append(f"text {answer.text!r}, decoded at once {whole!r}")
    if wanted and len(wanted) == len(found) and "".join(answer.text.split()) != "".join(without_calls(whole, SCHEMAS).split()):
        faults.append(f"text {answer.text!r} beside the calls of {whole!r}")
    return faults


async def _sampled(serving: Serving, chat: Chat, count: int) -> dict[str, Any]:
    async with serving.client() as client:
        await client.submit(task(1))
    async with session(serving.key) as http, overhearing(serving.nats_url, serving.creds) as heard:
        return await _all(count, lambda number: _sampled_case(http, serving.urls[0], heard, chat, number))


async def _sampled_case(http: aiohttp.ClientSession, url: str, heard: Overheard, chat: Chat, number: int) -> tuple[list[str], list[str]]:
    """A reply without stop strings, then the same with one that is in it, streamed and whole."""
    rng = random.Random(number)
    body: dict[str, Any] = {"model": POOL, "prompt": f"case {number}", "max_tokens": ENGINE_TOKENS, "seed": number, "temperature": 2.0}
    first = await ask(http, url, TEXT, {**body, "stream": True})
    ids = await _ids(heard, first)
    text = chat.decode([token for token in ids if token not in chat.stop_ids])
    faults = [*_counted(first, ids), *([] if first.text == text else [f"text {first.text!r}, decoded at once {text!r}"])]
    if len(text) < 2:
        return ["too short"], faults
    begin = rng.randrange(len(text) - 1)
    stopped = {**body, "stop": [text[begin : begin + rng.randint(1, 4)]]}
    streamed, whole = await ask(http, url, TEXT, {**stopped, "stream": True}), await ask(http, url, TEXT, stopped)
    faults += _differences(streamed, whole)
    for answer in (streamed, whole):
        faults += _counted(answer, await _ids(heard, answer))
        if answer.text != cut(text, stopped["stop"]):
            faults.append(f"text {answer.text!r} of {text!r} before {stopped['stop']}")
    return [f"ended by {streamed.finish}"], faults
