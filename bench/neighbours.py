"""Turns of one hosted environment while another one's code does its worst: `python -m bench.neighbours [--seconds 4] [--rounds 3]`.

Both run in the sandbox of hosts, in one service. The neighbour computes a few milliseconds a turn, one turn after the other. Each round
measures it alone, then beside each bomb; the last column is the ratio of the 0.9 quantiles, over all rounds. The wish is at most 1.2.
"""

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

from bench.harness.report import ROOT, load_now
from common.fairness.fair_queue import Claimant
from env_svc.calls import Continued, EnvironmentJob, Scored, StepCall
from env_svc.contract import ChatMessage, Continue, Environment, Finish, Opening, Reply
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import find_confinement
from env_svc.hosted.pool import HostPool

BOMBS = {
    "computing on every core": """
import os
for _ in range(16):
    if os.fork() == 0:
        break
while True:
    pass
""",
    "processes": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "memory": """
kept = []
while True:
    kept.append(bytearray(20_000_000))
""",
    "disk": """
while True:
    for one in range(200):
        try:
            open(f"/tmp/{one}", "wb").write(bytes(10**6))
        except OSError:
            break
""",
    "prints": """
import os
while True:
    os.write(2, b"x" * 65536)
""",
}
"""What the other environment runs, until its call is overdue or it meets a limit."""
STATE = b"\x80"
PAUSE_S = 0.01
"""Pause between two turns."""


class Neighbour(Environment[dict[str, int]]):
    """Computes for some milliseconds a turn."""

    cpu_bound = True

    async def open(self, index: int, seed: int) -> Opening[dict[str, int]]:
        return Opening([ChatMessage(role="user", content=f"{seed}:{index}")], {})

    async def step(self, state: dict[str, int], reply: Reply) -> Finish:  # noqa: ARG002
        return Finish(float(sum(number * number for number in range(50_000)) % 7))


class Bomber(Environment[dict[str, int]]):
    """Runs a reply as code."""

    cpu_bound = True

    async def open(self, index: int, seed: int) -> Opening[dict[str, int]]:
        return Opening([ChatMessage(role="user", content=f"{seed}:{index}")], {})

    async def step(self, state: dict[str, int], reply: Reply) -> Continue[dict[str, int]]:
        exec(reply.text, {})
        return Continue([ChatMessage(role="user", content="over")], state)


async def turn(hosts: HostPool, name: str, text: str, timeout_s: float) -> float:
    """Seconds of one turn. A bomb's is whatever it becomes."""
    call = StepCall(0, STATE, Reply(text))
    job = EnvironmentJob(Claimant("a", name), name, {}, [call], timeout_s, time.monotonic() + 600.0)
    found = hosts.find(name)
    assert found is not None
    began = time.perf_counter()
    async for batch in found.run(job):
        assert name == "bomber" or isinstance(batch[0][1], Scored | Continued), batch
    return time.perf_counter() - began


async def measured(hosts: HostPool, seconds: float) -> list[float]:
    """Seconds of the neighbour's turns."""
    ends_at, taken = time.perf_counter() + seconds, []
    while time.perf_counter() < ends_at:
        taken.append(await turn(hosts, "neighbour", "?", 60.0))
        await asyncio.sleep(PAUSE_S)
    return taken


async def beside(hosts: HostPool, bomb: str, seconds: float) -> list[float]:
    """The same while the bomber runs `bomb`, once more each time it has ended."""

    async def bombs() -> None:
        while True:
            await turn(hosts, "bomber", bomb, seconds)

    bombing = asyncio.create_task(bombs())
    try:
        return await measured(hosts, seconds)
    finally:
        bombing.cancel()
        await asyncio.gather(bombing, return_exceptions=True)


BOUNDS: dict[str, Any] = {"memory_mib": 1024, "scratch_mib": 128, "max_processes": 64}
"""Bounds of both hosts. `Any`: of several fields."""


async def measure(seconds: float, rounds: int) -> None:
    confinement = await find_confinement()
    path = {"PYTHONPATH": str(ROOT)}
    own = [ROOT / name for name in ("bench", "marlaas") if (ROOT / name).is_dir()]
    tables = {
        name.lower(): HostedConfig(
            python=sys.executable,
            environment=f"bench.neighbours:{name}",
            read=own,
            memory_mib=1024,
            scratch_mib=128,
            max_processes=64,
            variables=path,
        )
        for name in ("Neighbour", "Bomber")
    }
    hosts = HostPool(tables, confinement=confinement)
    taken: dict[str, list[float]] = {name: [] for name in ("alone", *BOMBS)}
    try:
        await hosts.start()
        await measured(hosts, 1.0)
        for _ in range(rounds):
            taken["alone"] += await measured(hosts, seconds)
            for name, bomb in BOMBS.items():
                taken[name] += await beside(hosts, bomb, seconds)
                found = hosts.find("bomber")
                assert found is not None
                await found.start()
    finally:
        await hosts.stop()
    print(f"{confinement.meaning}; load {load_now()}")
    print("| beside | turns | median | 0.9 quantile | ratio |\n|---|---|---|---|---|")
    alone = _quantile(taken["alone"])
    for name, times in taken.items():
        row = f"| {name} | {len(times)} | {1e3 * statistics.median(times):.1f} ms | {1e3 * _quantile(times):.1f} ms |"
        print(f"{row} {_quantile(times) / alone:.2f} |")


def _quantile(times: list[float]) -> float:
    return sorted(times)[int(0.9 * (len(times) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(measure(given.seconds, given.rounds))


if __name__ == "__main__":
    main()
