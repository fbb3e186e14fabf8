"""Serving of tasks that have ended goes on through a sweep, deletions, and a restart of every service.

Clients ask greedily, each time for the next of some models: the base model, versions of two ended tasks, and aliases. Each repeats a
request that was refused with 503 or cut, as the stock client does, until it is answered. Beside them a task trains. In turn:

    sweep        removes a message and a blob that were planted for an ended task, whose versions it must leave
    prune        deletes a task that ended before the others
    retention    deletes the adapters of another tenant's task after that tenant's days, but one that an alias names
    stop, kill   each component of the stack, one after another: with its signal to end, and with SIGKILL

Every answer must be the text, the version and the adapter's digest that the same request had before anything happened, what fails must
fail with 503 and Retry-After while a component is away, and every kept adapter.tar must have its digest at the end.
"""

import asyncio
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from bench.harness.services import BenchError
from bench.serving.http import TEXT, Answer, ask, session
from bench.serving.oracle import tokenizer
from bench.serving.stacks import POOL, TENANT, Serving, serving_stack, task, trained, wait_until
from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.messages import SetTenant
from marlaas.client import Client

OTHER = "globex"
"""Tenant whose days are over."""
STEPS = 3
TOKENS = 32
QUESTIONS = 4
CLIENTS = 20
PACE_S = 1.0
"""Seconds between two requests of a client, so that there are at most CLIENTS a second."""
PHASE_S = 3.0
"""Seconds of requests after each phase's event."""
REPEAT_S = 0.3
"""Pause before a request is repeated that has no Retry-After."""
ANSWER_S = 120.0
SWEEP_S = 5.0
SMALL = ("scheduler", "gateway", "rollout-tiny")
"""Components that a small case restarts."""
EXPIRED = """UPDATE tasks SET ended_at = ended_at - interval '9 days',
    expiring = jsonb_build_object('adapters', extract(epoch FROM now()) - 2 * 86400) WHERE id = '{task}'"""


@dataclass(frozen=True)
class Case:
    """A request. `model`: as it is asked for; `version`: the exact name that it means."""

    model: str
    version: str
    tenant: str
    number: int

    def body(self, *, stream: bool) -> dict[str, Any]:
        banned = {str(token): -100 for token in tokenizer().all_special_ids}  # so that each answer has all its tokens
        question = f"What is {self.number} * 7?"
        sampling = {"temperature": 0, "max_tokens": TOKENS, "logit_bias": banned}
        return {"model": self.model, "prompt": question, "stream": stream, **sampling}


@dataclass
class Phase:
    """What clients were told while something happened."""

    name: str
    away: str = ""
    """Component that is away meanwhile; empty for none."""
    took_s: float = 0.0
    answered: int = 0
    wrong: list[str] = field(default_factory=list[str])
    """Answers with another text, version or adapter than before."""
    repeated: int = 0
    """Requests that were answered after a repetition."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """What repeated attempts ended with."""
    longest_s: float = 0.0
    """Longest time from the first attempt to the answer."""

    @property
    def unexpected(self) -> dict[str, int]:
        return {kind: count for kind, count in self.failures.items() if not _is_expected(kind, self.away)}

    def as_json(self) -> dict[str, Any]:
        rounded = {"took_s": round(self.took_s, 1), "longest_s": round(self.longest_s, 2)}
        return {**vars(self), **rounded, "wrong": self.wrong[:10], "wrong_answers": len(self.wrong), "failures": dict(self.failures)}


def run(*, small: bool) -> dict[str, Any]:
    settings = {"MARLAAS_SCHEDULER_SWEEP_S": str(SWEEP_S)}
    with serving_stack(samplers=1 if small else 2, settings=settings) as serving:
        result = asyncio.run(_measured(serving, small=small))
    if any(phase["wrong_answers"] for phase in result["phases"]) or result["adapters_lost"] or result["failures_otherwise"]:
        raise BenchError(f"serving was not continuous: {result}")
    return result


async def _measured(serving: Serving, *, small: bool) -> dict[str, Any]:
    async with session(serving.key) as http, serving.client() as client:
        old = await trained(client, 1, seed=9)
        before_s = time.time()
        first, second = await trained(client, STEPS, seed=1), await trained(client, STEPS, seed=2)
        expiring = await client.submit(task(STEPS, seed=3).model_copy(update={"tenant": OTHER}))
        await client.wait(expiring)
        beside = await client.submit(task(10_000, seed=4))
        for tenant, name, of, version in ((TENANT, "held", second, 1), (OTHER, "kept", expiring, 2)):
            await client.aliases.set(name, of, version, tenant=tenant)
        asked = Asked(http, serving.urls[0], _cases(first, second, expiring, 1 if small else QUESTIONS))
        await asked.learn()
        kept = {(case.version, case.tenant) for case in asked.cases if "@" in case.version}
        digests = {one: await _digest(http, serving.urls[0], *one) for one in kept}
        phases = [await asked.during("nothing", _nothing)]
        phases.append(await asked.during("sweep", lambda: _sweep(serving, first)))
        phases.append(await asked.during("prune", lambda: _prune(client, http, serving.urls[0], old, before_s)))
        phases.append(await asked.during("retention", lambda: _retention(serving, client, http, expiring), away="scheduler"))
        for how, end in (("stop", serving.stop),) if small else (("stop", serving.stop), ("kill", serving.kill)):
            for name in SMALL if small else [one.name for one in serving.stack.components if one.name != "migrations"]:
                event = partial(_restart, serving, http, name, end)
                phases.append(await asked.during(f"{how} {name}", event, away=name))
        lost = [version for version, tenant in kept if await _digest(http, serving.urls[0], version, tenant) != digests[version, tenant]]
        status = await client.status(beside)
        await client.cancel(beside)
    return {
        "clients": CLIENTS,
        "models": len({case.model for case in asked.cases}),
        "steps_of_a_task_beside_it": status.version,
        "adapters": len(kept),
        "adapters_lost": lost,
        "failures_otherwise": {phase.name: phase.unexpected for phase in phases if phase.unexpected},
        "phases": [phase.as_json() for phase in phases],
    }


def _cases(first: str, second: str, expiring: str, questions: int) -> list[Case]:
    models = [
        (POOL, POOL, TENANT),
        (f"{first}@1", f"{first}@1", TENANT),
        (f"{first}@latest", f"{first}@{STEPS}", TENANT),
        ("held", f"{second}@1", TENANT),
        (f"{second}@{STEPS}", f"{second}@{STEPS}", TENANT),
        ("kept", f"{expiring}@2", OTHER),
    ]
    return [Case(model, version, tenant, number) for number in range(questions) for model, version, tenant in models]


async def _digest(http: aiohttp.ClientSession, url: str, version: str, tenant: str) -> str:
    """Of the adapter.tar, whose bytes the gateway compares with it before it sends the last one."""
    name, _, number = version.partition("@")
    async with http.get(f"{url}/v1/tasks/{name}/versions/{number}/adapter.tar", params={"tenant": tenant}) as answer:
        return f"{answer.headers.get('etag')}, {len(await answer.read())} bytes" if answer.status == 200 else f"{answer.status}"


# ------------------------------------------------------------------------------------------------------------- requests


class Asked:
    """Clients, and what they must be answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str, cases: list[Case]) -> None:
        self.cases = cases
        self._http = http
        self._url = url
        self._expected: dict[Case, tuple[str, str | None]] = {}
        """Text and fingerprint, which has the adapter's digest."""
        self._numbers = itertools.count()

    async def learn(self) -> None:
        """What each case is answered while nothing happens. Raises: BenchError when one has no answer."""
        for case in self.cases:
            answer = await ask(self._http, self._url, TEXT, case.body(stream=False), tenant=case.tenant)
            if not answer.is_complete or answer.model != case.version:
                raise BenchError(f"{case.model} is answered {answer.status} {answer.error} by '{answer.model}'")
            self._expected[case] = answer.text, answer.fingerprint
        if len({self._expected[case] for case in self.cases}) < len(self.cases):
            raise BenchError("two cases have the same answer, so that another model's would not be noticed")

    async def during(self, name: str, event: Callable[[], Awaitable[None]], *, away: str = "") -> Phase:
        """Clients ask from before the event until PHASE_S after it, and each case is asked once more at its end."""
        phase, began = Phase(name, away), time.monotonic()
        async with self._clients(phase):
            await asyncio.sleep(PACE_S)
            await event()
            await asyncio.sleep(PHASE_S)
        phase.took_s = time.monotonic() - began
        return phase

    @asynccontextmanager
    async def _clients(self, phase: Phase) -> AsyncGenerator[None]:
        has_ended = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._client(number, phase, has_ended))
            yield
            has_ended.set()
        await asyncio.gather(*(self._answered(case, phase, stream=False) for case in self.cases))

    async def _client(self, number: int, phase: Phase, has_ended: asyncio.Event) -> None:
        await asyncio.sleep(PACE_S * number / CLIENTS)
        while not has_ended.is_set():
            due_s, place = time.monotonic() + PACE_S, next(self._numbers)
            await self._answered(self.cases[place % len(self.cases)], phase, stream=place % 2 == 0)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _answered(self, case: Case, phase: Phase, *, stream: bool) -> None:
        """Ask until it is answered. Raises: BenchError when it is not in ANSWER_S."""
        began, attempts = time.monotonic(), 1
        while not (answer := await ask(self._http, self._url, TEXT, case.body(stream=stream), tenant=case.tenant)).is_complete:
            phase.failures[_kind(answer)] += 1
            if time.monotonic() - began > ANSWER_S:
                raise BenchError(f"{phase.name}: {case.model} has no answer after {attempts} attempts: {_kind(answer)}")
            attempts += 1
            await asyncio.sleep(float(answer.retry_after or REPEAT_S))
        phase.answered += 1
        phase.repeated += attempts > 1
        phase.longest_s = max(phase.longest_s, time.monotonic() - began)
        found = (answer.text, answer.fingerprint)
        if answer.model != case.version or found != self._expected[case]:
            phase.wrong.append(f"{case.model}: {answer.model}, {found} instead of {self._expected[case]}")


def _kind(answer: Answer) -> str:
    """How an attempt failed."""
    if not answer.status:
        return "no connection"
    if answer.status == 200:
        return f"{answer.error or 'no end'} after the stream began"
    return f"{answer.status} {answer.error}" + (", Retry-After" if answer.retry_after else "")


def _is_expected(kind: str, away: str) -> bool:
    """503 with Retry-After, and the end of streams that have begun, while a component is away; no connection where it is the gateway."""
    if not away or kind == "no connection":
        return away == "gateway"
    return (kind.startswith("503 ") and kind.endswith(", Retry-After")) or kind.endswith("after the stream began")


# --------------------------------------------------------------------------------------------------------------- events


async def _nothing() -> None:
    await asyncio.sleep(0)


async def _sweep(serving: Serving, name: str) -> None:
    """Plant what a sweep must remove of an ended task, and wait until it has."""
    async with await Bus.connect(serving.nats_url, "bench-continuity", creds=serving.creds) as bus:
        blobs = Blobs(bus)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "planted").write_text("no step has made this")
            planted = await blobs.put_folder(f"{name}.v1.adapter", Path(folder))
        subject = streams.sample("nowhere", name, "planted")
        await bus.publish_raw(subject, b"", f"planted:{name}", {})

        async def is_swept() -> bool:
            return not await bus.streams.subjects(streams.PROMPTS, subject) and planted.name not in await blobs.names()

        await _until(is_swept)


async def _prune(client: Client, http: aiohttp.ClientSession, url: str, old: str, before_s: float) -> None:
    """Delete the task that ended first; its version is then unknown. Raises: BenchError when others go too, or it stays."""
    [pruned] = await client.prune(TENANT, ended_before_s=time.time() - before_s)
    answer = await ask(http, url, TEXT, {"model": f"{old}@1", "prompt": "What?"})
    if pruned.tasks != [old] or (answer.status, answer.error) != (404, "model_not_found"):
        raise BenchError(f"prune deleted {pruned.tasks} instead of {old}, whose version is answered {answer.status} {answer.error}")


async def _retention(serving: Serving, client: Client, http: aiohttp.ClientSession, expiring: str) -> None:
    """Let the days of the other tenant be over, which the scheduler sees at its start."""
    await client.set_tenant(SetTenant(tenant=OTHER, request="continuity", adapters_days=1))
    await asyncio.to_thread(serving.change, EXPIRED.format(task=expiring))
    await _restart(serving, http, "scheduler", serving.stop)

    async def is_gone() -> bool:
        return (await _digest(http, serving.urls[0], f"{expiring}@{STEPS}", OTHER)).startswith("40")

    await _until(is_gone)


async def _restart(serving: Serving, http: aiohttp.ClientSession, name: str, end: Callable[[str], None]) -> None:
    """End a component, and wait until its successor and the gateway are ready."""
    before = serving.process(name)
    end(name)
    await asyncio.to_thread(wait_until, f"{name} is back", lambda: serving.is_back(name, before))

    async def is_ready() -> bool:
        try:
            async with http.get(f"{serving.urls[0]}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await _until(is_ready)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(ANSWER_S):
        while not await condition():  # noqa: ASYNC110  other processes can only be asked
            await asyncio.sleep(0.1)
