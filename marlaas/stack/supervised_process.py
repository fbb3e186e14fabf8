"""One supervised process: started, monitored until ready, restarted when it dies, stopped on request.

    waiting → starting → ready → (dies) → restarting → starting …      and → stopping → stopped from anywhere
                  └→ faulty: died too often in a row; still restarted, with the maximum pause

A command that is expected to end (`until_done`) goes starting → done instead of ready.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from common.messages.lives import FAULTY_AFTER, WORKED_S
from common.resilience.backoff import Backoff
from common.resilience.event_loop import is_set_within
from marlaas.stack import os_processes
from marlaas.stack.preloading import ForkedProcess, Parent
from marlaas.stack.servers import HOST, Command, free_port
from marlaas.stack.state_files import Component, Condition, StackError, log_path

MAX_EXCEPTION_CHARS = 300
"""Maximum characters reported of an exception."""
FAULTY_AFTER_AT_START = 2
"""Successive deaths after which a process that was never ready is faulty: more attempts rarely help, and a user waits."""
RESTART = Backoff(first_s=0.5, max_s=30.0)
PROBE_EVERY_S = 0.1
HEALTH_EVERY_S = 1.0
BAD_SETTINGS = 2
"""Exit status of a service with invalid settings: a restart cannot help."""
MAX_LOG_BYTES = 64 * 1024**2
TAIL_BYTES = 64 * 1024

log = structlog.get_logger()

Probe = Callable[[int], Awaitable[bool]]
"""(HTTP port given to the process) → whether it is ready."""


@dataclass(frozen=True)
class ProcessSpec:
    """Command of a process, and its probes."""

    name: str
    command: Callable[[], Command]
    """Built at each start; may take a moment (a database is initialised here)."""
    is_ready: Probe
    is_well: Callable[[], Awaitable[bool]] | None = None
    """Health probe, called periodically once the process is ready; False restarts it, a missing answer does not."""
    until_done: bool = False
    grace_s: float = 20.0
    """Seconds from its stop signal to SIGKILL."""


class SupervisedProcess:
    """Keeps one process running. `component` is its published state; `changed` is called at each change."""

    def __init__(self, spec: ProcessSpec, data: Path, parents: Sequence[Parent], changed: Callable[[], None]) -> None:
        self.spec = spec
        self.component = Component(name=spec.name, since_s=time.time())
        self.settled = asyncio.Event()
        """Set once ready or done for the first time."""
        self._data = data
        self._parents = parents
        self._changed = changed
        self._deaths = 0
        self._ended = ""
        """How the previous process ended; the next one reports it (`common/runtime/lives.py`)."""
        self._ready_since = 0.0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run the process until it is done, or stopped."""
        while not self._stopping.is_set():
            try:
                outcome = await self._live()
            except Exception as error:  # a failed start counts as a death
                if self._stopping.is_set():
                    break
                log.exception("start_failed", component=self.spec.name)
                outcome = f"could not be started: {error}"
            if self._stopping.is_set():
                break
            if outcome == "done":
                self._set("done", took_s=time.time() - self.component.since_s)
                self.settled.set()
                return
            pause_s = self._count_death(outcome)
            await is_set_within(self._stopping, pause_s)
        self._set("stopped")

    def stop(self) -> None:
        """Request `run` to end the process and return."""
        self._stopping.set()

    async def _live(self) -> str:
        """Start the process and wait for its end; returns how it ended."""
        self._set("starting", took_s=None)
        started = time.monotonic()
        command = await asyncio.to_thread(self.spec.command)
        path = log_path(self._data, self.spec.name)
        port = free_port()
        process, log_start = await self._begin(command, path, port)
        self.component.http_port = port
        self._set("starting", process=os_processes.identify(process.pid))
        dying = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        probing = asyncio.ensure_future(self._until_ready(port))
        try:
            await asyncio.wait({dying, stopping, probing}, return_when=asyncio.FIRST_COMPLETED)
            if not dying.done() and not stopping.done():
                probing.result()  # raises the probe's exception: then the process cannot be used
                self._ready_since = time.monotonic()
                self._set("ready", took_s=self._ready_since - started)
                log.info("component_ready", component=self.spec.name, took_s=round(self.component.took_s or 0, 2))
                self.settled.set()
                probing = asyncio.ensure_future(self._until_ill())
                await asyncio.wait({dying, stopping, probing}, return_when=asyncio.FIRST_COMPLETED)
            if not dying.done():
                if not stopping.done():
                    log.error("component_ill", component=self.spec.name)
                await self._end(process, command, dying)
        finally:
            for waiting in (dying, stopping, probing):
                waiting.cancel()
            os_processes.end_group(process.pid)
        if self.spec.until_done and process.returncode == 0:
            return "done"
        if process.returncode == BAD_SETTINGS:
            self._deaths = FAULTY_AFTER
        words = last_words(path, log_start)
        if (status := process.returncode or 0) < 0:  # killed by a signal: its last log line is unrelated
            self._ended = f"killed by {signal.Signals(-status).name}"
            return f"{self._ended}; its last line: {words}"
        self._ended = f"exit status {status}: {words}"
        return self._ended

    async def _begin(self, command: Command, path: Path, port: int) -> tuple[asyncio.subprocess.Process | ForkedProcess, int]:
        """Fork or spawn the process; returns it, and the byte offset at which its log starts."""
        env = {**command.env, "MARLAAS_HTTP_PORT": str(port), "MARLAAS_PREDECESSOR": self._ended}
        with _open_log(path) as output:
            for parent in self._parents:
                if (forked := await parent.fork(command, env, output)) is not None:
                    return forked, output.tell()
            if self._stopping.is_set():  # while the parent was still importing
                raise StackError("it is to stop")
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | env,
                process_group=0,
                preexec_fn=os_processes.ends_with_parent(command.stop_signal, command.leaves),
            )
            return process, output.tell()

    async def _until_ready(self, port: int) -> None:
        if self.spec.until_done:
            await asyncio.Event().wait()
        while not await self.spec.is_ready(port):  # noqa: ASYNC110  another process can only be asked
            await asyncio.sleep(PROBE_EVERY_S)

    async def _until_ill(self) -> None:
        if self.spec.is_well is None:
            await asyncio.Event().wait()
        else:
            while await self.spec.is_well():  # noqa: ASYNC110  another process can only be asked
                await asyncio.sleep(HEALTH_EVERY_S)

    async def _end(self, process: asyncio.subprocess.Process | ForkedProcess, command: Command, dying: asyncio.Future[int]) -> None:
        self._set("stopping")
        with suppress(ProcessLookupError):
            process.send_signal(command.stop_signal)
        await asyncio.wait({dying}, timeout=self.spec.grace_s)
        if not dying.done():
            log.warning("killed", component=self.spec.name, after_s=self.spec.grace_s)
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await dying

    def _count_death(self, outcome: str) -> float:
        """Record a death; returns the seconds to pause before the next start."""
        component = self.component
        proven = component.condition == "ready" and time.monotonic() - self._ready_since > WORKED_S
        self._deaths = 1 if proven else self._deaths + 1
        faulty = self._deaths >= (FAULTY_AFTER if self.settled.is_set() else FAULTY_AFTER_AT_START)
        pause_s = RESTART.pause_s(self._deaths)
        log.error("component_died", component=self.spec.name, outcome=outcome, deaths=self._deaths, next_start_s=round(pause_s, 2))
        component.restarts += 1
        self._set("faulty" if faulty else "restarting", detail=outcome)
        return pause_s

    def _set(self, condition: Condition, **values: object) -> None:
        component = self.component
        if condition != component.condition:
            component.since_s = time.time()
        if condition in ("ready", "done"):
            component.detail = ""
        component.condition = condition
        if condition in ("restarting", "faulty", "stopped", "done"):
            component.process = component.http_port = None
        for name, value in values.items():
            setattr(component, name, value)
        self._changed()


def _open_log(path: Path) -> BinaryIO:
    """Open for appending; a large file is rotated first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def last_words(path: Path, start: int = 0) -> str:
    """The last error in a log from byte `start`, or else its last line."""
    lines = [line.strip() for line in tail(path, 200, start) if line.strip()]
    if not lines:
        return "its log is empty"
    for line in reversed(lines):
        with suppress(ValueError, AttributeError, TypeError, KeyError):
            fields = json.loads(line)
            if fields.get("level") == "error" and "error" in fields:
                return str(fields["error"])
            if fields.get("exception"):
                return raised(fields["exception"])
    return lines[-1]


def raised(exception: Sequence[Mapping[str, Any]]) -> str:
    """A structlog exception without its frames: the exception, then its causes."""
    return ", because of ".join(f"{one['exc_type']}: {one['exc_value']}"[:MAX_EXCEPTION_CHARS] for one in exception)


def tail(path: Path, lines: int, start: int = 0) -> list[str]:
    """The last lines of a large file, from byte `start`; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


async def answers_ready(port: int) -> bool:
    """Whether a service is ready, by /readyz."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.close()
        return b" 200 " in status
    except (OSError, TimeoutError):
        return False
