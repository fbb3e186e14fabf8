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
        """Raises: Problem for a pool that serves no version or is gone, so that no request waits without a replica."""
        found = next((one for one in self._pools if one.name == pool), None)
        if not self._pools or (found is not None and found.serves):
            return
        serving = ", ".join(sorted(one.name for one in self._pools if one.serves)) or "none"
        missing = f"no [{pool}.serving] in the pools file" if found else "it is not in the pools file any more"
        reason = f"pool '{pool}' serves no versions ({missing}); pools that do: {serving}"
        raise Problem(409, "Pool without serving", reason, "pool_without_serving", [FieldError("model", reason)])
