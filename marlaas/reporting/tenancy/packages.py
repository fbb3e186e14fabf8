"""Table of uploaded packages."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from common.messages import DIGEST_CHARS, OwnPackage


def package_table(packages: Sequence[OwnPackage], width: int | None = None) -> Table:
    """One row for each; the tenant where there are several."""
    tenants = {one.tenant for one in packages}
    columns = ("package", "version", "digest", "state", "environments", "live tasks", "bytes", "uploaded", "reason")
    table = Table(*(("tenant",) if len(tenants) > 1 else ()), *columns, box=None, header_style="bold", width=width)
    for one in packages:
        uploaded = f"{datetime.fromtimestamp(one.uploaded_s, UTC):%Y-%m-%d %H:%M}"
        cells = (one.package, one.version, one.digest[:DIGEST_CHARS], one.state, ", ".join(one.environments), str(one.live_tasks))
        table.add_row(*((one.tenant,) if len(tenants) > 1 else ()), *cells, str(one.size_bytes), uploaded, one.reason)
    return table
