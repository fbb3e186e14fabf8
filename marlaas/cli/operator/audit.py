"""`marlaas audit`: the audit log, for operators and owners."""

import csv
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import AuditLine

COLUMNS = ("number", "at", "tenant", "who", "key", "via", "host", "verb", "target", "outcome", "reason", "count", "detail")
SHOWN = ("at", "tenant", "who", "verb", "target", "outcome", "count", "detail")


def audit(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    tenant: Annotated[str | None, typer.Option(help="Name of a tenant; default: all, or the key's own.")] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="Moment in UTC; default: the first row.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with every column.")] = False,
    wide: Wide = False,
) -> None:
    """List audited actions: jobs, downloads, deletions, keys, limits, budgets and prices; refusals are counted by the hour."""
    moment = since.replace(tzinfo=UTC) if since else None
    lines = with_client(data, url, lambda client: client.audit(tenant, moment))
    if as_csv:
        echo(audit_csv(lines).rstrip("\n"))
    elif lines:
        print_table(lambda width: audit_table(lines, width), wide)
    else:
        echo("no rows yet")


def who(line: "AuditLine") -> str:
    """Name of the key, else a description of the sender. A key without a name is the operator's, or a deleted tenant's."""
    if line.name is not None or line.via in ("scheduler", "short form"):
        return line.name or line.via
    return f"{line.key[:8]}…" if line.key else "operator"


def audit_csv(lines: "Sequence[AuditLine]") -> str:
    """CSV with a header line; `detail` as JSON."""
    written = StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    for line in lines:
        rows.writerow([_text(line, name) for name in COLUMNS])
    return written.getvalue()


def audit_table(lines: "Sequence[AuditLine]", width: int | None = None) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(*SHOWN, box=None, header_style="bold", width=width)
    for line in lines:
        cells = {name: _text(line, name) for name in SHOWN} | ({"outcome": f"{line.outcome}: {line.reason}"} if line.reason else {})
        table.add_row(*(Text(cell) for cell in cells.values()))
    return table


def _text(line: "AuditLine", name: str) -> str:
    if name == "at":
        return line.at.isoformat(timespec="seconds")
    if name == "who":
        return who(line)
    value = getattr(line, name)
    return (json.dumps(value) if value else "") if name == "detail" else "" if value is None else str(value)
