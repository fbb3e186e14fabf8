"""Play hosted environments through an executor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common import spec
from common.fairness.fair_queue import Claimant
from common.resilience.backoff import Backoff
from env_svc.calls import Call, Failed, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.pool import HostPool
from env_svc.hosted.process import HostTimings

HASTY = HostTimings(grace_s=0.5, poll_interval_s=0.1, restart=Backoff(0.1, 30.0))


@asynccontextmanager
async def hosting(
    workers: Workers,
    timeout_s: float = 60.0,
    sandbox: Confinement | None = None,
    timings: HostTimings = HASTY,
    **hosted: HostedConfig,
) -> AsyncIterator[EnvironmentExecutor]:
    hosts = HostPool(hosted, timings, sandbox)
    try:
        await hosts.start()
        yield EnvironmentExecutor(workers, timeout_s, hosts)
    finally:
        await hosts.stop()


async def play(
    executor: EnvironmentExecutor,
    calls: list[Call],
    *,
    name: str = "guest",
    task: str = "t",
    timeout_s: float | None = None,
    **options: object,
) -> list[Outcome]:
    """Outcomes of one message's calls. `timeout_s`: of these calls alone, if it is shorter than the executor's."""
    found: dict[int, Outcome] = {}
    environment = spec.EnvironmentSection(name=name, options=options)  # pyright: ignore
    limits = spec.Limits(max_turn_s=timeout_s)
    async for batch in executor.run(Claimant("a", task), environment, calls, 500.0, limits):
        found.update(batch)
    return [found[position] for position in range(len(calls))]


def step(text: str) -> StepCall:
    return StepCall(0, b"\x81\xa3row\x00", Reply(text))


def reason(outcome: Outcome, *, is_infrastructure: bool = True) -> str:
    assert isinstance(outcome, Failed)
    assert outcome.is_infrastructure == is_infrastructure
    return outcome.reason


async def scored(executor: EnvironmentExecutor, text: str = "word") -> Scored:
    """Score of one reply."""
    (outcome,) = await play(executor, [step(text)])
    assert isinstance(outcome, Scored)
    return outcome
