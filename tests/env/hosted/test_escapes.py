"""Escape attempts of hosted environments: code of theirs gets nothing of the service, the machine or other environments."""

import asyncio
import os

import pytest

from env_svc.calls import Continued, Failed, Outcome
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement
from tests.env.hosted.attempts import BOMBS, FILES, NETWORK, PROCESSES
from tests.env.hosted.playing import hosting, play, step
from tests.env.hosted.targets import BOMB_S, SECRET, Target, has_succeeded, processes_of_hosts
from tests.support.waiting import eventually

OPEN_OTHERWISE = (
    *("NATS on loopback", "PostgreSQL on loopback", "a service's monitoring port", "an abstract unix socket", "a unix socket in a folder"),
    *("a file of the service", "a file in the machine's /tmp", "the root of another process", "the machine's users"),
    *("a key in the service's HOME", "a signal to the service", "the command lines of others", "shared memory of the machine"),
)
"""Attempts that get what they want from a process with the service's rights; they harm nothing."""


def intruder(python: str, *, computes: bool = False) -> HostedConfig:
    name = "ComputingIntruder" if computes else "Intruder"
    return HostedConfig(python=python, environment=f"guest:{name}", memory_mib=512, scratch_mib=64, max_processes=32)


async def said(executor: EnvironmentExecutor, attempt: str, *, name: str = "guest") -> str:
    (outcome,) = await play(executor, [step(attempt)], name=name)
    assert isinstance(outcome, Continued), outcome
    return outcome.messages[0].content


async def test_nothing_outside_is_reached(workers: Workers, python: str, sandbox: Confinement, target: Target) -> None:
    async with hosting(workers, sandbox=sandbox, guest=intruder(python)) as executor:
        attempts = NETWORK | FILES | PROCESSES
        answers = {name: await said(executor, target.aimed(attempt)) for name, attempt in attempts.items()}
    assert {name: answer for name, answer in answers.items() if has_succeeded(answer)} == {}
    assert not target.reached.is_set()
    assert len(answers) == 45


@pytest.mark.skipif(os.geteuid() != 0, reason="another user has fewer rights to lose")
async def test_attempts_would_succeed_without_the_sandbox(workers: Workers, python: str, target: Target) -> None:
    attempts = {name: (NETWORK | FILES | PROCESSES)[name] for name in OPEN_OTHERWISE}
    async with hosting(workers, guest=intruder(python)) as executor:
        answers = {name: await said(executor, target.aimed(attempt)) for name, attempt in attempts.items()}
    assert [name for name, answer in answers.items() if not has_succeeded(answer)] == []


async def test_files_of_another_environment_are_not_found(workers: Workers, python: str, sandbox: Confinement) -> None:
    async with hosting(workers, sandbox=sandbox, guest=intruder(python), other=intruder(python)) as executor:
        (kept,) = await play(executor, [step(f"open('/tmp/mine', 'w').write('{SECRET}'); print(open('/tmp/mine').read())")], name="other")
        assert isinstance(kept, Continued) and kept.messages[0].content.strip() == SECRET
        places = "[*glob.glob('/tmp/**/mine', recursive=True), *glob.glob('/dev/shm/*'), '/proc/1/root/tmp/mine']"
        search = f"import glob\nfor one in {places}:\n    print(open(one).read())"
        assert SECRET not in await said(executor, search)


@pytest.mark.parametrize("name", BOMBS)
async def test_bomb_ends_with_its_own_environment(workers: Workers, python: str, sandbox: Confinement, name: str) -> None:
    hosted = {"guest": intruder(python, computes=True), "neighbour": intruder(python)}
    async with hosting(workers, BOMB_S, sandbox, **hosted) as executor:
        patient = EnvironmentExecutor(workers, 60.0, executor._hosts)
        assert await said(patient, "import sys\nsys.mark = 7\nprint('set')", name="neighbour") == "set\n"
        bombing = asyncio.ensure_future(play(executor, [step(BOMBS[name])]))
        assert await said(patient, "print(6 * 7)", name="neighbour") == "42\n"
        assert processes_of_hosts() or os.geteuid() != 0
        (outcome,) = await bombing
        assert _has_failed(outcome), outcome
        assert await said(patient, "import sys\nprint(sys.mark)", name="neighbour") == "7\n", "the neighbour was restarted"
        await eventually(lambda: _answers(patient))
    await eventually(lambda: not processes_of_hosts())


def _has_failed(outcome: Outcome) -> bool:
    """Whether the call was ended, or its code met a limit."""
    return isinstance(outcome, Failed) or (isinstance(outcome, Continued) and "GOT" not in outcome.messages[0].content)


async def _answers(executor: EnvironmentExecutor) -> bool:
    (outcome,) = await play(executor, [step("print(6 * 7)")])
    return isinstance(outcome, Continued) and outcome.messages[0].content == "42\n"
