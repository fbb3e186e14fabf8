"""How long the one-machine stack takes to be ready, a task's first step takes, and how much memory all of it holds.

python -m bench.stack [--steps N]     prints JSON
"""

import argparse
import asyncio
import json
import platform
import tempfile
import time
import tomllib
from pathlib import Path

import psutil

from common.spec import parse_spec
from marlaas import stack as stacks
from marlaas.client import Client
from marlaas.state import Stack

ROOT = Path(__file__).parents[1]
SAMPLE_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of each of the three example tasks")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        data = Path(folder)
        started = time.monotonic()
        try:
            stack = stacks.wait_until_ready(stacks.start(stacks.make_plan(data, ROOT / "pools.toml"), end_with_parent=True), lambda _: None)
            ready_s = time.monotonic() - started
            result = {"ready_s": round(ready_s, 1), "idle_mib": memory_mib(stack)} | asyncio.run(trained(stack, steps))
        finally:
            stacks.stop(data)
    print(json.dumps({"machine": machine()} | result, indent=2))


async def trained(stack: Stack, steps: int) -> dict[str, object]:
    """Train the example tasks together: seconds to each task's first step, to the end, and memory on the way."""
    specs = [parse_spec(tomllib.loads(path.read_text()) | {"steps": steps}) for path in sorted((ROOT / "examples").glob("*.toml"))]
    first_step_s: dict[str, float] = {}
    most: dict[str, int] = {}
    async with Client.connect(stack.nats_url) as client:
        submitted = time.time()
        tasks = [await client.submit(spec) for spec in specs]

        async def sample() -> None:
            while True:
                for name, mib in memory_mib(stack).items():
                    most[name] = max(mib, most.get(name, 0))
                await asyncio.sleep(SAMPLE_S)

        sampling = asyncio.create_task(sample())
        async for event in client.watch(*tasks):
            if event.event == "step":
                first_step_s.setdefault(event.task.rsplit("-", 1)[0], round(event.at_s - submitted, 1))
        sampling.cancel()
    took = time.time() - submitted
    return {
        "first_step_s": first_step_s,
        "steps": steps * len(specs),
        "all_steps_s": round(took, 1),
        "steps_per_s": round(steps * len(specs) / took, 2),
        "peak_mib": most,
        "peak_total_mib": most["total"],
    }


def memory_mib(stack: Stack) -> dict[str, int]:
    """Proportional set size (shared pages counted once) of each component with its children."""
    found: dict[str, int] = {}
    for component in stack.components:
        if component.process is not None and psutil.pid_exists(component.process.pid):
            root = psutil.Process(component.process.pid)
            found[component.name] = sum(_pss(process) for process in [root, *root.children(recursive=True)]) >> 20
    found["supervisor"] = _pss(psutil.Process(stack.supervisor.pid)) >> 20
    return found | {"total": sum(found.values())}


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def machine() -> dict[str, object]:
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "load_before": psutil.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
