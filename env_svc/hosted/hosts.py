"""All environments that run in processes of their own, and whose call goes next."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog

from env_svc.fairness import FairQueue
from env_svc.hosted.configuration import Hosted
from env_svc.hosted.process import Away, HostProcess
from env_svc.play import Outcome, failed
from env_svc.ready import as_ready
from env_svc.registry import check_argument
from env_svc.workers import Job

CALLS_AT_ONCE = 1024
"""Of a process whose environment does not compute; one that computes takes one at a time."""

log = structlog.get_logger()


class HostedEnvironment:
    """One environment with its processes."""

    def __init__(self, name: str, hosted: Hosted) -> None:
        self.name = name
        self._processes = [HostProcess(name, hosted) for _ in range(hosted.processes)]
        self._turns: FairQueue[asyncio.Future[None]] | None = None

    async def start(self) -> None:
        """Raises: Away when no process is ready."""
        results = await asyncio.gather(*(process.start() for process in self._processes), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == len(self._processes):
            raise errors[0]

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))

    def names(self) -> list[str]:
        """As a task may write them; its bare name until it has told its arguments."""
        arguments = () if self._told is None else self._told.arguments
        return [f"{self.name}:{argument}" for argument in arguments] or [self.name]

    @property
    def _told(self) -> HostProcess | None:
        """A process that was ready once, and so has told what all of them are."""
        return next((process for process in self._processes if process.cpu_bound is not None), None)

    async def components(self, name: str, timeout_s: float) -> Sequence[str]:
        """Of its reward; nothing until a process was ready once. Raises: WrongOptions when it does not take the argument in `name`."""
        if self._told is None:
            with suppress(Away, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.start()
        told = self._told
        if told is None:
            return ()
        check_argument(name, told.arguments)
        return told.components

    async def run(self, job: Job) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        """(position in `job.calls`, outcome) of every call, in lists as they become ready."""
        async with aclosing(as_ready(self._run_one(job, position) for position in range(len(job.calls)))) as batches:
            async for batch in batches:
                yield batch

    async def _run_one(self, job: Job, position: int) -> tuple[int, Outcome]:
        queue = self._queue()
        try:
            async with asyncio.timeout(job.ends_at - time.monotonic()):
                await self._acquire(queue, job.task)
        except TimeoutError:
            reason = f"environment '{job.name}' had no free process before the deadline"
            return position, failed(reason, is_infrastructure=True, is_late=True)
        try:
            # One that is there before one that must be started first.
            process = min(self._processes, key=lambda process: (process.busy, not process.is_ready))
            return position, await process.ask(job, position)
        finally:
            queue.done(job.task)
            _hand_out(queue)

    def _queue(self) -> FairQueue[asyncio.Future[None]]:
        """Kept when a process has said whether its environment computes; calls before that will fail together."""
        if self._turns is not None:
            return self._turns
        told = self._told
        one = 1 if told is not None and told.cpu_bound else CALLS_AT_ONCE
        queue: FairQueue[asyncio.Future[None]] = FairQueue(one * len(self._processes))
        if told is not None:
            self._turns = queue
        return queue

    async def _acquire(self, queue: FairQueue[asyncio.Future[None]], task: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.put(task, turn)
        _hand_out(queue)
        try:
            await turn
        except asyncio.CancelledError:
            queue.discard(task, turn)
            if turn.done() and not turn.cancelled():
                queue.done(task)
                _hand_out(queue)
            raise


class Hosts:
    """What the player asks whether an environment runs elsewhere."""

    def __init__(self, hosted: Mapping[str, Hosted]) -> None:
        self._environments = {name: HostedEnvironment(name, one) for name, one in hosted.items()}

    @property
    def families(self) -> list[str]:
        return sorted(self._environments)

    def environments(self) -> list[str]:
        """Every name that a task may write."""
        return [name for one in self._environments.values() for name in one.names()]

    def find(self, name: str) -> HostedEnvironment | None:
        return self._environments.get(name.partition(":")[0])

    async def start(self) -> None:
        """Start every process; one that does not come up is tried again when it is needed."""
        for name, one in self._environments.items():
            try:
                await one.start()
            except Away as error:
                log.warning("host_away", environment=name, reason=str(error))

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._environments.values()))


def _hand_out(queue: FairQueue[asyncio.Future[None]]) -> None:
    while (item := queue.take()) is not None:
        task, turn = item
        if turn.cancelled():
            queue.done(task)
            continue
        turn.set_result(None)


NO_HOSTS = Hosts({})
