"""Pool of hosted environments: their processes, and the fair order of calls to them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from common.fairness.fair_slots import FairSlots
from env_svc.calls import EnvironmentJob, Outcome, failed
from env_svc.completion import as_completed_batches
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.process import DEFAULT_TIMINGS, HostProcess, HostTimings
from env_svc.hosted.start import HostUnavailable
from env_svc.hosted.wire import Hello
from env_svc.registry import check_argument

MAX_CONCURRENT_CALLS = 1024
"""Maximum concurrent calls of a process if its environment does not compute; an environment that computes gets one call at a time."""

log = structlog.get_logger()


class HostedEnvironment:
    """One environment with its processes."""

    def __init__(self, name: str, hosted: HostedConfig, timings: HostTimings, confinement: Confinement | None) -> None:
        self.name = name
        self._processes = [HostProcess(name, hosted, timings, confinement) for _ in range(hosted.processes)]
        self._turns: _CallSlots | None = None
        """None until a process has reported whether the environment computes."""

    async def start(self) -> None:
        """Raises: HostUnavailable when no process is ready."""
        results = await asyncio.gather(*(process.start() for process in self._processes), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == len(self._processes):
            raise errors[0]

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))

    def names(self) -> list[str]:
        """Names that a task may write, one per argument; only the name without an argument until a process has reported its arguments."""
        arguments = [] if self._hello is None else self._hello.arguments
        return [f"{self.name}:{argument}" for argument in arguments] or [self.name]

    @property
    def _hello(self) -> Hello | None:
        """The environment's description by its processes; None until one was ready once."""
        return next((process.hello for process in self._processes if process.hello is not None), None)

    async def components(self, name: str, timeout_s: float) -> Sequence[str]:
        """Names of its reward's components; empty until a process was ready once. Raises: WrongOptions if `name` has a wrong argument."""
        if self._hello is None:
            with suppress(HostUnavailable, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.start()
        known = self._hello
        if known is None:
            return ()
        check_argument(name, known.arguments)
        return known.components

    def run(self, job: EnvironmentJob) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        """(position in `job.calls`, outcome) of every call, in lists as they become ready."""
        return as_completed_batches(self._run_one(job, position) for position in range(len(job.calls)))

    async def _run_one(self, job: EnvironmentJob, position: int) -> tuple[int, Outcome]:
        try:
            async with asyncio.timeout(job.ends_at - time.monotonic()):
                if self._hello is None:  # a process knows whether it computes, and so how many concurrent calls it takes
                    await self.start()
                turns = self._take_turns()
                await turns.acquire(job.claimant)
        except TimeoutError:
            reason = f"environment '{job.name}' had no free process before the deadline"
            return position, failed(reason, is_infrastructure=True, is_late=True)
        except HostUnavailable as error:
            reason = f"environment '{job.name}' is unavailable (row {job.calls[position].row}): {error}"
            return position, failed(reason, is_infrastructure=True)
        began = time.monotonic()
        try:
            process = min(self._processes, key=lambda one: (one.busy >= turns.max_concurrent, not one.is_ready, one.busy))
            outcome = await process.ask(job, position)
            return position, replace(outcome, worked_s=time.monotonic() - began)
        finally:
            turns.release(job.claimant, time.monotonic() - began)

    def _take_turns(self) -> "_CallSlots":
        if self._turns is None:
            assert self._hello is not None
            self._turns = _CallSlots(1 if self._hello.cpu_bound else MAX_CONCURRENT_CALLS, len(self._processes))
        return self._turns


class _CallSlots(FairSlots):
    """Slots for calls, granted in fair order: `max_concurrent` for each process. No task has all of them."""

    def __init__(self, max_concurrent: int, processes: int) -> None:
        self.max_concurrent = max_concurrent
        super().__init__(max_concurrent * processes, max(1, max_concurrent * processes - 1))


class HostPool:
    """All hosted environments of this replica."""

    def __init__(
        self, hosted: Mapping[str, HostedConfig], timings: HostTimings = DEFAULT_TIMINGS, confinement: Confinement | None = None
    ) -> None:
        """`confinement`: sandbox for all environments without `sandbox = false` in their table; None: they run as the service's user."""
        self._environments = {name: HostedEnvironment(name, one, timings, confinement) for name, one in hosted.items()}

    @property
    def families(self) -> list[str]:
        return sorted(self._environments)

    def environments(self) -> list[str]:
        """All names that a task may write."""
        return [name for one in self._environments.values() for name in one.names()]

    def find(self, name: str) -> HostedEnvironment | None:
        return self._environments.get(name.partition(":")[0])

    async def start(self) -> None:
        """Start all processes; one that fails to start is retried at its next call."""
        for name, one in self._environments.items():
            try:
                await one.start()
            except HostUnavailable as error:
                log.warning("host_away", environment=name, reason=str(error))

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._environments.values()))


NO_HOSTS = HostPool({})
