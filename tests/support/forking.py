"""Services of tests, forked from a process that has imported what they need: imports, of seconds each, are made once a run's process.

As `marlaas up` does it (`marlaas/stack/preloading.py`). A service is spawned instead if its variables differ in more than settings.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import BinaryIO

from marlaas.stack import preloading

LATE = (preloading.SETTING, "PG")
"""What variables begin with that are read when a service starts, or connects, and not when a module is imported."""
SERVE = "import socket, sys; from marlaas.stack import preloading; preloading._serve(socket.socket(fileno=int(sys.argv[1])), [])"


class Forked:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises: TimeoutExpired."""
        if (status := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ended)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """Started apart, as this process may have threads; it ends when this process closes its end of the socket."""

    def __init__(self) -> None:
        self._variables = _early(os.environ)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", SERVE, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        atexit.register(process.wait)
        atexit.register(self._requests.close)  # before it is waited for

    def fork(self, package: str, environment: Mapping[str, str], output: BinaryIO, leaves: Collection[int]) -> Forked | None:
        """The process of `python -m package`; None where it has to be spawned."""
        if package not in preloading.IMPORTS or _early(environment) != self._variables:
            return None
        request = preloading._Request(
            name=package,
            module=package,
            arguments=[],
            imports=list(preloading.IMPORTS[package]),
            env={name: value for name, value in environment.items() if name.startswith(LATE)},
            stop_signal=signal.SIGTERM,
            leaves=list(leaves),
            supervisor=os.getpid(),
        )
        socket.send_fds(self._requests, [request.model_dump_json().encode()], [output.fileno()])
        assert self._requests.recv(preloading.MAX_BYTES), "the parent that forks services has ended"
        preloading.prctl(preloading.PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._requests.send(preloading.FORK)
            return Forked(int(self._requests.recv(preloading.MAX_BYTES)))
        finally:
            preloading.prctl(preloading.PR_SET_CHILD_SUBREAPER, 0)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith((*LATE, "PYTEST_"))}


@cache
def parent() -> Parent:
    """One for each process that runs tests."""
    return Parent()
