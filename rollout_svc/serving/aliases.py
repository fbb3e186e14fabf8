"""Keeps versions that aliases name loaded, within the places of serving, so that a request to an alias need not wait for its adapter.

With more aliases than places, the most recently changed win. If there are several places, one is left to other versions. Versions that
are dropped while the engine is parked are loaded right after its wake.
"""

import asyncio

import structlog

from common.bus import Bus, FollowedBucket
from common.errors import Reject, Retry
from common.messages import AdapterRef, KnownAlias
from common.resilience.event_loop import is_set_within
from common.streams import ALIASES_BUCKET
from rollout_svc.adapters import Adapters

AGAIN_S = 30.0
"""Seconds between attempts to load missing versions: their blobs, or a place, may become available later."""

log = structlog.get_logger()


class KeptAliases:
    """This replica's view of the aliases of one pool."""

    def __init__(self, adapters: Adapters, pool: str) -> None:
        self._adapters = adapters
        self._pool = pool
        self._known: dict[str, KnownAlias] = {}
        self._missing = adapters.forgotten
        """Set if versions to keep may be missing from the engine."""

    async def run(self, bus: Bus) -> None:
        """Follow aliases and keep their versions loaded, until cancelled. Raises: Fatal when the engine is dead."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(FollowedBucket(bus, ALIASES_BUCKET, KnownAlias, self.note).follow())
            runners.create_task(self._load())

    def note(self, key: str, alias: KnownAlias | None) -> None:
        """Record the current state of an alias; None if it was deleted."""
        self._known.pop(key, None)
        if alias is not None and alias.pool == self._pool:
            self._known[key] = alias
        self._adapters.keep_loaded(self.wanted)
        self._missing.set()

    @property
    def wanted(self) -> list[AdapterRef]:
        """Versions to keep loaded, most recently changed alias first."""
        by_change = sorted(self._known.values(), key=lambda alias: -alias.changed_s)
        refs = {alias.adapter.engine_name: alias.adapter for alias in by_change}
        return list(refs.values())[: max(1, self._adapters.serving_places - 1)]

    async def _load(self) -> None:
        while True:
            await is_set_within(self._missing, AGAIN_S)
            self._missing.clear()
            await self.load()

    async def load(self) -> None:
        """Load the wanted versions that are missing. Raises: Fatal when the engine is dead."""
        for ref in self.wanted:
            try:
                if not self._adapters.is_loaded(ref):
                    async with self._adapters.using(ref, serving=True):
                        pass
            except (Reject, Retry) as error:  # the request that needs the version reports it
                log.warning("version_not_loaded", adapter=ref.engine_name, reason=str(error))
