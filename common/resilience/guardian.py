"""A process beside this one that ends it when it gives no sign of life.

A thread cannot do that where the whole process is stopped (SIGSTOP), or a call keeps Python's interpreter for ever. The guardian counts
looks without a sign and not time, so that a container that was paused with both of them in it is not ended when it continues.

This module is also the guardian's program, with the standard library alone:
`python -I -S guardian.py DESCRIPTOR PID LIMIT_S STOPPED_S EVERY_S`.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_EVERY_S = 1.0
"""Maximum time between two signs, and between two looks."""
LOOKS = 10
"""Minimum looks without a sign before the process is ended."""
SIGN = b"."
CHUNK = 4096


@contextmanager
def guarded(limit_s: float, *, stopped_s: float) -> Generator[Callable[[], None]]:
    """Until the block ends, a guardian ends this process by SIGKILL when what is yielded was not called for `limit_s` seconds, or for
    `stopped_s` where the process is stopped.

    Locks and other descriptors are not inherited by the guardian. Where it is killed itself, nothing else happens. Raises: OSError where no
    process can be started.
    """
    every_s = min(MAX_EVERY_S, limit_s / LOOKS, stopped_s / LOOKS)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-I", "-S", __file__, *map(str, (reading, os.getpid(), limit_s, stopped_s, every_s))]
    guardian = subprocess.Popen(command, pass_fds=[reading], stdin=subprocess.DEVNULL, start_new_session=True, env={})
    os.close(reading)
    signed_s = float("-inf")

    def sign() -> None:
        nonlocal signed_s
        if time.monotonic() - signed_s >= every_s / 2:
            signed_s = time.monotonic()
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(writing, SIGN)

    try:
        yield sign
    finally:
        os.close(writing)
        guardian.kill()
        guardian.wait()


def watch(signs: int, pid: int, limit_s: float, stopped_s: float, every_s: float) -> None:
    """End the parent `pid` after `limit_s` without a byte from `signs`, or `stopped_s` where it is stopped; return when it has ended, or
    wants no guardian any more."""
    silent = 0
    while os.getppid() == pid:
        readable, _, _ = select.select([signs], [], [], every_s)
        if not readable:
            silent += 1
        elif os.read(signs, CHUNK):
            silent = 0
        else:
            return
        error = None
        if silent * every_s >= stopped_s and is_stopped(pid):
            error = f"it is stopped, and gave no sign of life for {stopped_s:.0f} s"
        elif silent * every_s >= limit_s:
            error = f"no sign of life for {limit_s:.0f} s: a call keeps Python's interpreter"
        if error is not None:
            line = json.dumps({"event": "ended_by_guardian", "level": "error", "pid": pid, "error": error})
            os.write(sys.stderr.fileno(), f"{line}\n".encode())
            os.kill(pid, signal.SIGKILL)
            return


def is_stopped(pid: int) -> bool:
    """By a signal, or by a debugger."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
