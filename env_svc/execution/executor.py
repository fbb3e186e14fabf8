"""Executor of environments' calls: on the event loop, in the worker processes, or in hosted processes.

A task may weigh the components of an outcome:

    reward = Σ weights[name] × components[name]        `reward` names the environment's own reward

A component that an attempt lacks counts 0: an episode that ran out of turns has only `out_of_turns`.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from prometheus_client import Gauge, Histogram
from pydantic import JsonValue

from common import spec
from common.caches import LRUCache, SingleFlightCache
from common.fairness.fair_queue import Claimant
from common.messages import FILE_FAMILY, OWN_FAMILY, BlobRef, is_file, is_own
from env_svc.calls import BuildFailed, Call, EnvironmentJob, Failed, OpenCall, Outcome, Scored, build_safely, failed, is_bounded, perform
from env_svc.completion import as_completed_batches
from env_svc.contract import MAX_NUMBER
from env_svc.errors import WrongOptions
from env_svc.execution.workers import Workers
from env_svc.files.environment import FileStore
from env_svc.hosted.pool import NO_HOSTS, HostPool
from env_svc.options import suggestion
from env_svc.packages.hosts import OwnHosts
from env_svc.packages.processes import key_of
from env_svc.registry import AnyEnvironment, build, family_of, find
from env_svc.tools.tool import Tool

CALL_S = Histogram(
    "marlaas_env_call_seconds",
    "Time to open an episode, or to play one message's turns, waiting for a worker included",
    ["call", "family"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120),
)
RUNNING = Gauge("marlaas_env_calls_running", "Messages whose episodes are being opened or played", ["call", "family"])

OutcomeBatch = list[tuple[int, Outcome]]
"""Outcomes that became ready at the same moment: (position among the calls, outcome)."""
MAX_CLASSES = 1024
MAX_BUILT = 256
MAX_CONCURRENT_BUILDS = 16
"""Maximum environments built concurrently. They have their own threads, so a constructor that hangs blocks no other work in threads."""
NO_LIMITS = spec.Limits()


BASE_REWARD = "reward"


EPISODE_COMPONENTS = (BASE_REWARD, "out_of_turns", "out_of_tokens", "out_of_seconds", "tool_calls", "tool_errors")
"""Names of components that every environment has; the last two only in episodes with tools."""


class EnvironmentExecutor:
    """Opens episodes and plays turns, each call where its environment runs."""

    def __init__(
        self,
        workers: Workers,
        call_timeout_s: float,
        hosts: HostPool = NO_HOSTS,
        own: OwnHosts | None = None,
        files: FileStore | None = None,
    ) -> None:
        """`own`: packages of tenants, `files`: files of tenants; None if this replica does not play them."""
        self._files = files
        self._workers = workers
        self._hosts = hosts
        self._own = own
        self._call_timeout_s = call_timeout_s
        self._built: SingleFlightCache[tuple[str, str], AnyEnvironment] = SingleFlightCache(MAX_BUILT)
        self._builders = ThreadPoolExecutor(MAX_CONCURRENT_BUILDS, "build-environment")
        self._found: LRUCache[str, type[AnyEnvironment]] = LRUCache(MAX_CLASSES)

    async def tools_of(self, environment: spec.EnvironmentSection, remaining_s: float) -> Sequence[str | Tool]:
        """The environment's own tools of every episode. Raises: WrongOptions, BuildFailed."""
        if is_own(environment.name) or is_file(environment.name) or self._hosts.find(environment.name) is not None:
            return ()
        found = await self._find(environment.name)
        if found.cpu_bound:
            return found.tools
        return (await self._environment(environment.name, environment.options, self.bounded_timeout_s(remaining_s))).tools

    def bounded_timeout_s(self, remaining_s: float) -> float:
        """Timeout of one call: the setting, or the remaining time if it is shorter."""
        return max(0.1, min(self._call_timeout_s, remaining_s))

    async def run(
        self,
        claimant: Claimant,
        environment: spec.EnvironmentSection,
        calls: Sequence[Call],
        remaining_s: float,
        limits: spec.Limits = NO_LIMITS,
        package: BlobRef | None = None,
    ) -> AsyncGenerator[OutcomeBatch, None]:
        """Outcomes of all calls, each as soon as it is known and within about `remaining_s`.

        `package`: wheel of the tenant's own environment. Raises: Unavailable when it cannot be fetched now.
        """
        timeout_s = self.bounded_timeout_s(min(remaining_s, limits.max_turn_s or remaining_s))
        job = EnvironmentJob(claimant, environment.name, environment.options, calls, timeout_s, time.monotonic() + remaining_s)
        try:
            batches = await self._batches(job, environment, package)
        except (WrongOptions, BuildFailed) as error:
            outcome = error.failure if isinstance(error, BuildFailed) else failed(str(error))
            yield [(position, outcome) for position in range(len(calls))]
            return
        kind, family = "open" if isinstance(calls[0], OpenCall) else "step", self._family(environment.name)
        with RUNNING.labels(kind, family).track_inprogress():
            async with aclosing(batches):
                with CALL_S.labels(kind, family).time():
                    async for batch in batches:
                        yield [(position, apply_weights(outcome, environment.weights, environment.name)) for position, outcome in batch]

    def _family(self, name: str) -> str:
        if is_own(name):
            return OWN_FAMILY
        if is_file(name):
            return FILE_FAMILY
        hosted = self._hosts.find(name)
        return family_of(name) if hosted is None else hosted.name

    async def _batches(
        self, job: EnvironmentJob, environment: spec.EnvironmentSection, package: BlobRef | None
    ) -> AsyncGenerator[OutcomeBatch, None]:
        """The job's outcomes, from the place where the environment runs. Raises: WrongOptions, BuildFailed."""
        weights = [*environment.weights, *environment.rank_weights]
        if is_own(job.name):
            if self._own is None:
                raise WrongOptions(f"environment '{job.name}': this replica plays no packages of tenants")
            key = key_of(job.claimant.tenant, job.name, package)
            assert package is not None
            return self._own.run(key, package, job, lambda known: check_weights(job.name, known, weights))
        if is_file(job.name):
            of_file = await self._of_file(job.claimant.tenant, job.name, job.options, job.timeout_s)
            return as_completed_batches(_on_loop(at, of_file, FILE_FAMILY, call, job.timeout_s) for at, call in enumerate(job.calls))
        hosted = self._hosts.find(job.name)
        if hosted is not None:
            check_weights(job.name, await hosted.components(job.name, job.timeout_s), weights)
            return hosted.run(job)
        found = await self._find(job.name)
        check_weights(job.name, found.components, weights)
        if found.cpu_bound:
            return self._workers.run(job)
        ready = await self._environment(job.name, job.options, job.timeout_s)
        return as_completed_batches(_on_loop(position, ready, job.name, call, job.timeout_s) for position, call in enumerate(job.calls))

    async def _environment(self, name: str, options: dict[str, JsonValue], timeout_s: float) -> AnyEnvironment:
        """The environment, built in a thread, because a constructor may download and read much. Raises: BuildFailed."""
        key = name, json.dumps(options, sort_keys=True) if options else ""
        if (built := self._built.peek(key)) is not None:  # every turn after the first
            return built

        async def make() -> AnyEnvironment:
            making = partial(build_safely, name, partial(build, name, options))
            return await asyncio.get_running_loop().run_in_executor(self._builders, making)

        return await self._within(timeout_s, name, self._built.get(key, make))

    async def _of_file(self, tenant: str, name: str, options: dict[str, JsonValue], timeout_s: float) -> AnyEnvironment:
        """The environment of a tenant's file. Raises: WrongOptions, BuildFailed; Unavailable when the file cannot be fetched now."""
        if self._files is None:
            raise WrongOptions(f"environment '{name}': this replica plays no files of tenants")
        return await self._within(timeout_s, name, self._files.environment(name, tenant, options))

    async def _within(self, timeout_s: float, name: str, building: Awaitable[AnyEnvironment]) -> AnyEnvironment:
        """Await `building`. Raises: BuildFailed after `timeout_s`; the exceptions of `building`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await building
        except TimeoutError:
            reason = f"environment '{name}' was not built within {timeout_s:g} s; its construction continues"
            raise BuildFailed(failed(reason, is_infrastructure=True)) from None

    async def _find(self, name: str) -> type[AnyEnvironment]:
        """The environment's class, looked up in a thread at first and then cached. Raises: WrongOptions."""
        known = self._found.peek(name)
        if known is not None:
            return known
        found = await asyncio.to_thread(find, name)
        if found.operator_options:
            raise WrongOptions(f"environment '{name}' runs only where MARLAAS_ENV_HOSTS_FILE names it: its options are the operator's")
        return self._found.get(name, lambda: found)


async def _on_loop(position: int, environment: AnyEnvironment, name: str, call: Call, timeout_s: float) -> tuple[int, Outcome]:
    try:
        async with asyncio.timeout(timeout_s):
            return position, await perform(environment, name, call)
    except TimeoutError:
        reason = f"environment '{name}' did not answer within {timeout_s:g} s (row {call.row})"
        return position, failed(reason, is_infrastructure=True, is_late=True)


def apply_weights(outcome: Outcome, weights: Mapping[str, float], name: str) -> Outcome:
    """`outcome` with the task's weighted reward, and the environment's own reward as a component; Failed if a value is too large."""
    if not weights or not isinstance(outcome, Scored):
        return outcome
    parts = {BASE_REWARD: outcome.reward} | outcome.components
    terms = {f"{weight:g} × '{part}'": weight * parts.get(part, 0.0) for part, weight in weights.items()}
    wrong = next((term for term, value in terms.items() if not is_bounded(value)), None)
    if wrong is not None:
        return replace(_too_large(name, wrong, terms[wrong]), worked_s=outcome.worked_s)
    reward = math.fsum(terms.values())
    if not is_bounded(reward):
        return replace(_too_large(name, f"the weighted sum of {', '.join(weights)}", reward), worked_s=outcome.worked_s)
    return replace(outcome, reward=reward, components=parts)


def check_weights(name: str, known: Sequence[str], weights: Iterable[str]) -> None:
    """Raises: WrongOptions when the environment `name` declares its components and a weight names none of them."""
    names = [*known, *EPISODE_COMPONENTS]
    if wrong := [weight for weight in weights if known and weight not in names]:
        raise WrongOptions(f"environment '{name}' has no reward component '{wrong[0]}'{suggestion(wrong[0], names)}")


def _too_large(name: str, what: str, value: float) -> Failed:
    return failed(f"environment '{name}': {what} is {value:g}, expected a finite number of at most {MAX_NUMBER:g} either way")
