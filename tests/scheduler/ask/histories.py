"""Random histories of two tenants: each job and question of one, about its own tasks, the other's, and none.

Beside the scheduler runs a model: sets of ids per tenant. After each step both tenants ask everything there is to ask. A task must be
listed for its tenant alone, no answer or event may hold a byte that the other wrote, and what is not the tenant's must be answered
like what does not exist. The model knows nothing of rows, subjects or states.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import nats
from nats.aio.msg import Msg

from common import streams
from common.bus import Bus, Outgoing
from common.messages import ControlTask, DeadLetter, Event, GroupContext, PreviewTask, PruneTasks, ResendLetter, TasksAnswer, UsageAnswer
from tests.support.scheduler.asking import Asker, asker, world_with_blobs
from tests.support.scheduler.finished import settled
from tests.support.scheduler.stages import ControlVerb, World, spec
from tests.support.waiting import eventually, eventually_equals

TENANTS = ("acme", "globex")
CONTROLS: tuple[ControlVerb, ...] = ("cancel", "pause", "resume", "delete")
ABOUT_NO_TASK = ("tasks", "timeline", "usage", "failures", "envs", "pools", "replicas", "invoice", "prices", "budgets", "access")
ABOUT_A_TASK = {
    "status": {},
    "why": {},
    "spec": {},
    "steps": {},
    "evaluations": {},
    "versions": {},
    "samples": {},
    "events": {},
    "failures": {},
    "adapter": {},
    "chunk": {"version": 1, "offset": 0},
}
ENDED = ("finished", "cancelled", "rejected", "failed")


@dataclass
class History:
    """One history; `run` raises AssertionError at the first answer that is not the model's."""

    world: World
    asks: Asker
    random: Random
    canaries: dict[str, str]
    """Text of each tenant in its names, options, reasons, failures and dead letters."""
    heard: dict[str, list[Msg]]
    """Events of each tenant, as they came."""
    visible: dict[str, set[str]] = field(default_factory=lambda: {tenant: set() for tenant in TENANTS})
    deleted: dict[str, set[str]] = field(default_factory=lambda: {tenant: set() for tenant in TENANTS})
    used: set[str] = field(default_factory=set[str])
    """Ids of all tasks that were accepted, the deleted ones included."""
    counts: dict[str, int] = field(default_factory=dict[str, int])

    async def run(self, steps: int) -> dict[str, int]:
        """Numbers of steps by kind, answers and events."""
        rules = [*[self._submit] * 4, *[self._control] * 5, self._preview, self._prune, self._letter, self._resend]
        for step in range(steps):
            asking = TENANTS[step % 2]
            rule = self._submit if step < 4 else self.random.choice(rules)
            name = rule.__name__.lstrip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            await rule(asking)
            await self._handled()
            await self._compare()
        for tenant in TENANTS:
            assert any(self._holds(body, tenant) for body in self.asks.heard), "its own text is there"
        answers, events = len(self.asks.heard), sum(len(heard) for heard in self.heard.values())
        return {**self.counts, "answers": answers, "events": events, "tasks": len(self.used)}

    # ------------------------------------------------------------------------------------------------------------ steps

    async def _submit(self, tenant: str) -> None:
        task = self.random.choice([self._new(), self._new(), self._any(tenant)])
        text = self.canaries[tenant]
        changes: dict[str, Any] = {
            "environment": {"name": "toy", "options": {"text": text}},
            "sampling": {"stop": [text]},
            "steps": self.random.randint(1, 3),
        }
        if self.random.random() < 0.5 and self.used:
            changes["start"] = {"task": self.random.choice(sorted(self.used))}
        wrong = self.random.random() < 0.15
        await self.world.submit(task, spec(text, tenant=tenant, **changes, **({text: text} if wrong else {})))
        await self._handled()
        foreign_start = "start" in changes and changes["start"]["task"] not in self.visible[tenant]
        if task in self.used or wrong or foreign_start:
            return
        if "start" in changes and task not in await self._listed(tenant):
            return  # the task it starts from has no version yet
        self.used.add(task)
        self.visible[tenant].add(task)

    async def _control(self, tenant: str) -> None:
        verb, task = self.random.choice(CONTROLS), self._any(tenant)
        if task in self.deleted[tenant]:  # the answer to its own tenant may say so
            await self._refused(verb, task, tenant)
            return
        if task not in self.visible[tenant]:
            absent = self._new()
            outcomes = [await self._refused(verb, one, tenant) for one in (task, absent)]
            assert outcomes[0] == outcomes[1], (verb, outcomes)
            return
        state = await self._state(tenant, task)
        await self._ask_for(verb, task, tenant)
        if verb == "delete":
            await self._handled()
            listed = task in await self._listed(tenant)
            assert not (listed and state in ENDED), f"{task} had ended and is not deleted"
            if not listed:
                self.visible[tenant].remove(task)
                self.deleted[tenant].add(task)

    async def _preview(self, tenant: str) -> None:
        job = PreviewTask(tenant=tenant, request=self._new(), spec=spec(self.canaries[tenant], tenant=tenant))
        await self._publish("preview", tenant, job, job.request)

    async def _prune(self, tenant: str) -> None:
        job = PruneTasks(tenant=tenant, request=self._new(), ended_before_s=0.001, dry_run=True)
        await self._publish("prune", tenant, job, job.request)

    async def _letter(self, tenant: str) -> None:
        """A message about a task of the tenant, and a job of it, that could not be handled."""
        # "none" is what a letter about no task says, which one about a turn cannot.
        text, task = self.canaries[tenant], self.random.choice(sorted(self.visible[tenant]) or ["unknown"])
        [(last,)] = await self.world.rows("SELECT coalesce(max(sequence), 0) FROM dead_letters")
        lost = ("turn", task, streams.turn("toy", task, text)), ("jobs", "none", f"jobs.submit.{tenant}")
        for stage, about, subject in lost:
            letter = DeadLetter(stage=stage, subject=subject, reason=text, attempts=1, headers={"x": text}, body=text.encode(), sequence=1)
            await self.world.bus.publish(Outgoing(streams.failed(stage, about), letter, self._new()))
        # Letters of deleted tasks are deleted meanwhile, and resent ones may become letters a second time.
        await self.world.rows_become(f"SELECT count(*) >= 2 FROM dead_letters WHERE sequence > {last}", [(True,)])

    async def _resend(self, tenant: str) -> None:
        """Any letter, most of them the other's."""
        job = ResendLetter(tenant=tenant, letter=self.random.randint(1, 9))
        await self._publish("resend", tenant, job, self._new())

    async def _ask_for(self, verb: ControlVerb, task: str, tenant: str) -> None:
        await self._publish(verb, tenant, ControlTask(task=task, tenant=tenant, reason=self.canaries[tenant]), self._new())

    async def _publish(self, verb: str, tenant: str, job: Any, message_id: str) -> None:
        await self.world.bus.publish(Outgoing(f"jobs.{verb}.{tenant}", job, message_id))

    async def _refused(self, verb: ControlVerb, task: str, tenant: str) -> list[dict[str, Any]]:
        """Events that answer a job about a task that the tenant has not, without the id."""
        before = len(self._events(tenant, task))
        await self._ask_for(verb, task, tenant)
        await eventually(lambda: len(self._events(tenant, task)) > before)
        await self._handled()
        return [_without(one.model_dump(), task) for one in self._events(tenant, task)[before:]]

    def _events(self, tenant: str, task: str) -> list[Event]:
        """Events about the task, once each: a listener may hear one twice, with the same message id."""
        found = [one for one in self.heard[tenant] if one.subject == streams.events(tenant, task)]
        return [Event.decode(one.data) for one in {(one.headers or {})["Nats-Msg-Id"]: one for one in found}.values()]

    # ----------------------------------------------------------------------------------------------------------- answers

    async def _compare(self) -> None:
        for asking, other in (TENANTS, TENANTS[::-1]):
            asked = len(self.asks.heard)
            assert await self._listed(asking) == self.visible[asking], asking
            for verb in ABOUT_NO_TASK:
                await self.asks.raw(asking, verb)
            usage = {one.task for one in (await self.asks.ask(UsageAnswer, asking, "usage")).tasks}
            assert usage.isdisjoint(self.visible[other]), (asking, usage)
            absent = self._new()
            nothing = {verb: await self._answer(asking, verb, absent, fields) for verb, fields in ABOUT_A_TASK.items()}
            for task in sorted(self.used - self.visible[asking]):
                for verb, fields in ABOUT_A_TASK.items():
                    if verb not in ("events", "failures"):  # its own jobs under that id are answered with events
                        assert await self._answer(asking, verb, task, fields) == nothing[verb], (asking, verb, task)
                    else:
                        await self._answer(asking, verb, task, fields)
            for task in sorted(self.visible[asking]):
                for verb, fields in ABOUT_A_TASK.items():
                    await self._answer(asking, verb, task, fields)
            for body in self.asks.heard[asked:]:
                assert not self._holds(body, other), (asking, body)
            for event in self.heard[asking]:
                assert not self._holds(event.data, other), (asking, event.subject, event.data)

    async def _answer(self, tenant: str, verb: str, task: str, fields: dict[str, Any]) -> dict[str, Any]:
        kind, body = await self.asks.raw(tenant, verb, json.dumps({"task": task, **fields}).encode())
        return {"kind": kind, "body": _without(json.loads(body), task)}

    async def _listed(self, tenant: str) -> set[str]:
        return {one.task for one in (await self.asks.ask(TasksAnswer, tenant, "tasks")).tasks}

    async def _state(self, tenant: str, task: str) -> str:
        answered = await self._answer(tenant, "status", task, {})
        return answered["body"]["status"]["state"]

    async def _handled(self) -> None:
        """Wait until the scheduler has handled every job, and has sent what it answers."""
        await eventually_equals(lambda: self.world.bus.streams.subjects(streams.JOBS), {})
        await settled(self.world)

    # ----------------------------------------------------------------------------------------------------------- choices

    def _new(self) -> str:
        return f"task{self.random.randrange(10**12):012}"

    def _any(self, tenant: str) -> str:
        """An id: of the tenant, of the other, of a deleted task, or of none."""
        return self.random.choice([*sorted(self.used), *sorted(self.visible[tenant]), self._new()])

    def _holds(self, body: bytes, tenant: str) -> bool:
        return self.canaries[tenant].encode() in body


def _without(value: Any, task: str) -> Any:
    """The value without the task's id, times and numbers of events."""
    found = json.loads(json.dumps(value).replace(task, "TASK"))
    return {name: one for name, one in found.items() if name not in ("at_s", "number")} if isinstance(found, dict) else found


@asynccontextmanager
async def begun(bus: Bus, nats_url: str, database_url: str, folder: Path, seed: int) -> AsyncGenerator[History]:
    """A history that has not begun, with a scheduler and stages that write the canaries."""
    random = Random(seed)
    canaries = {tenant: f"canary{random.randrange(10**12):012}" for tenant in TENANTS}

    def failure(group: GroupContext, member: int) -> str | None:
        return f"failed: {canaries[group.tenant]}" if member == 0 and group.group % 5 == 1 else None

    def components(group: GroupContext, member: int) -> dict[str, float]:
        return {canaries[group.tenant]: 1.0}

    async with (
        world_with_blobs(bus, database_url, folder, failure=failure, components=components) as world,
        asker(nats_url) as asks,
    ):
        client = await nats.connect(nats_url)
        heard: dict[str, list[Msg]] = {tenant: [] for tenant in TENANTS}
        try:
            for tenant in TENANTS:

                async def hear(message: Msg, tenant: str = tenant) -> None:
                    heard[tenant].append(message)

                await client.subscribe(f"events.{tenant}.>", cb=hear)
            yield History(world, asks, random, canaries, heard)
        finally:
            await client.close()
