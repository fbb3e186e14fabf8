"""Shares of the processor's cores while a stack runs: sampler, trainer, other services, other processes."""

import os
import time

import psutil

from bench.harness.measures import usage
from bench.harness.services import BenchError
from marlaas.stack.state_files import Stack

IDLE_S = 3.0
"""Seconds over which a stack without tasks is observed."""


def pinned(stack: Stack) -> dict[str, list[int]]:
    """Cores of sampler and trainer. Raises: BenchError when the two share one."""
    found = {"sampler": _engine(stack).cpu_affinity() or [], "trainer": _process(stack, "trainer").cpu_affinity() or []}
    if set(found["sampler"]) & set(found["trainer"]):
        raise BenchError(f"sampler and trainer have no cores of their own here: {found}")
    return found


def cpu_s(stack: Stack) -> dict[str, float]:
    """Processor seconds so far of each component, the engine apart from its service, and of this process."""
    kinds = [component.name.partition("-")[0] for component in stack.components if component.condition == "ready"]
    found = {kind: sum(usage.cpu_s(one) for one in usage.family(_process(stack, kind))) for kind in kinds}
    found["engine"] = usage.cpu_s(_engine(stack))
    found["rollout"] -= found["engine"]
    return found | {"bench": time.process_time()}


def machine_cpu_s() -> float:
    """Busy seconds so far of the cores that this process may use."""
    cores = psutil.cpu_times(percpu=True)
    return sum(sum(cores[core]) - cores[core].idle - cores[core].iowait - cores[core].guest for core in os.sched_getaffinity(0))


def idle_shares(stack: Stack) -> dict[str, float]:
    """Shares of their cores that engine and trainer take while idle."""
    before = cpu_s(stack)
    time.sleep(IDLE_S)
    after = cpu_s(stack)
    return {name: round((after[name] - before[name]) / IDLE_S, 4) for name in ("engine", "trainer")}


def busy_share(taken: float, idle: float) -> float:
    """Share of a core: `taken` without the share `idle` that its process takes while idle."""
    return round(min(1.0, max(0.0, (taken - idle) / (1 - idle))), 4)


def _process(stack: Stack, kind: str) -> psutil.Process:
    found = next(component.process for component in stack.components if component.name.partition("-")[0] == kind)
    if found is None:
        raise BenchError(f"{kind} does not run")
    return psutil.Process(found.pid)


def _engine(stack: Stack) -> psutil.Process:
    """vLLM's own process: the child of the sampler that computes."""
    return max(_process(stack, "rollout").children(recursive=True), key=usage.cpu_s)
