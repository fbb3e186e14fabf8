"""The handlers over a real NATS: open → sample → turn → scored, and everything that ends a trajectory early."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import JsonValue

from common import streams
from common.bus import Bus, Delivery, Handler, Outgoing, Slots
from common.messages import (
    ChatMessage,
    CheckEnvironment,
    EnvironmentChecked,
    GroupContext,
    OpenGroup,
    SampledTurn,
    SampleTurns,
    Settlement,
    TaskStatus,
    TokenRecord,
    TrajectoriesScored,
    TurnRequest,
    TurnsSampled,
)
from common.spec import EnvironmentSection, Limits, Sampling
from common.task_states import TaskStates
from env_svc import replies
from env_svc.calls import Opened
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.service import EnvService
from env_svc.tools.toolbox import Toolbox
from tests.conftest import eventually

POOL = "tiny"
TURNS_AT_ONCE = 1200


def group_of(
    name: str, *, task: str = "task-a", size: int = 3, max_turns: int = 8, row: int = 0, left_s: float = 60.0, **options: object
) -> GroupContext:
    return GroupContext(
        tenant="acme",
        task=task,
        pool=POOL,
        group=4,
        size=size,
        version=0,
        adapter=None,
        family="module",
        environment=EnvironmentSection(name=f"tests.env.toys:{name}" if ":" not in name else name, options=options),  # pyright: ignore
        sampling=Sampling(),
        limits=Limits(max_turns=max_turns),
        row=row,
        seed=0,
        deadline_s=time.time() + left_s,
    )


def service_of(workers: Workers, call_timeout_s: float) -> EnvService:
    return EnvService(ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s), Toolbox()), TaskStates(), time.time)


def sampled(request: TurnRequest, reply: str, *, finish: str = "stop", failure: str | None = None) -> SampledTurn:
    """What the rollout service makes of a request: its tokens are two of context and one per character."""
    transcript = request.transcript.with_context([1, 2]).with_sampled([ord(letter) for letter in reply], [-0.5] * len(reply))
    return SampledTurn(
        member=request.member,
        turn=request.turn,
        transcript=transcript,
        reply=reply,
        finish=finish,  # pyright: ignore
        state=request.state,
        failure=failure,
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
        async for delivery in self.bus.follow(streams.SCORED, f"trajectories.scored.{task}.>"):
            message = delivery.read(TrajectoriesScored)
            settlement = Settlement.model_validate(json.loads(delivery.headers[streams.SETTLEMENT_HEADER]))
            assert settlement == message.settlement()
            found.append((message, settlement))
            if sum(len(one.members) for one, _ in found) >= count:
                break
        return found

    async def take_sample(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.samples.append(delivery.read(SampleTurns))
        return
        yield

    async def take_check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.checks.append(delivery.read(EnvironmentChecked))
        return
        yield

    async def handled(self) -> None:
        """Returns when nothing waits for this service."""
        await self.handled_but(0)

    async def handled_but(self, messages: int) -> None:
        """Returns when this service has `messages` in hand and no other waits for it."""

        async def idle() -> bool:
            names = (streams.env_opens("module"), streams.env_turns("module"), streams.rollout_samples(POOL))
            infos = [await self.bus.blobs_context().consumer_info(name.stream, name.name) for name in names]
            return all(info.num_pending == 0 for info in infos) and sum(info.num_ack_pending or 0 for info in infos) == messages

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
    async with consuming(bus, (streams.rollout_samples(POOL), desk.take_sample), (streams.SCHEDULER_CHECKED, desk.take_check)):
        yield desk


@asynccontextmanager
async def consuming(bus: Bus, *handlers: tuple[streams.Consumer, Handler]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as runners:
        reading = [runners.create_task(bus.consume(consumer, handler, Slots(TURNS_AT_ONCE))) for consumer, handler in handlers]
        try:
            yield
        finally:
            for runner in reading:
                runner.cancel()


@pytest.fixture
async def desk(bus: Bus, workers: Workers) -> AsyncIterator[Desk]:
    service = service_of(workers, call_timeout_s=6.0)
    async with serving(bus, service), at_desk(bus) as desk:
        yield desk


# ------------------------------------------------------------------------------------------------------ whole episodes


async def test_opened_group_asks_for_every_members_first_turn_in_one_message(desk: Desk) -> None:
    group = group_of("Countdown", size=5)
    await desk.open(group)
    await desk.requests(group, 5)
    (message,) = desk.samples
    assert message.group == group
    assert [(one.member, one.turn, len(one.transcript)) for one in message.members] == [(member, 0, 0) for member in range(5)]
    assert {one.messages[0].content for one in message.members} == {"Count down from 3."}


async def test_prompt_is_made_of_the_tasks_seed_not_the_groups(desk: Desk) -> None:
    for number, seed in enumerate((7, 8)):
        group = group_of("Countdown", size=1, task=f"task-{number}").model_copy(update={"seed": seed, "task_seed": 1})
        await desk.open(group)
        assert (await desk.requests(group, 1))[0].messages[0].content == "Count down from 4."


async def test_episode_of_many_turns_is_played_and_scored(desk: Desk) -> None:
    group = group_of("Countdown", size=2)
    await desk.open(group)
    right, wrong = await desk.requests(group, 2)
    await desk.give(group, [sampled(right, "3"), sampled(wrong, "nine")])
    ((message, settlement),) = await desk.scored(group.task, 1)
    assert (message.members[0].member, message.members[0].reward, message.members[0].components) == (1, 0.0, {"left": 3.0})
    assert (settlement.members[0].prompt_tokens, settlement.members[0].sampled_tokens, settlement.members[0].turns) == (2, 4, 1)
    for turn, number in ((1, "2"), (2, "1")):
        right = (await desk.requests(group, 2 + turn))[-1]
        assert (right.member, right.turn, right.messages[0].content) == (0, turn, "Go on.")
        await desk.give(group, [sampled(right, number)])
    last = (await desk.scored(group.task, 2))[-1][0].members[0]
    assert (last.member, last.reward, last.turns, last.failure) == (0, 1.0, 3, None)
    assert len(last.transcript) == 9


async def test_environment_that_computes_is_played_in_workers(desk: Desk) -> None:
    group = group_of("reasoning_gym:gcd", size=2, max_turns=1).model_copy(update={"family": "module"})
    await desk.open(group)
    requests = await desk.requests(group, 2)
    from reasoning_gym.factory import create_dataset

    gold = create_dataset("gcd", seed=0, size=2000)[0]["answer"]
    await desk.give(group, [sampled(requests[0], gold), sampled(requests[1], "?", finish="length")])
    members = [member for message, _ in await desk.scored(group.task, 2) for member in message.members]
    assert [(member.reward, member.components, member.truncated) for member in members] == [
        (1.0, {"score": 1.0}, False),
        (0.0, {"score": 0.0}, True),
    ]


async def test_members_ready_together_share_a_message_and_wait_for_nobody(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    group = group_of("Obedient", size=3)
    await desk.open(group)
    requests = await desk.requests(group, 3)
    await desk.give(
        group, [sampled(request, reply) for request, reply in zip(requests, ("reward 1", f"await-file {gate}", "reward 2"), strict=True)]
    )
    ((first, _),) = await desk.scored(group.task, 2)
    assert [member.member for member in first.members] == [0, 2]
    gate.touch()
    assert (await desk.scored(group.task, 3))[-1][0].members[0].member == 1


async def test_task_weighs_the_components_of_its_reward(desk: Desk) -> None:
    group = group_of("Countdown", size=2)
    group = group.model_copy(update={"environment": group.environment.model_copy(update={"weights": {"reward": 2.0, "left": -0.25}})})
    await desk.open(group)
    requests = await desk.requests(group, 2)
    await desk.give(group, [sampled(requests[0], "no"), sampled(requests[1], "nine")])
    members = [member for message, _ in await desk.scored(group.task, 2) for member in message.members]
    assert [(member.reward, member.components) for member in members] == [(-0.75, {"reward": 0.0, "left": 3.0})] * 2


@pytest.mark.parametrize("section", ["weights", "rank_weights"])
async def test_misspelt_weight_is_an_objection(desk: Desk, section: str) -> None:
    environment = EnvironmentSection.model_validate({"name": "reasoning_gym:gcd", section: {"scoer": 1.0}})
    check = CheckEnvironment(tenant="acme", task="task-a", family="module", environment=environment, seed=1)
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    assert "no reward component 'scoer'; did you mean 'score'" in (desk.checks[0].objection or "")


async def test_out_of_turns_is_concluded(desk: Desk) -> None:
    group = group_of("Countdown", size=1, max_turns=1)
    await desk.open(group)
    (request,) = await desk.requests(group, 1)
    await desk.give(group, [sampled(request, "3")])
    ((message, _),) = await desk.scored(group.task, 1)
    assert (message.members[0].reward, message.members[0].components, message.members[0].failure) == (0.0, {"out_of_turns": 1.0}, None)


# --------------------------------------------------------------------------------------------------- tools and limits


def talk(size: int = 1, *tools: str, left_s: float = 60.0, **limits: object) -> GroupContext:
    """A group whose policy talks, with tools, until it is done."""
    environment = EnvironmentSection.model_validate({"name": "tests.env.toy_tools:Talk", "tools": tools})
    allowed = Limits.model_validate({"max_turns": 8, **limits})
    return group_of("Talk", size=size, left_s=left_s).model_copy(update={"environment": environment, "limits": allowed})


async def test_calls_are_answered_between_the_environments_steps(desk: Desk) -> None:
    group = talk(2, "calculator", "tests.env.toy_tools:Parrot")
    await desk.open(group)
    first, second = await desk.requests(group, 2)
    assert [tool["function"]["name"] for tool in first.tools] == ["calculator", "parrot"]  # pyright: ignore
    await desk.give(group, [sampled(first, "<calculator>12*7</calculator><parrot>hello</parrot>"), sampled(second, "done")])
    ((message, _),) = await desk.scored(group.task, 1)
    assert (message.members[0].member, message.members[0].components) == (1, {"tool_calls": 0.0, "tool_errors": 0.0, "steps": 1.0})
    asked = (await desk.requests(group, 3))[-1]
    assert [(one.role, one.content) for one in asked.messages] == [("tool", "84"), ("tool", "hello")]
    assert (asked.member, asked.turn, asked.tools) == (0, 1, [])
    await desk.give(group, [sampled(asked, "done")])
    last = (await desk.scored(group.task, 2))[-1][0].members[0]
    assert (last.reward, last.turns, last.components) == (1.0, 2, {"tool_calls": 2.0, "tool_errors": 0.0, "steps": 1.0})
    reply = "<calculator>12*7</calculator><parrot>hello</parrot>"
    assert last.transcript.ids.startswith(asked.transcript.ids)
    assert last.transcript.sampled_T().tolist() == [0, 0] + [1] * len(reply) + [0, 0] + [1] * 4


@pytest.mark.parametrize(
    ("limits", "component"),
    [({"max_turns": 1}, "out_of_turns"), ({"max_episode_tokens": 231}, "out_of_tokens"), ({"max_episode_s": 240}, "out_of_seconds")],
)
@pytest.mark.parametrize(("rule", "reward"), [("score", 0.25), ("zero", 0.0), ("void", None)])
async def test_episode_without_turns_tokens_or_seconds_ends_as_its_task_says(
    desk: Desk, limits: dict[str, object], component: str, rule: str, reward: float | None
) -> None:
    # Admitted 241 s ago; a turn may bring 128 tokens and sample 64 more.
    group = talk(1, "tests.env.toy_tools:Parrot", left_s=59.0, at_limit=rule, **limits)
    await desk.open(group)
    (request,) = await desk.requests(group, 1)
    await desk.give(group, [sampled(request, "<parrot>one more turn, please</parrot>")])
    ((message, _),) = await desk.scored(group.task, 1)
    (member,) = message.members
    if reward is None:
        used = component.removeprefix("out_of_")
        assert member.failure == f"the episode used up its {used}, and limits.at_limit is 'void'"
    else:
        assert (member.failure, member.reward, member.components[component]) == (None, reward, 1.0)


async def test_episode_within_its_limits_goes_on(desk: Desk) -> None:
    group = talk(1, "tests.env.toy_tools:Parrot", left_s=299.0, max_turns=2, max_episode_tokens=232, max_episode_s=240)
    await desk.open(group)
    (request,) = await desk.requests(group, 1)
    await desk.give(group, [sampled(request, "<parrot>one more turn, please</parrot>")])
    assert [message.content for message in (await desk.requests(group, 2))[-1].messages] == ["one more turn, please"]


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(("row", "reason"), [(13, "the dungeon is closed"), (14, "ZeroDivisionError: bad row")])
async def test_group_that_does_not_open_is_void_with_the_reason(desk: Desk, row: int, reason: str) -> None:
    group = group_of("Obedient", row=row)
    await desk.open(group)
    ((message, settlement),) = await desk.scored(group.task, 3)
    assert [member.member for member in message.members] == [0, 1, 2]
    assert all(member.failure is not None and reason in member.failure and f"row {row}" in member.failure for member in settlement.members)


async def test_failures_are_values_each_of_its_own_member(desk: Desk) -> None:
    replies = ["raise größer\n✗", "unavailable", "reward nan", "sleep 30", "reward 0.5"]
    group = group_of("Obedient", size=6)
    await desk.open(group)
    requests = await desk.requests(group, 6)
    turns = [sampled(request, reply) for request, reply in zip(requests, replies, strict=False)]
    await desk.give(group, [*turns, sampled(requests[5], "", failure="engine is gone")])
    found = {member.member: member for message, _ in await desk.scored(group.task, 6) for member in message.members}
    reasons = {number: member.failure for number, member in found.items()}
    assert reasons[4] is None and found[4].reward == 0.5
    for number, part in ((0, "RuntimeError: größer\n✗"), (1, "is unavailable"), (2, "reward is nan"), (3, "did not answer within 6 s")):
        assert part in (reasons[number] or "")
    assert (reasons[5], found[5].turns) == ("engine is gone", 0)


async def test_unknown_environment_voids_the_group(desk: Desk) -> None:
    group = group_of("Countup")
    await desk.open(group)
    ((message, _),) = await desk.scored(group.task, 3)
    assert "module 'tests.env.toys' has no 'Countup'" in (message.members[0].failure or "")


async def test_group_past_its_deadline_is_dropped(desk: Desk) -> None:
    late = group_of("Countdown", left_s=-1.0)
    await desk.open(late)
    request = TurnRequest(member=0, turn=0, transcript=TokenRecord(), messages=[], state=b"\x80")
    await desk.give(late, [sampled(request, "3")])
    await desk.open(group_of("Countdown", task="task-b"))
    await desk.handled()
    assert await desk.bus.backlog(streams.SCORED) == 0
    await eventually(lambda: [message.group.task for message in desk.samples] == ["task-b"])
    assert await desk.bus.backlog(streams.FAILED) == 0


# ---------------------------------------------------------------------------------------------------------- redelivery


async def test_message_that_is_handled_twice_changes_nothing(desk: Desk) -> None:
    group = group_of("Countdown", size=2)
    for attempt in ("1", "2"):
        await desk.open(group, attempt)
    await desk.handled()
    await eventually(lambda: len(desk.samples) == 1)
    requests = await desk.requests(group, 2)
    turns = [sampled(requests[0], "3"), sampled(requests[1], "no")]
    for attempt in ("1", "2"):
        await desk.give(group, turns, attempt)
    await desk.handled()
    assert await desk.bus.backlog(streams.SCORED) == 1
    assert len(desk.samples) == 2


async def test_interrupted_replica_gives_its_turns_to_another(bus: Bus, workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    service = service_of(workers, call_timeout_s=20.0)
    group = group_of("ComputingObedient", size=1)
    async with at_desk(bus) as desk:
        async with serving(bus, service):
            await desk.open(group)
            (request,) = await desk.requests(group, 1)
            await desk.give(group, [sampled(request, f"await-file {gate}")])
            await eventually(lambda: workers.busy == 1)
        gate.touch()
        async with serving(bus, service_of(workers, call_timeout_s=20.0)):
            ((message, _),) = await desk.scored(group.task, 1)
            assert message.members[0].reward == 1.0


# ----------------------------------------------------------------------------------------------------- nobody blocks


async def test_a_thousand_slow_episodes_run_at_once(desk: Desk) -> None:
    group = group_of("Countdown", size=250, task="crowd", step_s=0.5, left_s=500.0)
    await desk.open(group)
    requests = await desk.requests(group, 250)
    started = time.monotonic()
    for request in requests:
        for attempt in range(4):
            await desk.give(group, [sampled(request, "no")], str(attempt))
    quick = group_of("Countdown", task="quick")
    await desk.open(quick)
    await desk.requests(quick, 3)
    await desk.scored("crowd", 250)
    assert time.monotonic() - started < 250.0  # one after another would take 500 s


async def test_task_that_hangs_in_workers_does_not_hold_up_another(bus: Bus, workers: Workers) -> None:
    async with at_desk(bus) as desk, serving(bus, service_of(workers, call_timeout_s=1.5)):
        slow = group_of("ComputingObedient", task="slow", size=4)
        await desk.open(slow)
        for request in await desk.requests(slow, 4):
            await desk.give(slow, [sampled(request, "spin")])
        quick = group_of("ComputingCountdown", task="quick", size=1)
        await desk.open(quick)
        (request,) = await desk.requests(quick, 1)
        await desk.give(quick, [sampled(request, "no")])
        await desk.scored("quick", 1)
        assert await desk.bus.backlog(streams.SCORED) < 4
        spun = [member for message, _ in await desk.scored("slow", 4) for member in message.members]
        assert all("did not answer within 1.5 s" in (member.failure or "") for member in spun)


async def test_cancelled_task_leaves_its_workers_to_others_at_once_and_no_other_task_notices(
    bus: Bus, workers: Workers, tmp_path: Path
) -> None:
    service = service_of(workers, call_timeout_s=60.0)
    gate = tmp_path / "gate"
    async with at_desk(bus) as desk, serving(bus, service), asyncio.TaskGroup() as runners:
        following = runners.create_task(service.follow_tasks(bus))
        computing, waiting = group_of("ComputingObedient", task="doomed"), group_of("Obedient", task="doomed")
        doomed = {"spin": computing, "sleep 50": waiting.model_copy(update={"group": 5})}
        spared = group_of("ComputingObedient", task="spared", size=1)
        for group in (*doomed.values(), spared):
            await desk.open(group)
        for reply, group in doomed.items():
            for request in await desk.requests(group, 3):
                await desk.give(group, [sampled(request, reply)], attempt=reply)
        (request,) = await desk.requests(spared, 1)
        await desk.give(spared, [sampled(request, f"await-file {gate}")])
        await eventually(lambda: workers.busy == 2 and workers.waiting == 2)
        await tell(bus, "doomed", "cancelled")
        await desk.handled_but(1)
        assert (workers.busy, workers.waiting) == (1, 0)
        gate.touch()
        ((message, _),) = await desk.scored("spared", 1)
        assert message.members[0].reward == 1.0
        assert set(await bus.subjects(streams.SCORED)) == {"trajectories.scored.spared.4-0"}
        await desk.open(computing, attempt="late")
        await desk.handled_but(0)
        following.cancel()


@pytest.mark.parametrize("state", ["cancelled", "failed", "rejected", "finished"])
async def test_late_turn_of_a_task_that_has_ended_is_dropped_without_a_trace(bus: Bus, workers: Workers, state: str) -> None:
    service = service_of(workers, call_timeout_s=60.0)
    async with at_desk(bus) as desk, serving(bus, service), asyncio.TaskGroup() as runners:
        following = runners.create_task(service.follow_tasks(bus))
        ended, other = group_of("Countdown", task="ended"), group_of("Countdown", task="other", size=1)
        for group in (ended, other):
            await desk.open(group)
        first, second, third = await desk.requests(ended, 3)
        (request,) = await desk.requests(other, 1)
        await tell(bus, "ended", state)
        await eventually(lambda: service._tasks.has_ended("ended"))
        late = [sampled(first, "3"), sampled(second, "no"), sampled(third, "", failure="its engine died")]
        await desk.give(ended, late)
        await desk.give(other, [sampled(request, "3")])
        await desk.requests(other, 2)
        await desk.handled_but(0)
        assert len(await desk.requests(ended, 3)) == 3
        assert await bus.subjects(streams.SCORED) == {}
        assert await bus.subjects(streams.FAILED) == {}
        following.cancel()


async def tell(bus: Bus, task: str, state: str) -> None:
    """What the scheduler writes when a task's state changes."""
    status = TaskStatus(
        tenant="acme", task=task, name=task, pool=POOL, state=state, version=0, steps=1, submitted_s=0, updated_s=time.time()
    )
    await bus.put_value(streams.TASKS_BUCKET, task, status)


# --------------------------------------------------------------------------------------------------------------- check


@pytest.mark.parametrize(
    ("name", "options", "objection"),
    [
        ("tests.env.toys:Countdown", {}, None),
        ("tests.env.toys:ComputingCountdown", {"start": 2}, None),
        ("reasoning_gym:gcd", {"min_value": 3}, None),
        ("reasoning_gym:gcd", {"min_valu": 3}, "did you mean 'min_value'"),
        ("reasoning_gym:gdc", {}, "did you mean 'reasoning_gym:gcd'"),
        ("tests.env.toys:Countdown", {"start": -1}, "start is -1, expected 1 or more"),
        ("subprocess:Popen", {"args": ["touch", "/tmp/x"]}, "is not an environment"),
    ],
)
async def test_check_says_whether_the_environment_opens(desk: Desk, name: str, options: dict[str, object], objection: str | None) -> None:
    environment = EnvironmentSection(name=name, options=options)  # pyright: ignore
    check = CheckEnvironment(tenant="acme", task="task-a", family="module", environment=environment, seed=1)
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    (answer,) = desk.checks
    assert (answer.tenant, answer.task) == ("acme", "task-a")
    assert answer.objection is None if objection is None else objection in (answer.objection or "")


@pytest.mark.parametrize(
    ("options", "objection"),
    [
        ({"min_value": 3}, None),
        ({"min_valu": 3}, "evaluation.options: environment 'reasoning_gym:gcd' has no option 'min_valu'; did you mean"),
    ],
)
async def test_check_looks_at_the_evaluations_options_too(desk: Desk, options: dict[str, int], objection: str | None) -> None:
    check = CheckEnvironment(
        tenant="acme",
        task="task-a",
        family="module",
        environment=EnvironmentSection(name="reasoning_gym:gcd"),
        seed=1,
        evaluation=EnvironmentSection(name="reasoning_gym:gcd", options=options),  # pyright: ignore
    )
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    (answer,) = desk.checks
    assert answer.objection is None if objection is None else (answer.objection or "").startswith(objection)


async def test_large_states_are_spread_over_messages(workers: Workers) -> None:
    service = service_of(workers, call_timeout_s=5.0)
    group = group_of("Obedient", size=64)
    turns = [
        SampledTurn(member=member, turn=0, transcript=TokenRecord(), reply="big 200000", finish="stop", state=b"\x80")
        for member in range(64)
    ]
    delivery = Delivery("", {}, TurnsSampled(group=group, members=turns).encode(), 1, 1)
    out = [message async for message in service.turn(delivery)]
    members = [request.member for one in out if isinstance(one.message, SampleTurns) for request in one.message.members]
    assert sorted(members) == list(range(64))
    assert len(out) == len({one.message_id for one in out}) > 1
    assert all(len(one.message.encode()) < 5 * 2**20 for one in out)


def test_large_schemas_of_tools_are_spread_over_messages() -> None:
    schema: dict[str, JsonValue] = {"type": "function", "function": {"name": "ask", "description": "x" * 130_000}}
    opened = Opened([ChatMessage(role="user", content="Ask.")], [schema], b"\x80")
    out = list(replies.first_turns(group_of("Obedient", size=64), opened))
    members = [request.member for one in out if isinstance(one.message, SampleTurns) for request in one.message.members]
    assert members == list(range(64))
    assert len({one.message_id for one in out}) == len(out)
    assert all(len(one.message.encode()) < 5 * 2**20 for one in out)
