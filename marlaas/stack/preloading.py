"""Parents: processes that import services' modules once, then fork services. A fork takes milliseconds, the imports take seconds.

    supervisor → parent: imports, and has one thread, no event loop and no connection → child, which ends → service

The supervisor adopts the service (PR_SET_CHILD_SUBREAPER): it waits for the service and signals it, and the service ends with the
supervisor, like a spawned one. A service is spawned instead if it adds variables other than settings, or if a parent has died or has
several threads.
"""

import asyncio
import gc
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ctypes import CDLL
from importlib import import_module
from pkgutil import resolve_name
from typing import BinaryIO, NoReturn

import structlog
from pydantic import BaseModel

from common.runtime.process import thread_ids
from marlaas.stack import os_processes
from marlaas.stack.placement import Machine
from marlaas.stack.servers import Command

PR_SET_CHILD_SUBREAPER = 36
MAX_BYTES = 64 * 1024
"""Maximum bytes of a request: names of modules, and settings."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Variable that keeps NumPy from starting threads when it is imported."""
SETTING = "MARLAAS_"
"""Prefix of variables that a process reads at its start; others may be read by the interpreter or a library at load time."""

MIGRATIONS = ("alembic.command", "psycopg", "scheduler_svc.settings", "scheduler_svc.base.rights", "scheduler_svc.base.roles")
"""Imports of `scheduler_svc.migrate`."""
IMPORTS: dict[str, tuple[str, ...]] = {
    "scheduler_svc": ("scheduler_svc.service", "scheduler_svc.upkeep.outbox"),
    "env_svc": ("env_svc.replica",),
    "gateway_svc": ("gateway_svc.service", "uvloop"),
    "rollout_svc": ("rollout_svc.engine.start:preload", "rollout_svc.replica"),
    "trainer_svc": ("trainer_svc.service",),
}
"""Modules that a service imports at its start, or functions that import them, as `module:function`."""
EXECUTORS = ("rollout_svc", "trainer_svc")

FORK = b"fork"
_adopting = asyncio.Lock()
"""Held while orphans become children of this process."""
prctl = CDLL(None).prctl
log = structlog.get_logger()


def parents(machine: Machine) -> list[list[str]]:
    """Modules that each `Parent` imports. One parent forks all services but samplers and trainers. Without a GPU, another forks those."""
    executors = [module for service in EXECUTORS for module in IMPORTS[service]]
    others = [module for service, modules in IMPORTS.items() if service not in EXECUTORS for module in modules]
    return [[*MIGRATIONS, *others]] if machine.gpus else [executors, [*MIGRATIONS, *others]]


class _Request(BaseModel):
    """Request to fork a service."""

    name: str
    module: str
    arguments: list[str]
    imports: list[str]
    env: dict[str, str]
    stop_signal: int
    leaves: list[int]
    supervisor: int


class ForkedProcess:
    """A forked service, with the part of `asyncio.subprocess.Process` that supervision needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = os.pidfd_open(pid)

    async def wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._ended, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._ended)
        _, status = os.waitpid(self.pid, 0)  # noqa: ASYNC222  it has ended
        os.close(self._ended)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:  # its process id is not reused until it is waited for
            os.kill(self.pid, signum)


class Parent:
    """A process that imports `modules`, and forks services on request. Create it before this process has threads or an event loop."""

    def __init__(self, modules: Sequence[str], others: Iterable["Parent"] = ()) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arrange = os_processes.ends_with_parent(signal.SIGKILL)
        self._pid = os.fork()
        if self._pid == 0:
            arrange()
            for one in (self, *others):
                one._requests.close()
            _serve(theirs, list(modules))
        self._modules = frozenset(modules)
        theirs.close()
        self._requests.setblocking(False)
        self._forking = asyncio.Lock()
        self._is_closed = False

    async def fork(self, command: Command, env: dict[str, str], output: BinaryIO) -> ForkedProcess | None:
        """Fork `command` once its modules are imported; returns the process, or None if it has to be spawned. `env`: additional
        settings."""
        if self._is_closed or not command.imports or not self._modules.issuperset(command.imports):
            return None
        if command.argv[:2] != [sys.executable, "-m"] or not all(name.startswith(SETTING) for name in env):
            return None
        request = _Request(
            name=command.name,
            module=command.argv[2],
            arguments=command.argv[3:],
            imports=list(command.imports),
            env=env,
            stop_signal=command.stop_signal,
            leaves=list(command.leaves),
            supervisor=os.getpid(),
        )
        async with self._forking:
            pid = await self._forked(request.model_dump_json().encode(), output)
        return ForkedProcess(int(pid)) if pid else None

    async def _forked(self, request: bytes, output: BinaryIO) -> bytes:
        """Process id of the forked service as bytes; empty if the parent has ended."""
        loop = asyncio.get_running_loop()
        try:
            socket.send_fds(self._requests, [request], [output.fileno()])
            if await loop.sock_recv(self._requests, MAX_BYTES):  # the parent has finished its imports
                async with _adopting:
                    prctl(PR_SET_CHILD_SUBREAPER, 1)
                    try:
                        self._requests.send(FORK)
                        return await loop.sock_recv(self._requests, MAX_BYTES)
                    finally:
                        prctl(PR_SET_CHILD_SUBREAPER, 0)
        except ConnectionError:
            pass  # treated like the end of its messages
        if not self._is_closed:
            log.warning("spawned_instead", reason="the parent that forks services is gone, or has threads")
            self.close()
        return b""

    def close(self) -> None:
        """Kill the parent; services that it has forked are not affected."""
        if not self._is_closed:
            self._is_closed = True
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(requests: socket.socket, modules: list[str]) -> NoReturn:
    """Import modules, and fork services on request, until the supervisor has ended. In a forked process, run the service."""
    gc.disable()  # imports produce no garbage
    while True:
        if modules and not select.select([requests], [], [], 0)[0]:
            _import(modules.pop(0))
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 1)
        if not message:
            os._exit(0)
        request = _Request.model_validate_json(message)
        for module in request.imports:
            _import(module)
        gc.freeze()
        if len(thread_ids()) > 1:
            os._exit(1)
        requests.send(b"imported")
        requests.recv(MAX_BYTES)
        requests.send(_fork(request, requests, descriptors[0]))
        os.close(descriptors[0])


def _fork(request: _Request, requests: socket.socket, output: int) -> bytes:
    """Fork a service; returns its process id once the supervisor has adopted it, after the intermediate child has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ending = os.pidfd_open(os.getpid())
        if service := os.fork():
            os.write(writing, str(service).encode())
            os._exit(0)
        select.select([ending], [], [])
        requests.close()
        for descriptor in (reading, writing, ending):
            os.close(descriptor)
        _become(request, output)
    os.waitpid(child, 0)
    pid = os.read(reading, MAX_BYTES)
    os.close(reading)
    os.close(writing)
    return pid


def _import(module: str) -> None:
    given = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ |= ONE_THREAD
    with suppress(Exception):  # the service raises it too, and logs it
        if callable(found := resolve_name(module)):
            found()
    for name, value in given.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _become(request: _Request, output: int) -> NoReturn:
    """Run the service as `python -m` does; of the parent, it keeps only the imported modules."""
    os.setpgid(0, 0)
    os_processes.ends_with_parent(request.stop_signal, request.leaves, request.supervisor)()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ |= request.env
    _name(request.name)
    if "numpy.random" in sys.modules:  # Python's own generator reseeds itself after a fork
        sys.modules["numpy.random"].seed()
    gc.enable()
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    sys.exit()


def _name(name: str) -> None:
    """Set the name shown by `ps` and `top`. `SPT_NOENV` keeps the environment readable, by which a stack's processes are found."""
    os.environ["SPT_NOENV"] = "1"
    with suppress(ImportError):  # setproctitle is a dependency of vLLM
        import_module("setproctitle").setproctitle(f"marlaas {name}")
    del os.environ["SPT_NOENV"]
