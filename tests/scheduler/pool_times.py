"""Clocks of pools, and stability, as decisions are given them."""

from scheduler_svc.training.decisions.pool_load import PoolTimes


def never_parked(now_s: float) -> PoolTimes:
    return PoolTimes(now_s)


def NEVER(pool: str) -> float:
    """Seconds for which all was stable: there was a disturbance just now."""
    return 0.0
