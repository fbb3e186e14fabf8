"""Expiry of what an ended task has stored, after its tenant's days: what is announced, and what is deleted. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

KINDS = ("adapters", "checkpoints", "batches", "events", "tasks")
"""Kinds of data with a number of days; `tasks` is all of a task."""
DAY_S = 86_400.0
LEAD_S = DAY_S
"""Minimum time from the announcement of a deletion to it."""


@dataclass(frozen=True)
class Expiry:
    """State of one ended task."""

    announced: dict[str, float]
    """Kinds that are going to be deleted, with the Unix time of the announcement."""
    due: frozenset[str]
    """Kinds to delete now."""


def expiry(days: Mapping[str, int], ended_s: float, announced: Mapping[str, float], expired: Collection[str], now_s: float) -> Expiry:
    """`days`: by kind, from the task's end; 0 keeps. All times are Unix seconds of one clock.

    A kind is announced LEAD_S before its last day is over, immediately if fewer days were set later, and deleted LEAD_S after that at the
    earliest. Days that are raised take back an announcement.
    """
    ends = {kind: ended_s + days[kind] * DAY_S for kind in KINDS if days[kind] > 0 and kind not in expired}
    standing = {kind: announced.get(kind, now_s) for kind, end_s in ends.items() if now_s >= end_s - LEAD_S}
    return Expiry(standing, frozenset(kind for kind, since_s in standing.items() if now_s >= max(ends[kind], since_s + LEAD_S)))
