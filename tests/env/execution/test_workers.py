"""Worker processes: results, kills, crashes, and who waits for whom."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgpack
import pytest

from common.fairness.fair_queue import Claimant
from env_svc.calls import Call, Continued, EnvironmentJob, Failed, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.workers import Workers
from tests.support.waiting import eventually

NAME = "tests.env.toys:ComputingObedient"
SLOW = Claimant("a", "slow")
ANYONE = Claimant("a", "t")
STATE = msgpack.packb({"row": 0})


def steps(*replies: str) -> list[Call]:
    return [StepCall(0, STATE, Reply(reply)) for reply in replies]


def job_of(calls: Sequence[Call]) -> EnvironmentJob:
    return EnvironmentJob(ANYONE, NAME, {}, calls, 60.0, time.monotonic() + 500.0)


async def run(
    workers: Workers, calls: Sequence[Call], *, by: Claimant = ANYONE, name: str = NAME, timeout_s: float = 60.0
) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    async for batch in workers.run(EnvironmentJob(by, name, {}, calls, timeout_s, time.monotonic() + 500.0)):
        found.update(batch)
    assert sorted(found) == list(range(len(calls)))
    return [found[position] for position in range(len(calls))]


async def test_calls_of_one_message_share_a_job(workers: Workers) -> None:
    calls = steps(*(f"reward {number}" for number in range(40)))

    async def come_together() -> bool:
        batches = [batch async for batch in workers.run(job_of(calls))]
        outcomes = dict(pair for batch in batches for pair in batch)
        assert [outcomes[position] for position in range(40)] == [
            Scored(float(number), {"length": float(len(str(number)))}) for number in range(40)
        ]
        return len(batches) == 1

    await eventually(come_together)  # a busy machine may stop a worker for longer than a slice


async def test_open_runs_in_another_process(workers: Workers) -> None:
    (opened,) = await run(workers, [OpenCall(2, 0)])
    assert isinstance(opened, Opened)
    (scored,) = await run(workers, steps("pid"))
    assert isinstance(scored, Scored)
    assert scored.reward != os.getpid()


async def test_slow_calls_of_one_message_come_back_one_by_one(workers: Workers) -> None:
    calls = steps("block 0.2", "block 0.2", "reward 3")
    batches = [batch async for batch in workers.run(job_of(calls))]
    assert [position for position, _ in batches[0]] == [0]
    assert len(batches) > 1


async def test_hanging_call_is_ended_and_only_its_own_member_fails(workers: Workers) -> None:
    async def others_are_answered() -> bool:
        first, hung, last = await run(workers, steps("reward 1", "spin", "reward 3"), timeout_s=1.0)
        assert isinstance(hung, Failed)
        assert hung.is_infrastructure
        assert "did not answer within 1 s (row 0); its worker process was replaced" in hung.reason
        return (first, last) == (Scored(1.0, {"length": 1.0}), Scored(3.0, {"length": 1.0}))

    await eventually(others_are_answered)  # a busy machine may stop a worker for longer than the time of all three


async def test_crash_fails_its_own_member_and_the_worker_is_replaced(workers: Workers) -> None:
    first, died = await run(workers, steps("reward 1", "die"))
    assert first == Scored(1.0, {"length": 1.0})
    assert isinstance(died, Failed)
    assert died.is_infrastructure
    assert "ended its worker process (exit status 7)" in died.reason
    assert await run(workers, steps("reward 2")) == [Scored(2.0, {"length": 1.0})]


async def test_worker_killed_while_idle_is_replaced_without_a_failure(workers: Workers) -> None:
    (scored,) = await run(workers, steps("pid"))
    assert isinstance(scored, Scored)
    os.kill(int(scored.reward), signal.SIGKILL)
    async with asyncio.timeout(250):
        while Path(f"/proc/{int(scored.reward)}").exists():
            await asyncio.sleep(0.02)
    after = await run(workers, steps("pid", "reward 2"))
    assert isinstance(after[0], Scored)
    assert after[0].reward != scored.reward
    assert after[1] == Scored(2.0, {"length": 1.0})


async def test_exit_and_memory_hunger_are_failures_of_the_environment(workers: Workers) -> None:
    left, hungry, fine = await run(workers, steps("exit", f"memory {8 * 2**30}", "reward 1"))
    assert isinstance(left, Failed) and "SystemExit" in left.reason
    assert isinstance(hungry, Failed) and "MemoryError" in hungry.reason
    assert fine == Scored(1.0, {"length": 1.0})


async def test_wrong_options_fail_every_call(workers: Workers) -> None:
    job = EnvironmentJob(
        Claimant("a", "t"),
        "tests.env.toys:ComputingCountdown",
        {"start": "x"},
        [OpenCall(0, 0), OpenCall(1, 0)],
        60.0,
        time.monotonic() + 500.0,
    )
    outcomes = [outcome async for batch in workers.run(job) for _, outcome in batch]
    assert [isinstance(outcome, Failed) and "option 'start'" in outcome.reason for outcome in outcomes] == [True, True]


async def test_task_of_slow_calls_leaves_a_worker_to_others(workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = [asyncio.ensure_future(run(workers, steps(f"await-file {gate}"), by=SLOW, timeout_s=60)) for _ in range(6)]
    quick: list[Outcome] = []
    for _ in range(5):
        quick += await run(workers, steps("reward 1"), by=Claimant("a", "quick"))
    assert quick == [Scored(1.0, {"length": 1.0})] * 5
    assert not any(runner.done() for runner in slow)
    assert (workers.busy, workers.waiting) == (1, 5)
    gate.touch()
    assert await asyncio.gather(*slow) == [[Scored(1.0, {})]] * 6
    assert (workers.busy, workers.waiting) == (0, 0)


async def test_workers_time_is_shared_by_tenants_and_their_weights(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tasks against one task of twice the weight, each with a call that waits at any moment; the calls take 20 ms.

    Of equal weights each would get half. What counts is the time, of which a call that the machine stops takes much.
    """
    charged: list[tuple[str, float]] = []
    release = workers._slots.release

    def counted(claimant: Claimant, service: float) -> None:
        charged.append((claimant.tenant, service))
        release(claimant, service)

    monkeypatch.setattr(workers._slots, "release", counted)

    async def play(tenant: str, task: str, weight: float) -> None:
        while len(charged) < 240:
            await run(workers, steps("block 0.02"), by=Claimant(tenant, task, weight))

    one = [play("one", f"t{task}", 2.0) for task in (1, 2)]  # one task has at most one of the two workers
    await asyncio.gather(*(play("many", f"t{task}", 1.0) for task in range(18)), *one, *(play("one", "t1", 2.0) for _ in range(4)))
    spent = {name: sum(service for tenant, service in charged[:240] if tenant == name) for name in ("one", "many")}
    assert abs(spent["one"] / 2 - spent["many"]) < 4 * max(service for _, service in charged)


async def test_job_that_waited_past_its_deadline_is_not_begun(workers: Workers, tmp_path: Path) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    slow = asyncio.ensure_future(run(workers, steps(f"await-file {gate}"), by=SLOW, timeout_s=60))
    late = EnvironmentJob(SLOW, NAME, {}, steps(f"touch {trace}"), 10.0, time.monotonic() + 0.05)
    waiting = asyncio.ensure_future(anext(workers.run(late)))
    await eventually(lambda: time.monotonic() > late.ends_at)
    gate.touch()
    ((_, outcome),) = await waiting
    assert isinstance(outcome, Failed)
    assert outcome.is_infrastructure
    assert "no free worker process before the deadline" in outcome.reason
    assert not trace.exists()
    assert await slow == [Scored(1.0, {})]


async def test_cancelled_job_frees_its_worker(workers: Workers, tmp_path: Path) -> None:
    jobs = [
        asyncio.ensure_future(run(workers, steps(f"await-file {tmp_path / 'never'}"), by=Claimant("a", task), timeout_s=60))
        for task in "aabb"
    ]
    async with asyncio.timeout(250):
        while workers.busy < 2:
            await asyncio.sleep(0.01)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert (workers.busy, workers.waiting) == (0, 0)
    assert await run(workers, steps("reward 1")) == [Scored(1.0, {"length": 1.0})]


async def test_multi_turn_state_goes_through_workers(workers: Workers) -> None:
    name = "tests.env.toys:ComputingCountdown"
    (opened,) = await run(workers, [OpenCall(0, 0)], name=name)
    assert isinstance(opened, Opened)
    state = opened.state
    for number in (3, 2):
        (asked,) = await run(workers, [StepCall(0, state, Reply(str(number)))], name=name)
        assert isinstance(asked, Continued)
        state = asked.state
    assert await run(workers, [StepCall(0, state, Reply("1"))], name=name) == [Scored(1.0, {"left": 0.0})]
