"""Usage of tenants and tasks, its costs, and stored bytes."""

import csv
from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import InvoiceLine, TaskStatus, UsageAnswer
    from marlaas.client import Pruned
    from marlaas.reporting.listing import Field

COLUMNS = ("day", "tenant", "pool", "kind", "quantity", "money")
NEARLY_FULL = 0.8
"""Used fraction of the blob store above which `marlaas ps` warns; equals the alarm's default."""


def usage(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    wide: Wide = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the invoice as CSV, amounts to the last digit.")] = False,
    first: Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="First day of the invoice, in UTC.")] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day of the invoice.")] = None,
) -> None:
    """List the tokens used and bytes stored by each tenant and task; or the invoice by day, pool and kind."""
    if as_csv or first or last:
        days = first.date() if first else None, last.date() if last else None
        lines = with_client(data, url, lambda client: client.billing.invoice(*days))
        if as_csv:
            echo(invoice_csv(lines).rstrip("\n"))
        else:
            print_table(lambda width: invoice_table(lines, width), wide)
        return
    found = with_client(data, url, lambda client: client.usage())
    if found.tenants:
        print_table(lambda width: usage_table(found, width), wide)
    else:
        echo("nothing was used yet; submit a task with `marlaas submit task.toml`")


def invoice_table(lines: "Sequence[InvoiceLine]", width: int | None = None) -> "Table":
    from common.messages import InvoiceLine
    from marlaas.reporting.listing import Field, listing

    fields = [Field[InvoiceLine](name, lambda line, name=name: str(line.model_dump()[name])) for name in COLUMNS]
    return listing(lines, fields, lambda _: "", width)


def invoice_csv(lines: "Sequence[InvoiceLine]") -> str:
    """CSV with a header line, and amounts to the last digit."""
    written = StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows([str(line.model_dump()[name]) for name in COLUMNS] for line in lines)
    return written.getvalue()


def usage_table(usage: "UsageAnswer", width: int | None = None) -> "Table":
    """One row per tenant, deleted tasks included, and one per task, in `width` characters; None: no maximum."""
    from common.messages import TaskUsage, TenantUsage
    from marlaas.reporting.listing import Field, listing, scaled

    fields: list[Field[TenantUsage | TaskUsage]] = [
        Field("of", lambda one: f"tenant {one.tenant}" if isinstance(one, TenantUsage) else one.task),
        Field("prompt", lambda one: scaled(one.prompt_tokens), rank=2),
        Field("sampled", lambda one: scaled(one.sampled_tokens)),
        Field("trained", lambda one: scaled(one.trained_tokens)),
        Field("evaluation", lambda one: scaled(one.evaluation_tokens), rank=1),
        Field("served", lambda one: scaled(one.served_prompt_tokens + one.served_sampled_tokens), rank=5),
        Field("environment", lambda one: f"{one.env_ms / 1000:.0f} s" if isinstance(one, TenantUsage) else "", rank=4),
        Field("stored", lambda one: size(one.stored_bytes), rank=3),
    ]
    used: list[TenantUsage | TaskUsage] = [*usage.tenants, *usage.tasks]
    if any(one.accelerator_ms for one in used):
        fields.insert(-1, Field("accelerator", lambda one: f"{one.accelerator_ms / 1000:.0f} s", rank=6))
    return listing(used, fields, lambda _: "", width)


def prune(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    tenant: Annotated[str | None, typer.Option(help="Tenant; default: all.")] = None,
    older_than: Annotated[float | None, typer.Option(min=0.001, help="Delete also tasks that ended more than this many days ago.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be deleted, and delete nothing.")] = False,
) -> None:
    """Delete data that no task's section `keep` retains, and tasks that ended long ago."""
    age_s = None if older_than is None else older_than * 86_400
    pruned = with_client(data, url, lambda client: client.prune(tenant, ended_before_s=age_s, dry_run=dry_run))
    echo("\n".join(pruned_lines(pruned, dry_run)))


def pruned_lines(found: "Sequence[Pruned]", dry_run: bool) -> list[str]:
    """Lines on deletions, done or planned: one per tenant, and the total."""
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


def stored_fields(usage: "UsageAnswer") -> "list[Field[TaskStatus]]":
    """Additional columns of `marlaas ps --wide`."""
    from common.client_api.training.download import Stored, stored_by_task
    from marlaas.reporting.listing import Field

    nothing, stored = Stored(), stored_by_task(usage)
    return [
        Field("adapters", lambda one: size(stored.get(one.task, nothing).adapters)),
        Field("stored", lambda one: size(stored.get(one.task, nothing).bytes)),
    ]


def store_line(usage: "UsageAnswer", *, always: bool = False) -> str | None:
    """Line on the use of the blob store, or of a tenant's part of it; None below the warning threshold, unless `always`."""
    from common.blobs import ROOM

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


def size(number: int) -> str:
    from marlaas.reporting.listing import scaled

    return scaled(number, "B")
