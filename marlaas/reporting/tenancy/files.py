"""Table of uploaded files."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from common.messages import StoredFile


def file_table(files: Sequence[StoredFile], width: int | None = None) -> Table:
    """One row for each; the tenant where there are several."""
    tenants = {one.tenant for one in files}
    columns = ("file", "name", "state", "rows", "bytes", "live tasks", "uploaded", "reason")
    table = Table(*(("tenant",) if len(tenants) > 1 else ()), *columns, box=None, header_style="bold", width=width)
    for one in files:
        uploaded = f"{datetime.fromtimestamp(one.uploaded_s, UTC):%Y-%m-%d %H:%M}"
        cells = (one.file, one.name, one.state, str(one.rows), str(one.size_bytes), str(one.live_tasks), uploaded, one.reason)
        table.add_row(*((one.tenant,) if len(tenants) > 1 else ()), *cells)
    return table
