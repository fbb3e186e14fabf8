"""Code of a worker process: environments are built once and called one call at a time.

The fork server preloads it with the environments' packages, so that a killed worker is replaced in milliseconds. One object serves all
episodes and tasks that name the same environment and options.
"""

import asyncio
import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pydantic import JsonValue

from common.caches import LRUCache
from env_svc.calls import BuildFailed, Call, Outcome, build_safely, perform
from env_svc.registry import AnyEnvironment, build, list_environments

WORKER_VARIABLES = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment variables of a worker. One hash seed: data sets that depend on set order open the same prompts on all replicas.
One thread: memory that a library reserves for more counts against the worker's limit."""

SLICE_S = 0.05
"""Seconds after which a job returns its outcomes so far, so that the remaining calls can be spread over workers."""


class EnvironmentCache:
    """The most recently used environments."""

    def __init__(self) -> None:
        self._environments: LRUCache[tuple[str, str], AnyEnvironment] = LRUCache(MAX_BUILT)

    def get(self, name: str, options: dict[str, JsonValue]) -> AnyEnvironment:
        """The environment, built at first use. Raises: UnknownEnvironment, WrongOptions."""
        key = (name, json.dumps(options, sort_keys=True))
        return self._environments.get(key, lambda: build(name, options))


def prepare(families: Sequence[str], memory_bytes: int) -> None:
    """Bound the process's memory, keep the service's stdout for its log, and import the families' packages."""
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    list_environments(families)


def work(name: str, options: dict[str, JsonValue], calls: Sequence[Call]) -> list[Outcome]:
    """Outcomes of the first calls: as many as fit into SLICE_S, and at least one."""
    try:
        environment = build_safely(name, lambda: _built().get(name, options))
    except BuildFailed as error:
        return [error.failure for _ in calls]
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for call in calls:
        began = time.monotonic()
        outcome = _loop().run_until_complete(perform(environment, name, call))
        outcomes.append(replace(outcome, worked_s=time.monotonic() - began))
        if time.monotonic() - started > SLICE_S:
            break
    return outcomes


def ready() -> int:
    """The process id, once the worker is prepared."""
    return os.getpid()


@cache
def _built() -> EnvironmentCache:
    return EnvironmentCache()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


MAX_BUILT = 256
