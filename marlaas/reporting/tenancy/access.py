"""Tables of tenants and keys."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table

from common.limits import LIMITS
from common.messages import KeyRecord, TenantAccess


def tenant_table(tenants: Sequence[TenantAccess], width: int | None = None) -> Table:
    table = Table("tenant", "state", "valid keys", "account", box=None, header_style="bold", width=width)
    for one in tenants:
        state = "deleted" if one.deleted else "suspended" if one.suspended else "active" if one.account else "no account"
        table.add_row(one.tenant, state, str(sum(key.revoked is None for key in one.keys)), one.account or "")
    return table


def key_table(keys: Sequence[KeyRecord], width: int | None = None) -> Table:
    table = Table("key", "for", "role", "state", "created", "ends", "last job", "public key", box=None, header_style="bold", width=width)
    for one in keys:
        state = f"revoked {_shown(one.revoked)}" if one.revoked else "valid"
        door, times = "HTTP" if one.is_http else "NATS", (one.created, one.ends, one.last_used)
        table.add_row(one.name, door, one.role, state, *map(_shown, times), one.key)
    return table


def limit_table(limits: Mapping[str, Mapping[str, int | None]], width: int | None = None) -> Table:
    """`limits`: value, default and use by name, as the event `tenant` has them."""
    table = Table("limit", "value", "default", "used", "of", box=None, header_style="bold", width=width)
    for name, limit in limits.items():
        value, default = ("no limit" if limit[each] is None else str(limit[each]) for each in ("value", "default"))
        used = "" if limit["used"] is None else str(limit["used"])
        table.add_row(name, value, default, used, next((kind.of for known, kind in LIMITS.items() if known == name), ""))
    return table


def _shown(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else ""
