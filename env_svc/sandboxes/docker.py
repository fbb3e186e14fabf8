"""Sandbox `docker`: CPython in a container that lives for one run. The door to Docker.

A container has no network, no capabilities, a read-only root, an empty /tmp, no environment variables, and limits on memory
and processes. Starting one takes almost a second, so some are kept warm: each waits for its code on standard input, and
exits when that closes because its service is gone.
"""

import asyncio
import contextlib
import functools
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import docker
import requests
import structlog
from docker.errors import DockerException, NotFound

from common.errors import Fatal
from common.resilience.event_loop import TaskSet
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes.interpreter import MAX_FILE_BYTES, READY, Rlimits, cpu_limit_s, prelude, standard_input
from env_svc.sandboxes.sandbox import MIB, Bounds, CapturedOutput, OutputLimitExceeded, RunResult, Sandbox, Stopped, run_result

USER = "65534:65534"
COMMAND = ["/usr/bin/env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "python3", "-I", "-S", "-c", prelude()]
LABEL = "marlaas.sandbox"
ROOM_BYTES = 32 * MIB
"""Memory of the interpreter and /tmp, added to the code's limit."""
ENGINE_TIMEOUT_S = 60
START_TIMEOUT_S = 30.0
FRAME = struct.Struct(">BxxxI")
"""Header of each piece of output: its stream and size."""
STANDARD_ERROR = 2

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True)
class _Container:
    """A container that waits for its code."""

    id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class DockerSandbox(Sandbox):
    """Sandbox with at most `runs` concurrent runs; `warm` containers with the default bounds wait for code."""

    name = "docker"

    def __init__(self, url: str, image: str, runs: int, warm: int) -> None:
        self._url = url
        self._image = image
        self._runs = asyncio.Semaphore(runs)
        self._max_warm = warm
        self._warm: list[_Container] = []
        self._warming = 0
        self._side_work = TaskSet()
        self._is_closed = False

    @functools.cached_property
    def _engine(self) -> Any:  # of the SDK, which is not typed
        return docker.APIClient(base_url=self._url, timeout=ENGINE_TIMEOUT_S, version="auto")

    @property
    def meaning(self) -> str:
        return "CPython in a container that lives for one run, without a network"

    async def start(self) -> None:
        try:
            await self._ask(lambda engine: engine.inspect_image(self._image))
            await self._sweep()
        except NotFound:
            raise Fatal(f"the sandbox 'docker' has no image {self._image}: docker pull {self._image}") from None
        except SandboxUnavailable as error:
            raise Fatal(f"the sandbox 'docker' does not work: {error}") from None
        await self._try_out("docker")
        await asyncio.gather(*(self._fill() for _ in range(self._max_warm)), *self._side_work)

    async def run(self, source: str, bounds: Bounds) -> RunResult:
        async with self._runs, self._container(bounds) as container:
            limits = Rlimits(bounds.memory_bytes, cpu_limit_s(bounds))
            printed = CapturedOutput(bounds.output_bytes)
            stopped = await _run_to_end(container, standard_input(source, limits), printed, bounds)
            status = None if stopped is not None else await self._status(container)
            return run_result(printed, stopped, status)

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*self._side_work, return_exceptions=True)
        warm, self._warm = self._warm, []
        await asyncio.gather(*(self._remove(container) for container in warm), return_exceptions=True)
        if "_engine" in vars(self):  # otherwise no connection was made
            await asyncio.to_thread(self._engine.close)

    # ------------------------------------------------------------------------------------------------------ containers

    @contextlib.asynccontextmanager
    async def _container(self, bounds: Bounds) -> AsyncGenerator[_Container]:
        """A container for one run, a warm one if its bounds are the defaults; it is removed afterwards, in the background."""
        is_default = (bounds.memory_bytes, bounds.processes) == (Bounds().memory_bytes, Bounds().processes)
        container = self._warm.pop(0) if is_default and self._warm else await self._create(bounds)
        try:
            yield container
        finally:
            self._in_background(self._remove(container))
            if is_default:
                self._in_background(self._fill())

    def _in_background(self, work: Any) -> None:
        if self._is_closed:
            work.close()
            return
        self._side_work.start(work)

    async def _fill(self) -> None:
        if self._is_closed or len(self._warm) + self._warming >= self._max_warm:
            return
        self._warming += 1
        try:
            self._warm.append(await self._create(Bounds()))
        except SandboxUnavailable as error:  # the next run reports it to its caller
            log.warning("sandbox_not_warmed", reason=str(error))
        finally:
            self._warming -= 1

    async def _create(self, bounds: Bounds) -> _Container:
        host = {
            "network_mode": "none",
            "read_only": True,
            "mem_limit": bounds.memory_bytes + ROOM_BYTES,
            "memswap_limit": bounds.memory_bytes + ROOM_BYTES,
            "pids_limit": bounds.processes,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "tmpfs": {"/tmp": f"size={MAX_FILE_BYTES},mode=1777,nosuid,nodev,noexec"},
            "ipc_mode": "private",
            "shm_size": MAX_FILE_BYTES,
            "log_config": {"Type": "none"},
        }
        config = await self._ask(
            lambda engine: engine.create_container(
                self._image,
                entrypoint=COMMAND,
                user=USER,
                working_dir="/tmp",
                stdin_open=True,
                labels={LABEL: "1"},
                host_config=engine.create_host_config(**host),
            )
        )
        try:
            raw = await self._ask(lambda engine: _attached(engine, config["Id"]))
            reader, writer = await asyncio.open_connection(sock=raw)
            await self._ask(lambda engine: engine.start(config["Id"]))
        except BaseException:
            await asyncio.shield(self._ask(lambda engine: engine.remove_container(config["Id"], force=True)))
            raise
        return _Container(config["Id"], reader, writer)

    async def _status(self, container: _Container) -> int:
        """The exit status of a container whose output has ended."""
        try:
            return await self._ask(lambda engine: engine.wait(container.id)["StatusCode"])
        except NotFound:  # a replica that started at this moment has swept it
            raise SandboxUnavailable("Docker: the container was removed before it could be asked how its run ended") from None

    async def _remove(self, container: _Container) -> None:
        # Closing alone leaves the connection open, since the SDK holds it too. The engine waits for its unread output to be read, and
        # would delay the removal for a minute.
        with contextlib.suppress(OSError):
            container.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        container.writer.close()
        with contextlib.suppress(NotFound, SandboxUnavailable):
            await self._ask(lambda engine: engine.remove_container(container.id, force=True))

    async def _sweep(self) -> None:
        """Remove containers of killed replicas, which exited when their standard input closed."""
        found = await self._ask(lambda engine: engine.containers(all=True, filters={"label": LABEL, "status": "exited"}))
        for one in found:
            with contextlib.suppress(NotFound, SandboxUnavailable):  # another replica may remove it too
                await self._ask(lambda engine, left=one["Id"]: engine.remove_container(left, force=True))

    async def _ask(self, question: Callable[[Any], T]) -> T:
        """The engine's answer. Raises: NotFound, SandboxUnavailable."""
        try:
            return await asyncio.to_thread(lambda: question(self._engine))
        except NotFound:
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            raise SandboxUnavailable(f"Docker: {str(error)[:300]}") from error


def _attached(engine: Any, container: str) -> socket.socket:
    """The container's standard streams, as a socket of our own."""
    stream = engine.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    raw = socket.socket(fileno=os.dup(stream.fileno()))
    stream.close()
    raw.setblocking(False)
    return raw


async def _run_to_end(container: _Container, given: bytes, printed: CapturedOutput, bounds: Bounds) -> Stopped | None:
    """The limit that ended the run, if one did."""
    is_ready = False
    try:
        container.writer.write(given)
        async with asyncio.timeout(START_TIMEOUT_S) as timeout:
            async for stream, data in _pieces(container.reader):
                if not is_ready and stream != STANDARD_ERROR:  # which may overtake standard output on its way here
                    if not data.startswith(READY):
                        raise SandboxUnavailable(f"Docker: the interpreter did not start: {data.decode(errors='replace')[-300:]}")
                    is_ready, data = True, data.removeprefix(READY)
                    timeout.reschedule(asyncio.get_running_loop().time() + bounds.time_s)
                printed.add(data, is_error=stream == STANDARD_ERROR)
    except OutputLimitExceeded:
        return "output"
    except TimeoutError:
        if is_ready:
            return "time"
        raise SandboxUnavailable(f"Docker: the interpreter did not start within {START_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise SandboxUnavailable(f"Docker: {error}") from error
    if not is_ready:
        raise SandboxUnavailable(f"Docker: the interpreter ended before its code began: {printed.error[-300:]}")
    return None


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number of the stream, bytes) of the output, until the container ends."""
    while True:
        try:
            stream, size = FRAME.unpack(await reader.readexactly(FRAME.size))
            yield stream, await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return
