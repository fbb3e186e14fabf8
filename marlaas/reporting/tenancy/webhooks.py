"""Tables of webhooks and of messages to them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from common.messages import DeliveryOf, WebhookOf


def webhook_table(webhooks: Sequence[WebhookOf], width: int | None = None) -> Table:
    """One row for each; the tenant where there are several."""
    has_tenants = len({one.tenant for one in webhooks}) > 1
    columns = ("webhook", "address", "events", "waiting", "dropped", "last")
    table = Table(*(("tenant",) if has_tenants else ()), *columns, box=None, header_style="bold", width=width)
    for one in webhooks:
        last = one.deliveries[0].state if one.deliveries else ""
        cells = (one.name, one.url, ", ".join(one.events), str(one.waiting), str(one.dropped), last)
        table.add_row(*((one.tenant,) if has_tenants else ()), *cells)
    return table


def delivery_table(deliveries: Sequence[DeliveryOf], width: int | None = None) -> Table:
    """One row for each message."""
    table = Table("message", "event", "created", "state", "attempts", "status", "reason", box=None, header_style="bold", width=width)
    for one in deliveries:
        created = f"{datetime.fromtimestamp(one.created_s, UTC):%Y-%m-%d %H:%M}"
        status = "" if one.status is None else str(one.status)
        table.add_row(one.id, one.event, created, one.state, str(one.attempts), status, one.reason)
    return table
