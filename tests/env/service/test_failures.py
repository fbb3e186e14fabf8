"""Failures, redelivery and cancellation: every one a value of its own trajectory, and no task holds up another."""

import time
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus
from common.messages import TaskStatus, TokenRecord, TurnRequest
from common.spec import Limits
from env_svc.execution.workers import Workers
from tests.env.service.desk import POOL, Desk, at_desk, group_of, sampled, service_of, serving
from tests.support.waiting import at_work, eventually


@pytest.mark.parametrize(("row", "reason"), [(13, "the dungeon is closed"), (14, "ZeroDivisionError: bad row")])
async def test_group_that_does_not_open_is_void_with_the_reason(desk: Desk, row: int, reason: str) -> None:
    group = group_of("Obedient", row=row)
    await desk.open(group)
    ((message, settlement),) = await desk.scored(group.task, 3)
    assert [member.member for member in message.members] == [0, 1, 2]
    assert all(member.failure is not None and reason in member.failure and f"row {row}" in member.failure for member in settlement.members)


async def test_failures_are_values_each_of_its_own_member(bus: Bus, workers: Workers) -> None:
    replies = ["raise größer\n✗", "unavailable", "reward nan", "sleep 30", "reward 0.5"]
    group = group_of("Obedient", size=6)
    async with serving(bus, service_of(workers, call_timeout_s=6.0)), at_desk(bus) as desk:
        requests = await desk.opened(group)
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
    assert await desk.bus.streams.backlog(streams.SCORED) == 0
    await eventually(lambda: [message.group.task for message in desk.samples] == ["task-b"])
    assert await desk.bus.streams.backlog(streams.FAILED) == 0


async def test_deadline_goes_by_the_clock_of_the_pool(bus: Bus, workers: Workers) -> None:
    async with serving(bus, service_of(workers, 60.0, parked_s={POOL: 600.0})), at_desk(bus) as desk:
        await desk.open(group_of("Countdown", left_s=-610.0))
        timely = group_of("Countdown", task="task-b", size=1, left_s=-50.0)
        [request] = await desk.opened(timely)
        await desk.give(timely, [sampled(request, "no")])
        await desk.scored("task-b", 1)
        assert {message.group.task for message in desk.samples} == {"task-b"}


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
    assert await desk.bus.streams.backlog(streams.SCORED) == 1
    assert len(desk.samples) == 2


async def test_interrupted_replica_gives_its_turns_to_another(bus: Bus, workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    service = service_of(workers, call_timeout_s=60.0)
    group = group_of("ComputingObedient", size=1)
    async with at_desk(bus) as desk:
        async with serving(bus, service):
            (request,) = await desk.opened(group)
            await desk.give(group, [sampled(request, f"await-file {gate}")])
            await eventually(lambda: workers.busy == 1)
        gate.touch()
        async with serving(bus, service_of(workers, call_timeout_s=60.0)):
            ((message, _),) = await desk.scored(group.task, 1)
            assert message.members[0].reward == 1.0


async def test_a_thousand_slow_episodes_run_at_once(desk: Desk) -> None:
    group = group_of("Countdown", size=250, task="crowd", step_s=0.5, left_s=500.0)
    requests = await desk.opened(group)
    started = time.monotonic()
    for request in requests:
        for attempt in range(4):
            await desk.give(group, [sampled(request, "no")], str(attempt))
    quick = group_of("Countdown", task="quick")
    await desk.opened(quick)
    await desk.scored("crowd", 250)
    assert time.monotonic() - started < 250.0  # one after another would take 500 s


async def test_task_that_hangs_in_workers_does_not_hold_up_another(bus: Bus, workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hasty = Limits(max_turns=8, max_turn_s=1.5, at_limit="void")
    async with at_desk(bus) as desk, serving(bus, service_of(workers, call_timeout_s=60.0)):
        slow = group_of("ComputingObedient", task="slow", size=4)
        *held, last = await desk.opened(slow)
        for request in held:
            await desk.give(slow, [sampled(request, f"await-file {gate}")])
        await desk.give(slow.model_copy(update={"limits": hasty}), [sampled(last, "spin")])
        quick = group_of("ComputingCountdown", task="quick", size=1)
        (request,) = await desk.opened(quick)
        await desk.give(quick, [sampled(request, "no")])
        await desk.scored("quick", 1)
        assert await desk.bus.streams.backlog(streams.SCORED) <= 2, "of the other task at most the one whose time is short"
        gate.touch()
        members = {member.member: member for message, _ in await desk.scored("slow", 4) for member in message.members}
        assert [members[number].reward for number in range(3)] == [1.0] * 3
        assert members[3].failure


async def test_cancelled_task_leaves_its_workers_to_others_at_once_and_no_other_task_notices(
    bus: Bus, workers: Workers, tmp_path: Path
) -> None:
    service = service_of(workers, call_timeout_s=60.0)
    gate = tmp_path / "gate"
    async with at_desk(bus) as desk, serving(bus, service), at_work(service.follow_tasks(bus)):
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
        await report_state(bus, "doomed", "cancelled")
        await desk.handled(but=1)
        assert (workers.busy, workers.waiting) == (1, 0)
        gate.touch()
        ((message, _),) = await desk.scored("spared", 1)
        assert message.members[0].reward == 1.0
        assert set(await bus.streams.subjects(streams.SCORED)) == {"trajectories.scored.spared.4-0"}
        await desk.open(computing, attempt="late")
        await desk.handled()


@pytest.mark.parametrize("state", ["cancelled", "failed", "rejected", "finished"])
async def test_late_turn_of_a_task_that_has_ended_is_dropped_without_a_trace(bus: Bus, workers: Workers, state: str) -> None:
    service = service_of(workers, call_timeout_s=60.0)
    async with at_desk(bus) as desk, serving(bus, service), at_work(service.follow_tasks(bus)):
        ended, other = group_of("Countdown", task="ended"), group_of("Countdown", task="other", size=1)
        for group in (ended, other):
            await desk.open(group)
        first, second, third = await desk.requests(ended, 3)
        (request,) = await desk.requests(other, 1)
        await report_state(bus, "ended", state)
        await eventually(lambda: service._tasks.has_ended("ended"))
        late = [sampled(first, "3"), sampled(second, "no"), sampled(third, "", failure="its engine died")]
        await desk.give(ended, late)
        await desk.give(other, [sampled(request, "3")])
        await desk.requests(other, 2)
        await desk.handled()
        assert len(await desk.requests(ended, 3)) == 3
        assert await bus.streams.subjects(streams.SCORED) == {}
        assert await bus.streams.subjects(streams.FAILED) == {}


async def report_state(bus: Bus, task: str, state: str) -> None:
    """Write a task's state, as the scheduler does when it changes."""
    status = TaskStatus(
        tenant="acme", task=task, name=task, pool=POOL, state=state, version=0, steps=1, submitted_s=0, updated_s=time.time()
    )
    await bus.kv.put(streams.TASKS_BUCKET, task, status)
