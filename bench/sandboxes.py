"""Costs of a sandbox: `python -m bench.sandboxes [monty bubblewrap confined docker]`.

start       time until it is ready for code
run         median of one run of `print(6 * 7)`, one after another
throughput  such runs a second, one per place at once
"""

import asyncio
import statistics
import sys
import time

from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox
from env_svc.sandboxes.selection import sandbox_of
from env_svc.settings import EnvSettings

IN_A_ROW = 20
CONCURRENT_RUNS = {"monty": 4000, "bubblewrap": 100, "confined": 100, "docker": 40}
SOURCE = "print(6 * 7)"


async def measure(kind: str) -> str:
    settings = EnvSettings.read()
    sandbox = sandbox_of(kind, settings)
    started = time.perf_counter()
    await sandbox.start()
    start_s = time.perf_counter() - started
    try:
        runs_s = [await _run(sandbox) for _ in range(IN_A_ROW)]
        started = time.perf_counter()
        await asyncio.gather(*(_run(sandbox) for _ in range(CONCURRENT_RUNS[kind])))
        per_s = CONCURRENT_RUNS[kind] / (time.perf_counter() - started)
    finally:
        await sandbox.close()
    return (
        f"| `{kind}` | {start_s:.2f} s | {1e3 * statistics.median(runs_s):.1f} ms | {1e3 * max(runs_s):.1f} ms "
        f"| {per_s:.0f}/s, {settings.sandbox_runs} at once |"
    )


async def _run(sandbox: Sandbox) -> float:
    started = time.perf_counter()
    ran = await sandbox.run(SOURCE, Bounds())
    assert ran == RunResult("42\n"), ran
    return time.perf_counter() - started


def main() -> None:
    print("| sandbox | start | run, median | run, slowest | throughput |\n|---|---|---|---|---|")
    for kind in sys.argv[1:] or list(CONCURRENT_RUNS):
        print(asyncio.run(measure(kind)), flush=True)


if __name__ == "__main__":
    main()
