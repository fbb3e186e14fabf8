"""`marlaas audit`: who has done what, for operators and owners."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client


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
    """List who has done what: jobs, downloads, deletions, keys, limits, budgets and prices; refusals are counted by the hour."""
    from marlaas.reporting.tenancy import audit as report

    moment = since.replace(tzinfo=UTC) if since else None
    lines = with_client(data, url, lambda client: client.audit(tenant, moment))
    if as_csv:
        echo(report.audit_csv(lines).rstrip("\n"))
    elif lines:
        print_table(lambda width: report.audit_table(lines, width), wide)
    else:
        echo("no rows yet")
