"""Pools as the scheduler offers them, the expected start time of pools without a ready sampler, and the places of the others."""

from collections.abc import Sequence
from math import ceil

import structlog

from common.bus import Bus
from common.messages import PoolOffer, ProcessLife, ReplicaReport, trouble_of
from common.messages.lives import LIVES, life_key
from common.periodic import run_forever
from common.streams import HISTORY_BUCKET, REPLICA_TTL_S, REPLICAS_BUCKET
from gateway_svc.problems import FieldError, Problem

log = structlog.get_logger()


class Offers:
    def __init__(self) -> None:
        self._pools: Sequence[PoolOffer] = ()

    def update(self, pools: Sequence[PoolOffer]) -> None:
        self._pools = pools

    def has(self, pool: str) -> bool:
        return any(one.name == pool for one in self._pools)

    def check(self, pool: str) -> PoolOffer | None:
        """The pool's offer; None if no offers are known. Raises: Problem for a pool that does not serve or was removed, so that no request
        waits without a replica."""
        found = next((one for one in self._pools if one.name == pool), None)
        if not self._pools or (found is not None and found.serves):
            return found
        serving = ", ".join(sorted(one.name for one in self._pools if one.serves)) or "none"
        missing = f"no [{pool}.serving] in the pools file" if found else "it is not in the pools file any more"
        reason = f"pool '{pool}' serves no versions ({missing}); pools that do: {serving}"
        raise Problem(409, "Pool without serving", reason, "pool_without_serving", [FieldError("model", reason)])


class Restarts:
    """Expected restarts of samplers in all pools, and places of those that serve, refreshed periodically. `run` must be running."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._lives: Sequence[ProcessLife] = ()
        self._alive: set[str] = set()
        self._reports: Sequence[ReplicaReport] | None = None
        """Reports of live replicas; None before they are read, when one sampler is assumed."""

    async def run(self) -> None:
        """Refresh periodically until cancelled."""

        await run_forever(self._look, REPLICA_TTL_S / 5, "replicas_unknown")

    async def _look(self) -> None:
        lives = await self._bus.kv.values(HISTORY_BUCKET, ProcessLife, LIVES)  # read first: processes ready here have reported by then
        self._reports = await self._bus.kv.values(REPLICAS_BUCKET, ReplicaReport)
        self._alive = {life_key(report.service, report.replica) for report in self._reports}
        self._lives = [life for life in lives if life.service == "rollout" and life.ended != ""]

    def expected_s(self, pool: str) -> float | None:
        """Seconds until the pool's first sampler is ready; None if one works, or no start has been measured."""
        now_s, left = self._bus.clock.now_s(), list[float]()
        for life in self._lives:
            if life.pool != pool:
                continue
            is_alive = life_key(life.service, life.replica) in self._alive
            trouble = trouble_of(life, now_s, is_alive=is_alive)
            if trouble is None or trouble.state == "recovered" or (trouble.state == "faulty" and life.ready_s is not None and is_alive):
                return None
            if (start_s := trouble.starts_in_s or life.start_s) is not None:
                left.append(start_s)
        return min(left, default=None)

    def places(self, offer: PoolOffer) -> int:
        """One gateway's part of the requests that the pool's samplers answer concurrently, by the latest reports."""
        if self._reports is None:
            return offer.serving_sequences
        samplers = sum(report.serves and report.pool == offer.name for report in self._reports)
        gateways = sum(report.service == "gateway" for report in self._reports)
        return ceil(samplers * offer.serving_sequences / max(1, gateways))
