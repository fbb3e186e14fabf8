"""Processes of hosted environments: shared, restarted, ended."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from env_svc.calls import OpenCall, Outcome, Scored
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.pool import HostPool
from env_svc.hosted.process import HostTimings
from tests.env.hosted.playing import hosting, play, reason, scored, step
from tests.support.waiting import eventually


async def test_process_that_dies_costs_its_calls_and_is_restarted(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        waiting = asyncio.ensure_future(play(executor, [step("sleep 30")]))
        (died,) = await play(executor, [step("die")])
        assert "environment 'guest' is unavailable (row 0): its process ended (exit status 7)" in reason(died)
        assert "its process ended" in reason((await waiting)[0])
        first = await scored(executor)
        os.kill(int(first.reward), signal.SIGKILL)
        outcomes: list[Outcome] = []

        async def back() -> bool:
            outcomes[:] = await play(executor, [step("word")])
            return isinstance(outcomes[0], Scored)

        await eventually(back)
        assert isinstance(outcomes[0], Scored) and outcomes[0].reward != first.reward


async def test_many_slow_calls_share_a_process(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        started = time.monotonic()
        outcomes = await play(executor, [step("sleep 0.5") for _ in range(200)])
        assert all(isinstance(outcome, Scored) for outcome in outcomes)
        assert time.monotonic() - started < 90.0  # one after another would take 100 s


async def test_call_that_takes_too_long_is_ended_alone(workers: Workers, python: str) -> None:
    patient = HostTimings(grace_s=60.0)
    async with hosting(workers, timings=patient, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        (late,), (fine,) = await asyncio.gather(play(executor, [step("sleep 60")], timeout_s=2.0), play(executor, [step("word")]))
        assert "did not answer within 2 s" in reason(late)
        assert isinstance(fine, Scored)
        assert (await scored(executor)).reward == fine.reward, "the process was not replaced"


async def test_computing_environment_takes_one_call_a_process_and_is_replaced_when_it_hangs(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:ComputingGuest", processes=2)) as executor:
        (hung,), fine = await asyncio.gather(
            play(executor, [step("block 60")], timeout_s=2.0), play(executor, [step("block 0.01") for _ in range(6)])
        )
        assert "did not answer within 2 s" in reason(hung)
        assert all(isinstance(outcome, Scored) for outcome in fine)
        await scored(executor)


async def test_restart_takes_nothing_of_a_calls_time(workers: Workers, python: str) -> None:
    slow = HostedConfig(python=python, environment="guest:ComputingGuest", variables={"GUEST_IMPORTS_FOR_S": "1.2"})
    async with hosting(workers, 1.0, guest=slow) as executor:

        async def answers_after_a_restart() -> bool:
            hung, after = await play(executor, [step("block 60"), step("word")])
            assert "did not answer within 1 s" in reason(hung)
            return isinstance(after, Scored)

        await eventually(answers_after_a_restart)  # a busy machine may stop it for longer than its time, which is less than a start's


async def test_calls_go_to_a_process_that_is_there_before_one_that_must_start(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest", processes=2)) as executor:
        first, second = await play(executor, [step("sleep 0.1"), step("sleep 0.1")])
        assert isinstance(first, Scored) and isinstance(second, Scored) and first.reward != second.reward
        await play(executor, [step("die")])
        assert (await scored(executor)).reward in (first.reward, second.reward)


@pytest.mark.parametrize("start", ["fork 600", "leave 300"])
async def test_end_of_a_process_is_noticed_though_what_it_started_holds_its_output(workers: Workers, python: str, start: str) -> None:
    async with hosting(workers, 200.0, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        waiting = asyncio.ensure_future(play(executor, [step("sleep 400")]))
        started = await scored(executor, start)
        os.kill(int(started.reward), signal.SIGKILL)
        assert "its process ended (exit status -9)" in reason((await waiting)[0])  # before its time was over
        assert (await scored(executor)).reward != started.reward


@pytest.mark.parametrize("end", ["die", "block 60"])
async def test_what_a_process_has_started_ends_with_it(workers: Workers, python: str, end: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:ComputingGuest")) as executor:
        forked = await scored(executor, "fork 600")
        await play(executor, [step(end)], timeout_s=2.0)
        assert (await scored(executor)).reward != forked.reward


async def test_one_process_that_computes_takes_one_call_from_any_task(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:ComputingGuest")) as executor:
        (hung,), (fine,) = await asyncio.gather(
            play(executor, [step("block 60")], task="one", timeout_s=2.0), play(executor, [step("word")], task="other")
        )
        assert "did not answer within 2 s" in reason(hung)
        assert isinstance(fine, Scored)


async def test_process_that_died_is_restarted_before_it_is_needed(workers: Workers, python: str) -> None:
    hosts = HostPool({"guest": HostedConfig(python=python, environment="guest:Guest", processes=2)})
    try:
        await hosts.start()
        guest = hosts.find("guest")
        assert guest is not None
        await play(EnvironmentExecutor(workers, 20.0, hosts), [step("die")])
        await eventually(lambda: all(process.is_ready for process in guest._processes))
    finally:
        await hosts.stop()


async def test_calls_that_wait_for_a_start_count_as_running_there(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:ComputingGuest", processes=3)) as executor:
        for _ in range(3):
            await play(executor, [step("die")])
        first, second = await play(executor, [step("word"), step("word")])  # as many at once as one task may have
        assert isinstance(first, Scored) and isinstance(second, Scored) and first.reward != second.reward


@pytest.mark.parametrize(
    ("hosted", "problem"),
    [
        (HostedConfig(python="/nowhere/python", environment="guest:Guest"), "/nowhere/python cannot be run: No such file or directory"),
        (HostedConfig(python=sys.executable, environment="guest:Guest"), "ended before it was ready (exit status 1)"),
    ],
)
async def test_environment_that_does_not_start_is_an_infrastructure_failure(workers: Workers, hosted: HostedConfig, problem: str) -> None:
    async with hosting(workers, guest=hosted) as executor:
        (outcome,) = await play(executor, [OpenCall(0, 0)])
        assert problem in reason(outcome)


async def test_process_does_not_outlive_the_service(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        last = await scored(executor)
    assert not Path(f"/proc/{int(last.reward)}").exists()
