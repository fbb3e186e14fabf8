"""A service with a crash point that is armed while it runs: `python -m bench.plex.real.faults.armed PIPE PACKAGE`.

What is written to the named pipe, as MARLAAS_CRASH_POINT has it, is armed at once (`common/resilience/crashpoints.py`). The time at which
the point is reached is appended to the file PIPE.reached, before the process dies or hangs there.
"""

import os
import runpy
import sys
import threading
import time
from pathlib import Path

from common.resilience import crashpoints

REACHED = ".reached"


def main(pipe: Path, package: str) -> None:
    armed: list[str] = []
    die = crashpoints.reached

    def reached(name: str) -> None:
        if name in armed:
            armed.remove(name)
            with pipe.with_name(pipe.name + REACHED).open("a") as file:
                file.write(f"{name} {time.time()}\n")
        die(name)

    def listen() -> None:
        while True:
            with pipe.open() as lines:  # blocks until another process writes
                for line in lines:
                    armed.append(line.partition(":")[0])
                    crashpoints.arm(line.strip())

    crashpoints.reached = reached
    threading.Thread(target=listen, name="armed", daemon=True).start()
    sys.argv = [package]
    runpy.run_module(package, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if not Path(sys.argv[1]).exists():
        os.mkfifo(sys.argv[1])
    main(Path(sys.argv[1]), sys.argv[2])
