"""The bus with a service at work, seen from the scheduler and the rollout service."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue

from common import streams
from common.bus import Bus, Delivery, Handler, Outgoing, Slots
from common.messages import (
    CheckEnvironment,
    EnvironmentChecked,
    GroupContext,
    OpenGroup,
    SampledTurn,
    SampleTurns,
    Settlement,
    TrajectoriesScored,
    TurnRequest,
    TurnsSampled,
)
from common.spec import EnvironmentSection, Limits
from common.task_states import TaskStates
from env_svc.allowed import AllowedNames
from env_svc.datasets import ListedDatasets
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.service import EnvService
from env_svc.tools.toolbox import Toolbox
from tests.support.consuming import as_handler
from tests.support.groups import group_context
from tests.support.waiting import eventually

POOL = "tiny"
MAX_TURNS = 1200
NEVER_PARKED: Mapping[str, float] = {}


def group_of(
    name: str, *, task: str = "task-a", size: int = 3, max_turns: int = 8, row: int = 0, left_s: float = 500.0, **options: object
) -> GroupContext:
    return group_context(
        task,
        4,
        size=size,
        environment=EnvironmentSection(name=f"tests.env.toys:{name}" if ":" not in name else name, options=options),  # pyright: ignore
        limits=Limits(max_turns=max_turns),
        row=row,
        deadline_s=time.time() + left_s,
    )


def service_of(
    workers: Workers, call_timeout_s: float, allowed: str = "*", datasets: str = "", parked_s: Mapping[str, float] = NEVER_PARKED
) -> EnvService:
    """`parked_s`: seconds by which the clocks of pools are behind."""
    executor = ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s), Toolbox())
    lists = AllowedNames(allowed), ListedDatasets(datasets)
    return EnvService(executor, TaskStates(), lambda pool: time.time() - parked_s.get(pool, 0.0), *lists)


def sampled(request: TurnRequest, reply: str, *, finish: str = "stop", failure: str | None = None) -> SampledTurn:
    """The rollout service's answer to a request: its tokens are two of context and one per character."""
    transcript = request.transcript.with_context([1, 2]).with_sampled([ord(letter) for letter in reply], [-0.5] * len(reply))
    return SampledTurn(
        member=request.member,
        turn=request.turn,
        transcript=transcript,
        reply=reply,
        finish=finish,  # pyright: ignore
        state=request.state,
        failure=failure,
        env_ms=request.env_ms,
        away_ms=request.away_ms,
    )


@dataclass
class Desk:
    """The bus, with a service at work, seen from the scheduler and the rollout service."""

    bus: Bus
    samples: list[SampleTurns] = field(default_factory=list[SampleTurns])
    checks: list[EnvironmentChecked] = field(default_factory=list[EnvironmentChecked])

    async def open(self, group: GroupContext, attempt: str = "1") -> None:
        await self.bus.publish(
            Outgoing(
                streams.open_group(group.family, group.task, group.group),
                OpenGroup(group=group),
                f"open:{group.task}:{group.group}:{attempt}",
            )
        )

    async def opened(self, group: GroupContext) -> list[TurnRequest]:
        """Open the group; returns the first request of each member."""
        await self.open(group)
        return await self.requests(group, group.size)

    async def give(self, group: GroupContext, turns: list[SampledTurn], attempt: str = "1") -> None:
        subject = streams.turn(group.family, group.task, group.trajectory(turns[0].member))
        name = ",".join(f"{turn.member}.{turn.turn}" for turn in turns)
        await self.bus.publish(Outgoing(subject, TurnsSampled(group=group, members=turns), f"turn:{group.task}:{name}:{attempt}"))

    async def requests(self, group: GroupContext, count: int) -> list[TurnRequest]:
        """The first `count` requests of the task, in the order of their members within a turn."""

        def asked() -> list[TurnRequest]:
            return [request for message in self.samples if message.group == group for request in message.members]

        await eventually(lambda: len(asked()) >= count)
        return sorted(asked(), key=lambda request: (request.turn, request.member))

    async def scored(self, task: str, count: int) -> list[tuple[TrajectoriesScored, Settlement]]:
        """Scored messages until `count` members are in them."""
        found: list[tuple[TrajectoriesScored, Settlement]] = []
        async for delivery in self.bus.streams.follow(streams.SCORED, f"trajectories.scored.{task}.>"):
            message = delivery.read(TrajectoriesScored)
            settlement = Settlement.model_validate(json.loads(delivery.headers[streams.SETTLEMENT_HEADER]))
            assert settlement == message.settlement()
            found.append((message, settlement))
            if sum(len(one.members) for one, _ in found) >= count:
                break
        return found

    async def objection(
        self,
        environment: EnvironmentSection,
        evaluation: EnvironmentSection | None = None,
        protocols: dict[str, dict[str, JsonValue]] | None = None,
    ) -> str | None:
        """The objection of a check, None where there is none."""
        return (await self.checked(environment, evaluation, protocols)).objection

    async def checked(
        self,
        environment: EnvironmentSection,
        evaluation: EnvironmentSection | None = None,
        protocols: dict[str, dict[str, JsonValue]] | None = None,
    ) -> EnvironmentChecked:
        check = CheckEnvironment(
            tenant="acme",
            task="task-a",
            family="module",
            environment=environment,
            seed=1,
            evaluation=evaluation,
            protocols=protocols or {},
            weight=1.0,
            by_operator=True,
        )
        await self.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
        await eventually(lambda: self.checks)
        (answer,) = self.checks
        assert (answer.tenant, answer.task) == ("acme", "task-a")
        return answer

    async def take_sample(self, delivery: Delivery) -> None:
        self.samples.append(delivery.read(SampleTurns))

    async def take_check(self, delivery: Delivery) -> None:
        self.checks.append(delivery.read(EnvironmentChecked))

    async def handled(self, but: int = 0) -> None:
        """Returns when this service has `but` messages in flight and no other pending."""

        async def idle() -> bool:
            names = (streams.env_opens("module"), streams.env_turns("module"), streams.rollout_samples(POOL))
            infos = [await self.bus.blobs_context().consumer_info(name.stream, name.name) for name in names]
            return all(info.num_pending == 0 for info in infos) and sum(info.num_ack_pending or 0 for info in infos) == but

        await eventually(idle)


@asynccontextmanager
async def serving(bus: Bus, service: EnvService) -> AsyncIterator[None]:
    handlers = (
        (streams.env_checks("module"), service.check),
        (streams.env_opens("module"), service.open),
        (streams.env_turns("module"), service.turn),
    )
    async with consuming(bus, *handlers):
        yield


@asynccontextmanager
async def at_desk(bus: Bus) -> AsyncIterator[Desk]:
    desk = Desk(bus)
    takers = ((streams.rollout_samples(POOL), as_handler(desk.take_sample)), (streams.SCHEDULER_CHECKED, as_handler(desk.take_check)))
    async with consuming(bus, *takers):
        yield desk


@asynccontextmanager
async def consuming(bus: Bus, *handlers: tuple[streams.Consumer, Handler]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as runners:
        reading = [runners.create_task(bus.consume(consumer, handler, Slots(MAX_TURNS))) for consumer, handler in handlers]
        try:
            yield
        finally:
            for runner in reading:
                runner.cancel()
