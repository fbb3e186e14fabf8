"""Stacks of real services for `http`: requests to them, and tasks beside."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import aiohttp

from bench.coserving.sums import PROMPT, TOKENS, Asked, Window
from bench.harness.keys import keys_of
from bench.harness.models import write_model
from bench.harness.services import BenchError, local_stack
from bench.isolation import spec
from bench.serving.http import TEXT, Answer, events, session
from bench.serving.stacks import POOL, Serving
from common.bus import Bus
from common.homes import BEGUN, OWN_QUEUE
from common.messages import ReplicaReport
from common.pools import Goals
from common.streams import REPLICAS_BUCKET
from marlaas.reporting.progress import TrainedStep, step_of
from marlaas.stack.state_files import Stack, StackPlan, log_path
from rollout_svc.coserving import figures

SEQUENCES, SHARE = 64, 0.1
"""Rollout sequences of a sampler, and the pool's `training_share`."""
POOLS = f"""
[{POOL}]
model = "%(model)s"
context_tokens = 512
adapters = 8
sequences = {SEQUENCES}
kv_cache_gib = 0.25
train_tokens = 16384
%(on)s
[{POOL}.serving]
sequences = 16
adapters = 1
training_share = {SHARE}
ttft_ms = %(ttft_ms).1f
tpot_ms = %(tpot_ms).2f
"""
ACCELERATORS = "ab"
ACCELERATOR = '\n[accelerator.{name}]\ndevice = "cpu"\ncores = "{core}"\nmemory_gib = 2.0\n'
TENANTS, TASKS, WORDS = ("acme", "globex"), 4, 500
SECTIONS = {"sampling": {"max_tokens": 120}, "algorithm": {"group_size": 8, "groups_per_step": 4, "max_staleness": 1}}
TINY = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 576,
    "tie_word_embeddings": True,
}
"""Shape of models/tiny. With random weights answers are long; its own have three tokens."""
LOOK_S, BEGIN_S = 2.0, 300.0


@dataclass
class Sent(Asked):
    """A request by HTTP."""

    tenant: str = TENANTS[0]
    status: int = 0
    took_s: float = 0.0


class Scene(Serving):
    """A running stack whose pool has goals."""

    def __init__(self, stack: Stack, goals: Goals) -> None:
        super().__init__(stack, [stack.gateway.url])
        self.goals, self.data = goals, keys_of(stack).parent

    async def bus(self) -> Bus:
        return await Bus.connect(self.nats_url, "bench-coserving", creds=self.creds)

    def figures(self) -> figures.Figures:
        found = figures.read(next(self.data.rglob("figures/*")))
        assert found is not None, "an engine with goals writes its figures"
        return found

    def rooms(self, since_s: float) -> list[list[tuple[float, int, int]]]:
        """Of each sampler each change of its room: Unix time, sequences before and after."""
        texts = [log_path(self.data, name).read_text() for name in self.names("rollout")]
        changes = [[json.loads(line) for line in text.splitlines() if '"room_changed"' in line] for text in texts]
        timed = [
            [(datetime.fromisoformat(one["timestamp"]).timestamp(), one["before"], one["sequences"]) for one in each] for each in changes
        ]
        return [[one for one in each if one[0] >= since_s] for each in timed]

    async def offer(self, times: Sequence[float], seed: int) -> list[Sent]:
        """Requests at these times from now, of the tenants in turn, and their answers."""
        began_s, asked = time.monotonic(), [Sent(tenant=TENANTS[number % len(TENANTS)]) for number in range(len(times))]
        async with session(self.key) as http:
            each = enumerate(zip(asked, times, strict=True))
            await asyncio.gather(*(self._ask(http, one, began_s + at_s, 100_000 * seed + number) for number, (one, at_s) in each))
        return asked

    async def _ask(self, http: aiohttp.ClientSession, sent: Sent, due_s: float, seed: int) -> None:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        random, found, began_s = Random(seed), Answer(), time.monotonic()
        prompt = [random.randrange(3, WORDS) for _ in range(PROMPT)]
        body = {"model": POOL, "prompt": prompt, "max_tokens": TOKENS, "seed": seed}
        try:
            async with aclosing(events(http, self.urls[0], TEXT, body, found, tenant=sent.tenant)) as arriving:
                async for event in arriving:
                    if found.status != 200 or "error" in event:
                        break
                    for choice in event["choices"]:
                        sent.is_complete |= choice.get("finish_reason") is not None
                        if choice.get("text") or (sent.is_complete and sent.first_s is None):  # an answer may be empty
                            sent.came(1, time.monotonic() - due_s)
                    if event.get("usage"):
                        sent.tokens = event["usage"]["completion_tokens"]
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            sent.is_complete = False
        sent.status, sent.took_s = found.status, time.monotonic() - began_s


@contextmanager
def scene(kind: str, goals: Goals) -> Generator[Scene]:
    """`kind`: `one` sampler; `split`, two of which one serves; `homes`, two that do both."""
    import torch

    cores = sorted(os.sched_getaffinity(0))[-2:]
    on = 'generate_on = ["a", "b"]\n' if kind == "homes" else ""
    accelerators = "".join(ACCELERATOR.format(name=name, core=core) for name, core in zip(ACCELERATORS, cores, strict=True)) if on else ""

    def changed(plan: StackPlan) -> StackPlan:
        own = iter(zip(("serving", "rollouts"), cores, strict=True))
        services = list(plan.services)
        for place, one in enumerate(services):
            if kind == "split" and "rollout_svc" in one.argv:
                takes, core = next(own)
                env = one.env | {"MARLAAS_ROLLOUT_TAKES": takes, "MARLAAS_ROLLOUT_CORES": str(core)}
                services[place] = one.model_copy(update={"env": env})
        return plan.model_copy(update={"services": services})

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        pool = {"model": write_model(TINY, torch.float32, Path(folder) / "model"), "on": on}
        text = POOLS % (pool | {"ttft_ms": 1e3 * goals.ttft_s, "tpot_ms": 1e3 * goals.tpot_s})
        (path := Path(folder) / "pools.toml").write_text(text + accelerators)
        with local_stack(path, samplers=2 if kind == "split" else 1, changed=changed) as stack:
            yield Scene(stack, goals)


@dataclass
class Training:
    """Tasks that train, and what they and the samplers did."""

    steps: dict[str, list[TrainedStep]] = field(default_factory=dict[str, list[TrainedStep]])
    """By task."""
    at_home: int = 0
    """Messages that samplers had from their own queues, summed over all reports."""
    begun: int = 0
    """All that they had."""
    states: set[str] = field(default_factory=set[str])
    """Of tasks at the end."""

    def window(self, asked: Sequence[Asked], goals: Goals, since_s: float, until_s: float) -> Window:
        """With tokens and times of the steps that ended in it."""
        within = [(one, after) for of_one in self.steps.values() for one, after in pairwise(of_one) if since_s <= after.at_s <= until_s]
        tokens, steps_s = sum(after.sampled_tokens for _, after in within), [after.at_s - one.at_s for one, after in within]
        return Window(list(asked), goals, until_s - since_s, tokens, steps_s)


@asynccontextmanager
async def training(at: Scene) -> AsyncGenerator[Training]:
    """`TASKS` tasks of equal tenants, each of which has trained a step, until the block ends."""
    found, has_begun = Training(), asyncio.Event()
    specs = [spec(f"task-{n}", n, 10_000, n % 3, SECTIONS).model_copy(update={"tenant": TENANTS[n % 2]}) for n in range(TASKS)]

    async def look() -> None:
        while True:
            for busy in [one.busy for one in await bus.kv.values(REPLICAS_BUCKET, ReplicaReport) if one.service == "rollout"]:
                own = {key.replace(OWN_QUEUE, BEGUN) for key in busy if key.startswith(f"{OWN_QUEUE}@")}
                counts = {key: int(count) for key, count in busy.items() if key.partition("@")[0] == BEGUN}
                found.at_home += sum(count for key, count in counts.items() if key in own)
                found.begun += sum(counts.values())
            await asyncio.sleep(LOOK_S)

    async def follow(tasks: Sequence[str]) -> None:
        async for event in client.watch(*tasks):
            if event.event in ("failed", "rejected") and not has_begun.is_set():
                raise BenchError(f"task {event.task} {event.event}: {event.data}")
            if event.event == "step":
                found.steps.setdefault(event.task, []).append(step_of(event))
                if len(found.steps) == TASKS:
                    has_begun.set()

    async with at.client() as client, await at.bus() as bus:
        tasks = [await client.submit(one) for one in specs]
        beside = [asyncio.create_task(one) for one in (follow(tasks), look())]
        try:
            await _until(has_begun, beside)
            yield found
            found.states = {(await client.status(task)).state for task in tasks}
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _until(happened: asyncio.Event, beside: Sequence[asyncio.Task[None]]) -> None:
    """Wait for it. Raises: BenchError if it does not happen in `BEGIN_S`, and what one of the tasks `beside` raised."""
    waiting = asyncio.create_task(happened.wait())
    done, _ = await asyncio.wait([waiting, *beside], timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for one in done:
        one.result()
    if not happened.is_set():
        raise BenchError(f"not all tasks have trained a step within {BEGIN_S:g} s")


async def with_tenants(at: Scene) -> None:
    """Tenants exist once each has submitted a task."""
    async with at.client() as client:
        for tenant in TENANTS:
            await client.wait(await client.submit(spec("first", 1, 1, 0, {}).model_copy(update={"tenant": tenant})))
