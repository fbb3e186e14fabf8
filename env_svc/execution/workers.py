"""Worker processes for environments that compute: the door to pebble.

Each worker is a pebble pool of one process. Workers share no lock, so a crash, a hang or a kill affects one worker only. A job is a list
of calls for one environment; calls left after its slice of time become jobs of one call, spread over the workers. A call that
exceeds its timeout has its worker killed. `common/fairness/fair_queue.py` decides
whose job is next. No task occupies all workers, so a task with slow calls leaves a worker to the others.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import aclosing, suppress
from dataclasses import replace

import structlog
from pebble import ProcessExpired, ProcessPool

from common.errors import Fatal
from common.fairness.fair_slots import FairSlots
from env_svc.calls import Call, EnvironmentJob, Outcome, failed
from env_svc.completion import as_completed_batches
from env_svc.execution.worker_process import SLICE_S, WORKER_VARIABLES, prepare, ready, work
from env_svc.registry import modules

START_TIMEOUT_S = 120.0
GRACE_S = 30.0
"""Seconds after a call's timeout in which pebble must end the call; otherwise the worker is replaced."""

log = structlog.get_logger()


class _WorkerDied(Exception):
    """The worker process ended without an answer."""


class _DeadlinePassed(Exception):
    """The job's deadline passed before a worker was free."""


class _NoWorker(Exception):
    """The worker process had died before the call."""


class Workers:
    """A fixed number of worker processes, shared fairly by tasks."""

    def __init__(self, count: int, families: Sequence[str], memory_bytes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # Includes the imports of `__main__`, which multiprocessing reruns in every new worker.
        context.set_forkserver_preload(["env_svc.execution.worker_process", "common.runtime.service", *modules(families)])

        def new_pool() -> ProcessPool:
            return ProcessPool(max_workers=1, initializer=prepare, initargs=(tuple(families), memory_bytes), context=context)

        self._all = [_Worker(new_pool) for _ in range(count)]
        self._free = list(self._all)
        self._slots = FairSlots(count, max(1, count - 1))

    @property
    def busy(self) -> int:
        return self._slots.running

    @property
    def waiting(self) -> int:
        return self._slots.waiting

    async def start(self) -> None:
        """Start the workers and wait for their imports. Raises: Fatal if one does not start."""
        # Read when the fork server starts, and inherited by every worker.
        os.environ.update(WORKER_VARIABLES)
        async with asyncio.TaskGroup() as starting:
            for worker in self._all:
                starting.create_task(worker.start())

    async def stop(self) -> None:
        """Kill the workers; calls in flight are lost."""
        await asyncio.gather(*(worker.stop() for worker in self._all))

    async def run(self, job: EnvironmentJob) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        """(position in `job.calls`, outcome) of every call, in lists as they become ready."""
        outcomes = await self._run_slice(job, job.calls)
        if outcomes:
            yield list(enumerate(outcomes))
        rest = range(len(outcomes), len(job.calls))
        async with aclosing(as_completed_batches(self._run_one(job, position) for position in rest)) as batches:
            async for batch in batches:
                yield batch

    async def _run_slice(self, job: EnvironmentJob, calls: Sequence[Call]) -> list[Outcome]:
        """Outcomes of the first calls; empty if the worker died during one of several calls, as it is unknown which one."""
        held: list[float] = []
        try:
            return await self._on_worker(job, calls, held)
        except _DeadlinePassed:
            return [
                failed(f"environment '{job.name}' had no free worker process before the deadline", is_infrastructure=True) for _ in calls
            ]
        except TimeoutError:
            reason, is_late = f"did not answer within {job.timeout_s:g} s", True
        except _WorkerDied as error:
            reason, is_late = str(error), False
        log.warning("worker_lost", environment=job.name, reason=reason, calls=len(calls))
        if len(calls) > 1:
            return []
        reason = f"environment '{job.name}' {reason} (row {calls[0].row}); its worker process was replaced"
        return [replace(failed(reason, is_infrastructure=True, is_late=is_late), worked_s=sum(held))]

    async def _run_one(self, job: EnvironmentJob, position: int) -> tuple[int, Outcome]:
        outcomes = await self._run_slice(job, [job.calls[position]])
        return position, outcomes[0]

    async def _on_worker(self, job: EnvironmentJob, calls: Sequence[Call], held: list[float]) -> list[Outcome]:
        """Run calls on a worker; add the seconds for which it was occupied to `held`, even on an exception."""
        await self._slots.acquire(job.claimant)
        began, worker = time.monotonic(), self._take(job.claimant.task)
        try:
            if began > job.ends_at:
                raise _DeadlinePassed
            return await worker.run(job, calls)
        finally:
            worker.last_task = job.claimant.task
            self._free.append(worker)
            held.append(time.monotonic() - began)
            self._slots.release(job.claimant, held[-1])

    def _take(self, task: str) -> "_Worker":
        """A free worker, preferably one that served this task last: it has the task's data sets in memory."""
        worker = next((worker for worker in self._free if worker.last_task == task), self._free[0])
        self._free.remove(worker)
        return worker


class _Worker:
    """One worker process, replaced when it dies."""

    def __init__(self, new_pool: Callable[[], ProcessPool]) -> None:
        self.last_task = ""
        self._new_pool = new_pool
        self._pool = new_pool()

    async def start(self) -> None:
        try:
            # In a thread: the first start waits for the fork server to import everything.
            future = await asyncio.to_thread(self._pool.schedule, ready)
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wrap_future(future)
        except (TimeoutError, RuntimeError, BrokenProcessPool, ProcessExpired) as error:
            raise Fatal(f"a worker process did not start: {type(error).__name__}: {error}; its standard error says why") from None

    async def stop(self) -> None:
        await asyncio.to_thread(_end, self._pool)

    async def run(self, job: EnvironmentJob, calls: Sequence[Call]) -> list[Outcome]:
        """Raises: TimeoutError when a call took too long and its process was killed, _WorkerDied."""
        try:
            return await self._run(job, calls)
        except _NoWorker:  # the process died before it began, so nothing was lost
            await self._replace()
        try:
            return await self._run(job, calls)
        except _NoWorker:
            raise _WorkerDied("found no live worker process") from None

    async def _run(self, job: EnvironmentJob, calls: Sequence[Call]) -> list[Outcome]:
        try:
            future = self._pool.schedule(work, (job.name, job.options, list(calls)), timeout=job.timeout_s + SLICE_S)
        except RuntimeError:
            raise _NoWorker from None
        overdue = asyncio.timeout(job.timeout_s + GRACE_S)
        try:
            async with overdue:
                return await asyncio.wrap_future(future)
        except ProcessExpired as error:
            raise _WorkerDied(f"ended its worker process (exit status {error.exitcode})") from None
        except BrokenProcessPool:
            raise _NoWorker from None
        except TimeoutError:
            if overdue.expired():
                log.error("worker_pool_stuck", environment=job.name)
                await self._replace()
            raise

    async def _replace(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await asyncio.to_thread(_end, self._pool)
        self._pool = self._new_pool()


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()
