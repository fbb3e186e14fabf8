"""Table of aliases."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from common.messages import AliasOf


def alias_table(aliases: Sequence[AliasOf], width: int | None = None) -> Table:
    """One row for each; the tenant where there are several."""
    has_tenants = len({one.tenant for one in aliases}) > 1
    table = Table(*(("tenant",) if has_tenants else ()), "alias", "model", "pool", "changed", box=None, header_style="bold", width=width)
    for one in aliases:
        changed = f"{datetime.fromtimestamp(one.changed_s, UTC):%Y-%m-%d %H:%M}"
        table.add_row(*((one.tenant,) if has_tenants else ()), one.name, one.model, one.pool, changed)
    return table
