"""Pools as the scheduler offers them, from the latest answer to the question whether one lives."""

from collections.abc import Sequence

from common.messages import PoolOffer
from gateway_svc.problems import FieldError, Problem


class Offers:
    def __init__(self) -> None:
        self._pools: Sequence[PoolOffer] = ()

    def update(self, pools: Sequence[PoolOffer]) -> None:
        self._pools = pools

    def has(self, pool: str) -> bool:
        return any(one.name == pool for one in self._pools)

    def check(self, pool: str) -> None:
        """Raises: Problem at once for a pool that serves no version, where the request would wait for nobody."""
        if not any(one.name == pool and one.serves is False for one in self._pools):
            return
        serving = ", ".join(sorted(one.name for one in self._pools if one.serves)) or "none"
        reason = f"pool '{pool}' serves no versions (no [{pool}.serving] in the pools file); pools that do: {serving}"
        raise Problem(409, "Pool without serving", reason, "pool_without_serving", [FieldError("model", reason)])
