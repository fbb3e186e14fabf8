"""A guardian: a second process that kills this one if it gives no sign of life.

A thread cannot do that if the whole process is stopped (SIGSTOP), or a call never releases the GIL. The guardian counts checks without
a sign instead of time, so that a process is not killed when a paused container, with the guardian in it, continues.

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
"""Maximum seconds between two signs, and between two checks."""
LOOKS = 10
"""Minimum checks without a sign before the process is killed."""
SIGN = b"."
CHUNK = 4096


@contextmanager
def guarded(limit_s: float, *, stopped_s: float) -> Generator[Callable[[], None]]:
    """For the block's duration, a guardian kills this process (SIGKILL) if the yielded function was not called for `limit_s` seconds, or
    for `stopped_s` if the process is stopped.

    The guardian does not inherit locks and other descriptors. If the guardian is killed, this process continues without it. Raises:
    OSError if no process can be started.
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
    """Kill the parent `pid` after `limit_s` seconds without a byte from `signs`, or `stopped_s` if it is stopped. Returns when the parent
    has exited or closed the pipe.
    """
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
    """Whether a process is stopped, by a signal or by a debugger."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
