"""Lines and columns about the blob store: how full it is, and what was deleted. Pure."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from common.blobs import ROOM
from common.client_api.training.download import stored_by_task
from common.messages import TaskStatus, TaskUsage, TenantUsage, UsageAnswer
from marlaas.client import Pruned, Stored
from marlaas.reporting.listing import Field, listing, scaled

NEARLY_FULL = 0.8
"""Share of the blob store above which `marlaas ps` warns; the alarm's default."""


def stored_fields(usage: UsageAnswer) -> list[Field[TaskStatus]]:
    """Columns of `marlaas ps --wide`."""
    nothing, stored = Stored(), stored_by_task(usage)
    return [
        Field("adapters", lambda one: Text(size(stored.get(one.task, nothing).adapters))),
        Field("stored", lambda one: Text(size(stored.get(one.task, nothing).bytes))),
    ]


def store_line(usage: UsageAnswer, *, always: bool = False) -> str | None:
    """Line on the use of the blob store, or of a tenant's part of it; None below the warning threshold, unless `always`."""
    if usage.store_bytes is None:
        return f"stored: {size(sum(one.stored_bytes for one in usage.tenants))}" if always else None
    limit = usage.store_limit_bytes
    if limit is None:
        return f"blob store: {size(usage.store_bytes)}" if always else None
    share = usage.store_bytes / limit
    said = f"blob store: {size(usage.store_bytes)} of {size(limit)}, {share:.0%}"
    if share < NEARLY_FULL:
        return said if always else None
    return f"{said}; once it is full no step can be stored: {ROOM}"


def usage_table(usage: UsageAnswer, width: int | None = None) -> Table:
    """A line for each tenant, with deleted tasks, and one for each task, in `width` characters; None: whole lines."""
    fields: list[Field[TenantUsage | TaskUsage]] = [
        Field("of", lambda one: Text(f"tenant {one.tenant}" if isinstance(one, TenantUsage) else one.task)),
        Field("prompt", lambda one: Text(scaled(one.prompt_tokens)), rank=2),
        Field("sampled", lambda one: Text(scaled(one.sampled_tokens))),
        Field("trained", lambda one: Text(scaled(one.trained_tokens))),
        Field("evaluation", lambda one: Text(scaled(one.evaluation_tokens)), rank=1),
        Field("served", lambda one: Text(scaled(one.served_prompt_tokens + one.served_sampled_tokens)), rank=5),
        Field("environment", lambda one: Text(f"{one.env_ms / 1000:.0f} s" if isinstance(one, TenantUsage) else ""), rank=4),
        Field("stored", lambda one: Text(size(one.stored_bytes)), rank=3),
    ]
    used: list[TenantUsage | TaskUsage] = [*usage.tenants, *usage.tasks]
    if any(one.accelerator_ms for one in used):
        fields.insert(-1, Field("accelerator", lambda one: Text(f"{one.accelerator_ms / 1000:.0f} s"), rank=6))
    return listing(used, fields, lambda _: "", width)


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
