"""Expiry of an ended task's data by its tenant's retention days: announcements and deletions. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

KINDS = ("adapters", "checkpoints", "batches", "events", "tasks")
"""Kinds of data with retention days; `tasks` is all data of a task."""
DAY_S = 86_400.0
LEAD_S = DAY_S
"""Minimum seconds between the announcement of a deletion and the deletion."""


@dataclass(frozen=True)
class Expiry:
    """State of one ended task."""

    announced: dict[str, float]
    """Kinds announced for deletion, with the Unix time of the announcement."""
    due: frozenset[str]
    """Kinds to delete now."""


def expiry(days: Mapping[str, int], ended_s: float, announced: Mapping[str, float], expired: Collection[str], now_s: float) -> Expiry:
    """Announced and due kinds of a task's data. `days`: by kind, from the task's end; 0: kept forever. Times are Unix seconds.

    A kind is announced LEAD_S before its last day ends, or immediately if the days were reduced later. It is deleted at least LEAD_S after
    the announcement. Raising the days withdraws an announcement.
    """
    ends = {kind: ended_s + days[kind] * DAY_S for kind in KINDS if days[kind] > 0 and kind not in expired}
    standing = {kind: announced.get(kind, now_s) for kind, end_s in ends.items() if now_s >= end_s - LEAD_S}
    return Expiry(standing, frozenset(kind for kind, since_s in standing.items() if now_s >= max(ends[kind], since_s + LEAD_S)))
