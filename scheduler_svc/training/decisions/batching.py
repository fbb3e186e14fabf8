"""Batching: which groups make the next optimizer step. Pure.

A step takes the oldest ready groups. A group sampled by version a may be trained from versions a … a + max_staleness,
so it has a deadline, counted in steps. The step waits for older groups whenever leaving them out would put more of
them past a deadline than the steps until then can take (earliest deadline first). By the pace of admission
(`admission.py`) such a wait is always for groups in flight, which end by their score or their own deadline; no sample
is discarded for staleness. With max_staleness = 0 this is plain on-policy training.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LiveGroup:
    """A group that is open or ready."""

    number: int
    version: int
    ready: bool


def groups_for_step(groups: Sequence[LiveGroup], *, version: int, max_staleness: int, groups_per_step: int) -> list[int] | None:
    """Numbers of the groups to train from `version`, or None while the step must wait."""
    oldest = version - max_staleness
    ready = sorted((group for group in groups if group.ready and group.version >= oldest), key=lambda group: (group.version, group.number))
    chosen = ready[:groups_per_step]
    if len(chosen) < groups_per_step:
        return None
    left = set(groups) - set(chosen)
    for sampled_by in range(oldest, version + 1):
        steps_after_this_one = sampled_by + max_staleness - version
        if sum(group.version <= sampled_by for group in left) > steps_after_this_one * groups_per_step:
            return None
    return sorted(group.number for group in chosen)


def stale_groups(groups: Sequence[LiveGroup], *, version: int, max_staleness: int) -> list[int]:
    """Numbers of the groups that are too stale for any further step; a safety check, empty by construction."""
    return [group.number for group in groups if group.version < version - max_staleness]
