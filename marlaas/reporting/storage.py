"""Lines and columns about the blob store: how full it is, and what was deleted. Pure."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from common.blobs import ROOM, StoreUsage
from common.messages import TaskStatus
from marlaas.client import Pruned, Stored
from marlaas.reporting.listing import Field, scaled

NEARLY_FULL = 0.8
"""Share of the blob store above which `marlaas ps` warns; the alarm's default."""


def stored_fields(stored: Mapping[str, Stored]) -> list[Field[TaskStatus]]:
    """Columns of `marlaas ps --wide`."""
    nothing = Stored()
    return [
        Field("adapters", lambda one: Text(size(stored.get(one.task, nothing).adapters))),
        Field("stored", lambda one: Text(size(stored.get(one.task, nothing).bytes))),
    ]


def store_line(usage: StoreUsage, *, always: bool = False) -> str | None:
    """Line on the blob store's use; None below the warning threshold, unless `always`."""
    limit = usage.limit_bytes
    if limit is None:
        return f"blob store: {size(usage.used_bytes)}" if always else None
    said = f"blob store: {size(usage.used_bytes)} of {size(limit)}, {usage.share:.0%}"
    if usage.share < NEARLY_FULL:
        return said if always else None
    return f"{said}; once it is full no step can be stored: {ROOM}"


def pruned_lines(found: Sequence[Pruned], dry_run: bool) -> list[str]:
    """Deletions, done or planned: a line a tenant, and the sum."""
    verb = "would delete" if dry_run else "deleted"
    lines: list[str] = []
    for one in found:
        if one.task_count:
            named = ", ".join(one.tasks[:10]) + (", …" if one.task_count > 10 else "")
            lines.append(f"{one.tenant}: {verb} {one.task_count} ended tasks, {size(one.task_bytes)}: {named}")
        if one.blobs:
            lines.append(f"{one.tenant}: {verb} {one.blobs} blobs that nothing needs, {size(one.blob_bytes)}")
    freed = size(sum(one.bytes for one in found))
    return [*lines, f"{freed} would be freed; nothing was deleted" if dry_run else f"{freed} freed"]


def size(number: int) -> str:
    return scaled(number, "B")
