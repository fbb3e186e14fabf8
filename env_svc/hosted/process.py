"""One host process with its children, called over its pipes, started on demand and restarted when it dies.

Every wait has a limit, and every call ends as an outcome: an answer, or a failure because its process was unavailable.
"""

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass

import structlog

from common.resilience.backoff import Backoff
from env_svc.calls import Call, EnvironmentJob, Outcome, failed
from env_svc.errors import WrongOptions
from env_svc.hosted import wire
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.start import HostFailed, HostStarter, HostUnavailable
from env_svc.hosted.wire import Hello, checked_hello, checked_outcome
from env_svc.registry import check_declared

log = structlog.get_logger()

MAX_REASON_CHARS = 300
RESTART = Backoff(first_s=0.5, max_s=30.0)
"""Pauses before a host process that died is started; an answer resets them."""


@dataclass(frozen=True)
class HostTimings:
    """Limits of waiting for a host process, in seconds. Tests pass shorter values."""

    start_timeout_s: float = 60.0
    grace_s: float = 5.0
    """Time for a cancelled call, or a process that is asked to end, before the process is killed."""
    poll_interval_s: float = 0.5
    """Interval at which the process's exit is polled."""
    restart: Backoff = RESTART


DEFAULT_TIMINGS = HostTimings()


@dataclass(frozen=True)
class _Pending:
    """A call without an answer."""

    call: Call
    answered: asyncio.Future[Outcome]


class HostProcess:
    """Takes calls and returns outcomes, many concurrently."""

    def __init__(
        self, name: str, hosted: HostedConfig, timings: HostTimings = DEFAULT_TIMINGS, confinement: Confinement | None = None
    ) -> None:
        """`confinement`: the sandbox of its processes; None: the machine has none."""
        self._name = name
        self._hosted = hosted
        self._starter = HostStarter(name, hosted, confinement)
        self._timings = timings
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._printing: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0
        self._killed: Process | None = None
        self._stopping = False
        self._starts = 0
        self._not_before = 0.0
        self.hello: Hello | None = None
        """The process's description of its environment; None until the process was ready once."""
        self.busy = 0
        """Number of pending calls, including those that wait for its start."""

    @property
    def is_ready(self) -> bool:
        return self._process is not None and self._process is not self._killed and self._process.returncode is None

    @property
    def _see_log(self) -> str:
        return "; the log of env_svc says why" if self._hosted.is_logged else ""

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises: HostUnavailable."""
        if not self.is_ready:
            await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Task[None]:
        if self._stopping:
            raise HostUnavailable("the service ends")
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(lambda starting: starting.cancelled() or starting.exception())  # for asyncio's log
        return self._starting

    async def stop(self) -> None:
        self._stopping = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._end()
        if self._printing is not None:
            await asyncio.gather(self._printing, return_exceptions=True)
        await self._starter.end()

    async def ask(self, job: EnvironmentJob, position: int) -> Outcome:
        """The outcome of one call. Its timeout begins when the process is ready, so that it excludes a start."""
        row = job.calls[position].row
        self.busy += 1
        try:
            async with asyncio.timeout(job.ends_at - time.monotonic()):
                await self.start()
            return await self._answer(job, position)
        except TimeoutError:
            return failed(f"environment '{job.name}' did not start before the deadline (row {row})", is_infrastructure=True, is_late=True)
        except HostUnavailable as error:
            return failed(f"environment '{job.name}' is unavailable (row {row}): {error}", is_infrastructure=True)
        finally:
            self.busy -= 1

    async def _answer(self, job: EnvironmentJob, position: int) -> Outcome:
        hello = self.hello
        if hello is None or not self.is_ready:
            raise HostUnavailable("its process ended as soon as it was ready")
        refused = [option for option in hello.operator_options if option in job.options]
        if refused:
            return failed(f"environment '{job.name}': option '{refused[0]}' is given by the operator, not by a task")
        try:
            check_declared(job.name, job.options, is_declared=hello.declares_options)
        except WrongOptions as error:
            return failed(str(error))
        call = job.calls[position]
        number = self._last_id = self._last_id + 1
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(call, answered)
        try:
            self._send({"id": number, "name": job.name, "options": job.options | self._hosted.options, "call": wire.encode(call)})
            async with asyncio.timeout(job.timeout_s):
                return await answered
        except TimeoutError:
            self._give_up(number)
            reason = f"environment '{job.name}' did not answer within {job.timeout_s:g} s (row {call.row})"
            return failed(reason, is_infrastructure=True, is_late=True)
        except asyncio.CancelledError:
            self._give_up(number)
            raise

    def _give_up(self, number: int) -> None:
        if number not in self._pending:
            return
        process = self._process
        if self.hello is not None and self.hello.cpu_bound:  # it hears nothing while it computes
            self._kill(process)
            return
        self._send({"cancel": number})
        asyncio.get_running_loop().call_later(self._timings.grace_s, self._kill_unless_answered, process, number)

    def _kill_unless_answered(self, process: Process | None, number: int) -> None:
        if number in self._pending and process is self._process:
            self._kill(process)

    def _kill(self, process: Process | None) -> None:
        """Kill the process, with its children, which may hold its output open."""
        if process is not None:
            self._killed = process
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _end_with(self, process: Process) -> None:
        """End the children of `process` once it has exited: they hold its pipes open, so that `wait` and `_read` would not return."""
        while process.returncode is None:  # noqa: ASYNC110  asyncio offers no event for it
            await asyncio.sleep(self._timings.poll_interval_s)
        self._kill(process)
        await asyncio.sleep(self._timings.grace_s)
        process._transport.close()  # pyright: ignore  # one that has left its group was not killed; no public way closes the pipe

    async def _exit_status(self, process: Process) -> int:
        """The exit status of a process that has closed its output. It is killed only if it does not exit by itself."""
        try:
            async with asyncio.timeout(self._timings.grace_s):
                return await process.wait()
        except TimeoutError:
            self._kill(process)
            return await process.wait()

    async def _end_failed(self, process: Process) -> None:
        """Kill a process that did not become ready; return when it has ended, at most after `grace_s`."""
        self._kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timings.grace_s):
                await process.wait()
        process._transport.close()  # pyright: ignore  # as in `_end_with`

    def _send(self, frame: wire.Frame) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(wire.pack(frame))

    async def _start(self) -> None:
        if self._reading is not None and not self._reading.done():  # the one before was killed, or left children behind
            self._kill(self._process)
            await asyncio.wait([self._reading])
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        self._starts += 1
        self._not_before = time.monotonic() + self._timings.restart.pause_s(self._starts)
        process = await self._starter.start()
        self._printing = asyncio.ensure_future(self._starter.log_prints(process))
        try:
            assert process.stdout is not None
            async with asyncio.timeout(self._timings.start_timeout_s):
                first = await wire.receive_frame(process.stdout, self._hosted.max_frame_bytes)
            if "refused" in first:
                raise HostFailed(str(first["refused"])[: wire.MAX_REFUSAL_CHARS])
            if first.get("ready") != wire.PROTOCOL:
                reported = repr(first.get("ready"))[:20]
                raise HostUnavailable(f"its host has protocol {reported}, expected {wire.PROTOCOL}: versions of marlaas differ")
            self.hello = checked_hello(first)
        except EOFError:
            status = await self._exit_status(process)
            raise HostFailed(f"its process ended before it was ready (exit status {status}){self._see_log}") from None
        except TimeoutError:
            await self._end_failed(process)
            raise HostUnavailable(f"its process was not ready in {self._timings.start_timeout_s:g} s{self._see_log}") from None
        except HostFailed:
            await self._end_failed(process)
            raise
        except ValueError as error:
            await self._end_failed(process)
            raise HostFailed(_invalid(error)) from None
        except BaseException:
            self._kill(process)
            process._transport.close()  # pyright: ignore  # nothing else would close its pipes before the event loop ends
            raise
        self._process = process
        self._reading = asyncio.ensure_future(self._read(process, process.stdout))
        log.info("host_started", environment=self._name, process=process.pid)

    async def _read(self, process: Process, output: asyncio.StreamReader) -> None:
        reason = ""
        ending = asyncio.create_task(self._end_with(process))
        try:
            while True:
                frame = await wire.receive_frame(output, self._hosted.max_frame_bytes)
                pending = self._pending.get(frame["id"])
                if pending is None:
                    raise ValueError("it answers no call")
                outcome = checked_outcome(wire.decode(frame["outcome"]), pending.call)
                del self._pending[frame["id"]]
                if not pending.answered.done():
                    pending.answered.set_result(outcome)
                self._starts = 0
        except EOFError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            reason = _invalid(error)
            self._kill(process)
        finally:
            ending.cancel()
        status = await self._exit_status(process)
        self._gone(process, reason or f"its process ended (exit status {status})")

    def _gone(self, process: Process, reason: str) -> None:
        self._process = None
        if not self._stopping:
            log.warning("host_lost", environment=self._name, process=process.pid, reason=reason, calls=len(self._pending))
            if self._hosted.is_kept:
                self._begin()
        pending, self._pending = self._pending, {}
        for one in pending.values():
            if not one.answered.done():
                one.answered.set_exception(HostUnavailable(reason))

    async def _end(self) -> None:
        process, reading = self._process, self._reading
        if process is None or reading is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self._timings.grace_s):
                await process.wait()
        except TimeoutError:
            self._kill(process)
        await asyncio.gather(reading, return_exceptions=True)
        log.info("host_stopped", environment=self._name)


def _invalid(error: Exception) -> str:
    """Failure reason for an invalid frame; the error may quote arbitrary text."""
    return f"the host process sent an invalid frame: {' '.join(str(error)[:MAX_REASON_CHARS].split())}"
