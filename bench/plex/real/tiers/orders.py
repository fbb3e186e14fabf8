"""An executor in a process of its own: orders and answers, a line of JSON each, and its memory and processor time from outside."""

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

from bench.harness.measures import usage
from bench.harness.measures.memory import Private, private
from bench.harness.report import ROOT
from bench.harness.services import BenchError
from common.leases import Locks

ANSWER_S = 900.0
"""Maximum seconds until an answer, besides those for which an order may go on."""
GONE_S = 30.0
Answer = Callable[[str, list[str]], Awaitable[object]]


@dataclass(frozen=True)
class Play:
    """Which random sequences to play: those before `end`; none begins after `most_s`."""

    end: int
    seed: int
    most_s: float

    @classmethod
    def of(cls, given: list[str]) -> "Play":
        """Of the order `sequences END SEED SECONDS`."""
        end, seed, most_s = given
        return cls(int(end), int(seed), float(most_s))

    def numbers(self) -> Iterator[int]:
        ends_s = time.monotonic() + self.most_s
        for number in range(self.end):
            if time.monotonic() > ends_s:
                return
            yield number


async def obey(answers: TextIO, answer: Answer) -> None:
    """Answer orders from the standard input until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *given = line.split()
        answers.write(json.dumps(await answer(verb, given)) + "\n")
        answers.flush()


def held_from_now(locks: Locks) -> bool:
    """Whether this process has the accelerator's locks: who computes, and an entry of its memory."""
    return locks.take_compute() and locks.reserve(1, 1) is None


def take_output() -> TextIO:
    """The standard output for answers alone: what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class Executor:
    """The running process, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, gpu: str) -> None:
        """`gpu`: number or UUID of the device, empty on a CPU."""
        self._process = process
        self._log = log
        self._gpu = gpu

    def order(self, line: str, most_s: float = 0.0) -> Any:
        """`most_s`: for which the order says that it goes on. Raises: BenchError when the process dies or does not answer."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            orders.write(f"{line}\n")
            orders.flush()
            ready = select.select([answers], [], [], ANSWER_S + most_s)[0]
            answer = answers.readline() if ready else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BenchError(f"the executor did not answer '{line}': {self._log.read_text(errors='replace')[-1500:]}")
        return json.loads(answer)

    @property
    def family(self) -> list[psutil.Process]:
        return usage.family(psutil.Process(self._process.pid))

    def private(self) -> Private:
        return private(self.family)

    def private_bytes(self) -> int:
        """Without pages of libraries."""
        return self.private().own

    def device_bytes(self) -> int | None:
        """Memory in use on the GPU, by all; None on a CPU."""
        return used_bytes(self._gpu) if self._gpu else None

    def file_bytes(self) -> int:
        """Bytes of files without a name that its processes have open: in memory, or the kernel's cache of a disk."""
        found: dict[tuple[int, int], int] = {}
        for process in self.family:
            for link in Path(f"/proc/{process.pid}/fd").glob("*"):
                try:
                    name, stat = str(link.readlink()), link.stat()
                except OSError:
                    continue
                if name.startswith("/memfd:marlaas") or (name.endswith(" (deleted)") and name.startswith("/") and "/memfd:" not in name):
                    found[stat.st_dev, stat.st_ino] = 512 * stat.st_blocks
        return sum(found.values())

    def processor_share(self, window_s: float) -> float:
        """Share of one core that its processes use together."""
        before, began = sum(map(usage.cpu_s, self.family)), time.monotonic()
        time.sleep(window_s)
        return (sum(map(usage.cpu_s, self.family)) - before) / (time.monotonic() - began)

    def kill(self, gone_s: float = GONE_S) -> float | None:
        """Seconds from SIGKILL of the service's process alone until all its processes have ended; None where some live on for `gone_s`."""
        family = self.family
        began = time.monotonic()
        family[0].kill()
        self._process.wait()
        _, alive = psutil.wait_procs(family[1:], gone_s)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, GONE_S)
        return None if alive else time.monotonic() - began


def used_bytes(gpu: str) -> int:
    """The driver's word. Raises: CalledProcessError where it has none."""
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]) * 2**20


@contextmanager
def running(module: str, arguments: list[str], log: Path, gpu: str = "") -> Generator[Executor]:
    argv = [sys.executable, "-m", f"bench.plex.real.tiers.{module}", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
    with (
        log.open("a") as errors,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=env) as process,
    ):
        try:
            yield Executor(process, log, gpu)
        finally:
            end(process)


def end(process: "subprocess.Popen[str]") -> None:
    """End the process and what it has started."""
    if process.poll() is None:
        family = usage.family(psutil.Process(process.pid))
        for one in family:
            one.kill()
        psutil.wait_procs(family[1:], GONE_S)
