"""Adapter versions in this replica's engine: fetched, checked, reference-counted, evicted.

A version is loaded at its first request, or ahead of it when its task took a step. It stays while a request uses it. An idle version is
evicted when its task has ended, when it is more than `keep` versions behind and idle for `keep_s` (dialogues return to it after each
answer of their environment, and evaluations use old versions), or, least recently used first, when another version needs the room.
An evicted version is reloaded on demand. While all loaded versions are in use, the next one waits.

Serving uses versions of ended tasks and old versions: those that it used stay until they were idle for `keep_s`, whatever their task's
state. Some places are reserved for serving: rollouts cannot fill them, and a serving load never waits for a rollout's load. Versions that
aliases name (`keep_loaded`) are evicted only after all other idle ones.

Before a version answers a request, the engine must give a fixed token sequence the trainer's log-probabilities: a wrong file format,
rank, scale or base model shows here, and not as a training run that slowly degrades.

While the engine is parked, versions are fetched to disk and wait there. After a wake, the versions that it holds are checked before use.
A park waits for loads and evictions in progress, but for no fetch. Files that an eviction or a cancelled load removed are fetched again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from prometheus_client import Gauge, Histogram

from common.accelerators import StateMismatch
from common.blobs import Blobs
from common.errors import Reject
from common.messages import AdapterRef
from common.resilience.event_loop import is_set_within
from rollout_svc.adapter_files import AdapterFiles
from rollout_svc.engine.config import HELD_PER_SLOT, Tolerance
from rollout_svc.engine.engine import Engine

ADAPTERS = Gauge("marlaas_rollout_adapters", "Adapter versions that the engine holds")
LOAD_S = Histogram("marlaas_rollout_adapter_load_seconds", "Time to fetch, load and check an adapter version")

CALM_WITHIN_S = 1.0
"""Maximum seconds for which a load waits until no first token is due."""

log = structlog.get_logger()


@dataclass
class _Version:
    ref: AdapterRef
    users: int = 0
    held: bool = False
    """Whether the engine has it."""
    loaded: bool = False
    """Whether it is held and checked, so that requests may sample from it."""
    served: bool = False
    """Whether serving has used it."""
    is_reserved: bool = False
    """Whether it was loaded for serving and occupies one of the reserved places."""
    used_at: float = 0.0


class Adapters:
    """Adapter versions by engine name. One engine change runs at a time; a loaded version is used without waiting."""

    def __init__(self, engine: Engine, blobs: Blobs, folder: Path, *, keep: int, keep_s: float, tolerance: Tolerance) -> None:
        self._engine = engine
        self._files = AdapterFiles(blobs, folder)
        self._keep = keep
        self._keep_s = keep_s
        self._tolerance = tolerance
        self._capacity = engine.settings.adapters_held
        self._reserved = engine.settings.serving_adapters * HELD_PER_SLOT
        self._versions: dict[str, _Version] = {}
        self._newest: dict[str, int] = {}
        self._ended: set[str] = set()
        self._to_keep: frozenset[str] = frozenset()
        self._changing, self._loading_ahead = asyncio.Lock(), asyncio.Lock()
        self._ahead = Counter[str]()
        """Versions with a `load_ahead` in progress."""
        self._may_change = asyncio.Event()
        """Set unless the engine is parked."""
        self._may_change.set()
        self.calm = asyncio.Event()
        """Set unless a first token is due under latency goals: vLLM loads an adapter between two steps, and all streams wait."""
        self.calm.set()
        self._room, self._tidy, self.forgotten = asyncio.Event(), asyncio.Event(), asyncio.Event()
        """`forgotten` is set when a wake may have dropped versions of `keep_loaded`; the caller of `keep_loaded` loads them again."""

    @property
    def held(self) -> int:
        return sum(version.held for version in self._versions.values())

    @asynccontextmanager
    async def using(self, ref: AdapterRef | None, *, serving: bool = False) -> AsyncGenerator[str | None]:
        """Yield the engine's name of `ref`, which stays loaded inside the block; None for the base model.

        Raises: Reject if the blob is missing or damaged, or engine and trainer disagree about it; Unavailable if the blob store is
        unavailable or this replica's disk cannot be written.
        """
        if ref is None:
            yield None
            return
        version = self._versions.setdefault(ref.engine_name, _Version(ref))
        version.users += 1
        try:
            while not version.loaded:
                await self._wait_until_awake(ref)
                await self._wait_for_room(serving=serving)
                began_s = time.monotonic()
                folder = await self._files.fetch(ref)
                await is_set_within(self.calm, CALM_WITHIN_S)
                async with self._changing:
                    may_load = not version.loaded and self._may_change.is_set() and not self._files.is_refused(ref)
                    if may_load and await asyncio.to_thread(folder.is_dir) and await self._make_room(serving=serving):
                        version.is_reserved = serving
                        await self._load(version, folder, began_s)
            version.served = version.served or serving
            yield ref.engine_name
        finally:
            version.users -= 1
            version.used_at = time.monotonic()
            if version.users == 0 and not version.loaded:
                self._versions.pop(ref.engine_name, None)
            self._room.set()
            self._tidy.set()

    async def load_ahead(self, ref: AdapterRef) -> None:
        """Fetch a version immediately and load it once the engine is awake; loads run one at a time. Raises: as `using`."""
        self._ahead[ref.engine_name] += 1
        try:
            await self._wait_until_awake(ref)
            async with self._loading_ahead, self.using(ref):
                pass
        finally:
            self._ahead -= Counter([ref.engine_name])
            self._tidy.set()

    @property
    def serving_places(self) -> int:
        """Number of versions that serving can load without evicting rollouts' versions."""
        return self._reserved

    def keep_loaded(self, refs: Iterable[AdapterRef]) -> None:
        """Replace the set of versions that are evicted last. The caller loads them."""
        self._to_keep = frozenset(ref.engine_name for ref in refs)
        for version in self._versions.values():
            if version.held and version.ref.engine_name in self._to_keep and self._held_for_serving < self._reserved:
                version.is_reserved = True
        self._tidy.set()

    def is_loaded(self, ref: AdapterRef) -> bool:
        version = self._versions.get(ref.engine_name)
        return version is not None and version.loaded

    def end(self, task: str) -> None:
        """Handle a task's end: evict its versions once they are idle."""
        if any(version.ref.task == task for version in self._versions.values()):
            self._ended.add(task)
        self._newest.pop(task, None)
        self._files.forget_refused(task)
        self._tidy.set()

    async def run(self) -> None:
        """Evict outdated versions, until cancelled; then remove the fetched files."""
        try:
            while True:
                await is_set_within(self._tidy, max(1.0, self._keep_s / 4))
                self._tidy.clear()
                async with self._changing:
                    await self._files.keep_only(self._versions.keys() | self._ahead.keys())
                    # One at a time: during an eviction another version may come into use.
                    while self._may_change.is_set() and (version := next(filter(self._is_over, self._by_use()), None)) is not None:
                        await self._unload(version)
                self._ended &= {version.ref.task for version in self._versions.values()}
        finally:
            self._files.clear()

    def _by_use(self) -> list[_Version]:
        """Loaded idle versions, least recently used first."""
        idle = [version for version in self._versions.values() if version.loaded and version.users == 0]
        return sorted(idle, key=lambda version: version.used_at)

    def _is_behind(self, version: _Version) -> bool:
        task = version.ref.task
        if version.ref.engine_name in self._to_keep:
            return False
        return task in self._ended or version.ref.version < self._newest.get(task, 0) - self._keep

    def _is_over(self, version: _Version) -> bool:
        """Whether to evict: it is behind, and either no longer requested or in the way of the next version."""
        has_ended = version.ref.task in self._ended and not version.served
        is_unused = has_ended or time.monotonic() - version.used_at >= self._keep_s
        return self._is_behind(version) and (is_unused or (self.held >= self._capacity and not version.served))

    async def _load(self, version: _Version, folder: Path, began_s: float) -> None:
        """Load and check a version; the caller holds `_changing`. `began_s`: start of its fetch."""
        ref = version.ref
        try:
            await self._engine.load(ref.engine_name, folder)
            version.held = True
            await check_canary(self._engine, ref, self._tolerance)
            version.loaded, version.used_at = True, time.monotonic()
        except BaseException as error:
            if version.held:
                await asyncio.shield(self._unload(version))
            await self._files.remove(ref)
            if isinstance(error, Reject):
                self._files.refuse(ref, str(error))
            raise
        self._newest[ref.task] = max(ref.version, self._newest.get(ref.task, 0))
        ADAPTERS.set(self.held)
        LOAD_S.observe(time.monotonic() - began_s)
        log.info("adapter_loaded", adapter=ref.engine_name, seconds=round(time.monotonic() - began_s, 3), held=self.held)
        self._tidy.set()

    # --------------------------------------------------------------------------------------------------------- parking

    async def stop(self) -> None:
        """Stop loads and evictions until `go`, after those in progress have finished."""
        self._may_change.clear()
        async with self._changing:
            pass

    def go(self) -> None:
        self._may_change.set()
        self._tidy.set()

    async def recheck(self, must_load: bool) -> None:
        """Check the held versions after a wake; `must_load`: the engine dropped them. Call between `stop` and `go`.

        An idle version that was dropped or is wrong is forgotten and reloaded on demand, so that it keeps no pool asleep.
        Raises: WrongState if the engine disagrees about a version in use; its files are fetched again the next time.
        """
        for version in [one for one in self._versions.values() if must_load and one.held]:
            if version.users:
                await self._restoring(version, self._reload(version.ref))
            else:
                await self._unload(version)
        checks = [
            self._restoring(version, check_canary(self._engine, version.ref, self._tolerance))
            for version in self._versions.values()
            if version.held
        ]
        outcomes = await asyncio.gather(*checks, return_exceptions=True)
        self.forgotten.set()
        for failure in filter(None, outcomes):  # only now: no check may still run when the caller drops the weights
            raise failure

    async def _reload(self, ref: AdapterRef) -> None:
        await self._files.fetch(ref)
        await self._engine.reload(ref.engine_name)

    async def _restoring(self, version: _Version, step: Awaitable[None]) -> None:
        try:
            await step
        except Reject as error:
            if version.users:
                await self._files.remove(version.ref)
                raise StateMismatch(f"{version.ref.name} did not wake: {error}") from None
            log.warning("idle_adapter_forgotten", adapter=version.ref.engine_name, reason=str(error))
            await self._unload(version)

    async def _wait_until_awake(self, ref: AdapterRef) -> None:
        """While the engine is parked, fetch the version and wait for the wake. Raises: as `using`."""
        if not self._may_change.is_set():
            if not self.is_loaded(ref) and not self._files.is_refused(ref):
                await self._files.fetch(ref)
            await self._may_change.wait()

    @property
    def _held_for_serving(self) -> int:
        return sum(version.held and version.is_reserved for version in self._versions.values())

    def _has_room(self, *, serving: bool) -> bool:
        """Whether one more version fits. Rollouts count unfilled places of serving as full."""
        free = self._capacity - self.held
        return free > (0 if serving else max(0, self._reserved - self._held_for_serving))

    def _evictable(self, *, serving: bool) -> _Version | None:
        """Eviction victim or None: outdated versions first. Rollouts evict reserved ones only while serving exceeds its places."""
        idle = [one for one in self._by_use() if serving or not one.is_reserved or self._held_for_serving > self._reserved]
        idle.sort(key=lambda one: one.ref.engine_name in self._to_keep)
        return next(filter(self._is_behind, idle), idle[0] if idle else None)

    async def _wait_for_room(self, *, serving: bool) -> None:
        """Wait until one more version fits or an idle one can be evicted; the engine may change meanwhile."""
        while not self._has_room(serving=serving) and self._evictable(serving=serving) is None:
            self._room.clear()
            log.warning("adapters_all_in_use", held=self.held)
            await self._room.wait()

    async def _make_room(self, *, serving: bool) -> bool:
        """Evict until one more version fits; return whether it does. The caller holds `_changing`."""
        while not self._has_room(serving=serving) and (idle := self._evictable(serving=serving)) is not None:
            await self._unload(idle)
        return self._has_room(serving=serving)

    async def _unload(self, version: _Version) -> None:
        """Evict a version; the caller holds `_changing`. A request that starts meanwhile reloads it."""
        version.loaded = version.held = version.served = False
        if version.users == 0:
            self._versions.pop(version.ref.engine_name, None)
        await self._engine.unload(version.ref.engine_name)
        await self._files.remove(version.ref)
        ADAPTERS.set(self.held)
        log.info("adapter_unloaded", adapter=version.ref.engine_name, held=self.held)


async def check_canary(engine: Engine, ref: AdapterRef, tolerance: Tolerance) -> None:
    """Compare the engine's log-probabilities with a loaded version's canary. Raises: Reject if they differ by more than `tolerance`."""
    version = f"version {ref.version} of task {ref.task}"
    ids, expected = np.frombuffer(ref.canary.ids, dtype="<i4"), np.frombuffer(ref.canary.logprobs, dtype="<f4")
    if len(ids) < 2 or len(expected) != len(ids) - 1:
        raise Reject(f"{version} has a canary of {len(ids)} tokens and {len(expected)} log-probabilities")
    got = await engine.prompt_logprobs(ids.tolist(), ref.engine_name)
    if (excess := tolerance.excess(got, expected)) is not None:
        raise Reject(
            f"engine and trainer disagree about {version}: their log-probabilities {excess}; "
            "where both are right and only their arithmetic differs, allow more with MARLAAS_ROLLOUT_CANARY_TOLERANCE"
        )
