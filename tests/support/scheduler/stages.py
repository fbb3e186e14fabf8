"""Test doubles of the other three stages: real messages over real NATS, with invented scores and adapters.

The hooks of `Stages` withhold an answer, or make it a failure.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import text

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    AdapterRef,
    BlobRef,
    Canary,
    CheckEnvironment,
    CheckpointRef,
    ControlTask,
    EnvironmentChecked,
    Event,
    GroupContext,
    OpenGroup,
    ReplicaReport,
    ScoredTrajectory,
    SubmitTask,
    TaskStatus,
    TokenRecord,
    TrainBatch,
    TrajectoriesScored,
    WeightUpdated,
)
from common.pools import Pool, Pools
from common.pools.pool import Serving
from common.runtime.service import report_replica
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.service import Scheduler
from scheduler_svc.settings import SchedulerSettings
from tests.support.scheduler.statements import Queried
from tests.support.waiting import eventually

ControlVerb = Literal["cancel", "pause", "resume", "delete"]
POOLS = {"tiny": Pool(model="models/tiny", context_tokens=512, max_rank=16, serving=Serving())}


def spec(name: str = "sums", tenant: str = "acme", **changes: Any) -> dict[str, Any]:
    """Content of a task file."""
    base: dict[str, Any] = {
        "name": name,
        "tenant": tenant,
        "pool": "tiny",
        "steps": 3,
        "environment": {"name": "toy"},
        "algorithm": {"group_size": 2, "groups_per_step": 2, "max_staleness": 1},
    }
    return base | changes


def submission(task: str, raw: dict[str, Any]) -> Outgoing:
    message = SubmitTask(task=task, tenant=raw["tenant"], spec=raw)
    return Outgoing(streams.job("submit", raw["tenant"]), message, f"submit:{task}")


def scored(
    group: GroupContext,
    member: int,
    *,
    reward: float,
    failure: str | None = None,
    components: dict[str, float] | None = None,
    env_ms: int = 0,
) -> Outgoing:
    record = TokenRecord().with_context([1, 2, 3]).with_sampled([4, 5], [-0.5, -0.25])
    trajectory = ScoredTrajectory(
        member=member, transcript=record, reward=reward, components=components or {}, turns=1, failure=failure, env_ms=env_ms, away_ms=0
    )
    message = TrajectoriesScored(group=group, members=[trajectory])
    headers = {streams.SETTLEMENT_HEADER: message.settlement().model_dump_json()}
    subject = streams.scored(group.task, group.trajectory(member))
    return Outgoing(subject, message, f"{group.task}:{group.group}:{member}:scored", headers)


def updated(batch: TrainBatch, since: int | None = None, metrics: Mapping[str, float] | None = None) -> Outgoing:
    """The step's announcement. `since`: its checkpoint holds no state, and its batch is recorded."""
    version = batch.version + 1

    def blob(kind: str) -> BlobRef:
        return BlobRef(name=f"{batch.task}.v{version}.{kind}-0", size_bytes=1, sha256="0" * 64)

    message = WeightUpdated(
        tenant=batch.tenant,
        task=batch.task,
        pool=batch.pool,
        version=version,
        adapter=AdapterRef(
            task=batch.task, version=version, rank=8, blob=blob("adapter"), canary=Canary(ids=b"\x87\x01\x00\x00", logprobs=b"")
        ),
        checkpoint=CheckpointRef(**dict(blob("checkpoint")), since=since),
        trained=batch.digest,
        batch=None if since is None else blob("batch"),
        metrics={"loss": 0.1, **(metrics or {})},
        trained_tokens=7,
        started_s=time.time(),
        finished_s=time.time(),
    )
    return Outgoing(streams.weight_updated(batch.pool, batch.task), message, f"{batch.task}:v{version}:weights")


@dataclass
class Stages:
    """Environment and trainer with hooks, and the messages that they received."""

    objection: str | None = None
    has_tools: bool = False
    failure: Callable[[GroupContext, int], str | None] = lambda group, member: None
    reward: Callable[[GroupContext, int], float] = lambda group, member: float(member)
    components: Callable[[GroupContext, int], dict[str, float]] = lambda group, member: {}
    withheld: Callable[[GroupContext, int], bool] = lambda group, member: False
    trains: bool = True
    env_ms: int = 0
    """Time of the environment for each attempt."""
    since: Callable[[int], int | None] = lambda version: None
    """`since` of each version's checkpoint."""
    metrics: Callable[[int], Mapping[str, float]] = lambda version: {}
    """Metrics of the step to each version."""
    checks: list[CheckEnvironment] = field(default_factory=list)
    opened: list[GroupContext] = field(default_factory=list)
    batches: list[TrainBatch] = field(default_factory=list)

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        asked = delivery.read(CheckEnvironment)
        self.checks.append(asked)
        answer = EnvironmentChecked(tenant=asked.tenant, task=asked.task, objection=self.objection, has_tools=self.has_tools)
        yield Outgoing(streams.checked(asked.task), answer, f"{asked.task}:checked")

    async def open(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        group = delivery.read(OpenGroup).group
        self.opened.append(group)
        for member in range(group.size):
            if not self.withheld(group, member):
                yield scored(
                    group,
                    member,
                    reward=self.reward(group, member),
                    failure=self.failure(group, member),
                    components=self.components(group, member),
                    env_ms=self.env_ms,
                )

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        self.batches.append(batch)
        if self.trains:
            yield updated(batch, self.since(batch.version + 1), self.metrics(batch.version + 1))


@dataclass
class World(Queried):
    """A running scheduler with its stages."""

    bus: Bus
    database: Database
    scheduler: Scheduler
    stages: Stages
    rollout: ReplicaReport

    async def submit(self, task: str, raw: dict[str, Any] | None = None) -> None:
        await self.bus.publish(submission(task, raw or spec()))

    async def run(self, task: str, raw: dict[str, Any] | None = None, until: str = "finished") -> dict[str, Any]:
        """Submit a task and wait for its first event named `until`; returns the event's data."""
        raw = raw or spec()
        await self.submit(task, raw)
        return await self.event(task, until, raw["tenant"])

    async def begin(self, task: str, raw: dict[str, Any] | None = None, *, opened: int | None = None, batches: int | None = None) -> None:
        """Submit a task and wait until the stages have received so many groups, or batches, in all."""
        await self.submit(task, raw)
        await eventually(lambda: opened in (None, len(self.stages.opened)) and batches in (None, len(self.stages.batches)))

    async def control(self, verb: ControlVerb, task: str, tenant: str = "acme", reason: str = "", until: str = "") -> None:
        """Publish a job of `tenant` about the task, and wait for the task's event named `until`, where given."""
        message = ControlTask(task=task, tenant=tenant, reason=reason)
        await self.bus.publish(Outgoing(streams.job(verb, tenant), message, f"{verb}:{task}:{tenant}"))
        if until:
            await self.event(task, until, tenant)

    async def score(self, groups: Sequence[GroupContext]) -> None:
        """Publish a score of every member of the groups, its number."""
        for out in [scored(group, member, reward=float(member)) for group in groups for member in range(group.size)]:
            await self.bus.publish(out)

    def disturb(self) -> None:
        """Report a constant disturbance, so that late groups are no failures."""
        self.scheduler._stability.stable_for_s = lambda: 0.0

    async def make_room(self, sequences: int) -> None:
        """Change the sampler's capacity."""
        self.rollout = self.rollout.model_copy(update={"sequences": sequences})
        await self.bus.kv.put(streams.REPLICAS_BUCKET, "rollout.two", self.rollout)

    async def event(self, task: str, name: str, tenant: str = "acme") -> dict[str, Any]:
        """Data of the task's first event of that name; waits for it."""
        async with within(self.database, 250, f"event {name!r} of task {task!r}"):
            async for delivery in self.bus.streams.follow(streams.EVENTS, streams.events(tenant, task)):
                event = delivery.read(Event)
                if event.event == name:
                    return event.data
        raise AssertionError(name)

    async def events(self, task: str, name: str) -> list[dict[str, Any]]:
        """Data of the task's stored events of that name, oldest first."""
        stored = [delivery.read(Event) async for delivery in self.bus.streams.stored(streams.EVENTS, f"events.*.{task}")]
        return [event.data for event in stored if event.event == name]

    async def status_becomes(self, task: str, condition: Callable[[TaskStatus], bool]) -> None:
        """Wait until the task's stored status meets `condition`."""

        async def is_met() -> bool:
            status = await self.bus.kv.get(streams.TASKS_BUCKET, task, TaskStatus)
            return status is not None and condition(status)

        await eventually(is_met)


@asynccontextmanager
async def within(database: Database, limit_s: float, awaited: str) -> AsyncGenerator[None]:
    """A deadline. Raises: AssertionError with the tasks' states when the block takes longer."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        async with database.transaction() as tx:
            seen = (await tx.connection.execute(text("SELECT id, state, version, admitted, voided FROM tasks ORDER BY id"))).all()
        raise AssertionError(f"no {awaited} within {limit_s:g} s; tasks: {seen}") from None


async def ended(runners: Sequence[asyncio.Task[None]]) -> None:
    """Cancel all and wait. Raises: the error of one that had failed; AssertionError when one does not end."""
    errors = [error for runner in runners if runner.done() and not runner.cancelled() and (error := runner.exception())]
    for runner in runners:
        runner.cancel()
    _, running = await asyncio.wait(runners, timeout=250)
    assert not running, f"not ended by cancelling them: {running}"
    if errors:
        raise errors[0]


@asynccontextmanager
async def running_world(
    bus: Bus,
    database_url: str,
    stages: Stages,
    *,
    sequences: int = 64,
    policy: SchedulingPolicy = SchedulingPolicy.ASYNCHRONOUS,
    pools: Pools = POOLS,
) -> AsyncIterator[World]:
    """Run the scheduler, an environment service and a trainer until the block ends."""
    database = await Database.connect(database_url)
    scheduler = Scheduler(SchedulerSettings(database_url=database_url, tick_s=0.1, policy=policy), bus, database, pools)
    env = ReplicaReport(replica="one", service="env", families=["toy"], environments=["toy"])
    rollout = ReplicaReport(replica="two", service="rollout", pool="tiny", sequences=sequences, kv_tokens=10**6, template_variables=[])
    world = World(bus, database, scheduler, stages, rollout)
    runners = [
        asyncio.create_task(scheduler.run()),
        asyncio.create_task(report_replica(bus, lambda: env)),
        asyncio.create_task(report_replica(bus, lambda: world.rollout)),
        asyncio.create_task(bus.consume(streams.env_checks("toy"), stages.check, Slots(8))),
        asyncio.create_task(bus.consume(streams.env_opens("toy"), stages.open, Slots(64))),
        asyncio.create_task(bus.consume(streams.trainer_batches("tiny"), stages.train, Slots(2))),
    ]
    try:
        yield world
    finally:
        await ended(runners)
        await database.close()
