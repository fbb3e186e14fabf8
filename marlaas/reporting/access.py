"""Tables of tenants and keys."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from common.messages import KeyRecord, TenantAccess


def tenant_table(tenants: Sequence[TenantAccess], width: int | None = None) -> Table:
    table = Table("tenant", "state", "valid keys", "account", box=None, header_style="bold", width=width)
    for one in tenants:
        state = "deleted" if one.deleted else "suspended" if one.suspended else "active" if one.account else "no account"
        table.add_row(one.tenant, state, str(sum(key.revoked is None for key in one.keys)), one.account or "")
    return table


def key_table(keys: Sequence[KeyRecord], width: int | None = None) -> Table:
    table = Table("key", "role", "state", "created", "ends", "last job", "public key", box=None, header_style="bold", width=width)
    for one in keys:
        state = f"revoked {_shown(one.revoked)}" if one.revoked else "valid"
        table.add_row(one.name, one.role, state, _shown(one.created), _shown(one.ends), _shown(one.last_used), one.key)
    return table


def _shown(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else ""
