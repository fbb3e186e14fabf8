"""Services as child processes of the tests."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from marlaas.stack.os_processes import ends_with_parent
from tests.support import forking
from tests.support.forking import Forked


def without_settings() -> dict[str, str]:
    """Environment variables of the tests, without the settings of a stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}


@contextmanager
def service_process(
    package: str, environment: Mapping[str, str], log: Path, leaves: Collection[int] = ()
) -> Generator[subprocess.Popen[bytes] | Forked]:
    """The service, killed at the end of the block; its output is appended to `log`. It does not start on the cores of `leaves`."""
    with log.open("ab") as output:
        process = forking.parent().fork(package, environment, output, leaves) or subprocess.Popen(
            [sys.executable, "-m", package],
            env=environment,
            stdout=output,
            stderr=output,
            preexec_fn=ends_with_parent(signal.SIGTERM, leaves) if leaves else None,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    """Whether the service that listens there is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def affinities(pid: int) -> dict[int, set[int]]:
    """Cores that each thread of a process may run on."""
    return {int(path.name): os.sched_getaffinity(int(path.name)) for path in Path(f"/proc/{pid}/task").iterdir()}
