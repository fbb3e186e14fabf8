"""Commands for webhooks: `marlaas webhooks`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Whose, Wide, echo, minute, print_table, table_by_tenant, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import DeliveryOf, WebhookOf

app = typer.Typer(no_args_is_help=True, help="URLs that receive a message when a task finishes or fails, or a budget is spent; for owners.")
NameOf = Annotated[str, typer.Argument(help="Name of the webhook.")]


@app.command("set")
def set_webhook(
    name: NameOf,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where messages are posted: https://…")],
    event: Annotated[list[str] | None, typer.Option(help="finished, failed or budget; repeat it for several. Default: all.")] = None,
    new_secret: Annotated[bool, typer.Option("--new-secret", help="Replace the secret of a webhook that is there.")] = False,
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Create a webhook, and print the secret that signs its messages; or change one."""
    from common.messages import WEBHOOK_EVENTS, WebhookEvent

    events: list[WebhookEvent] = [known for known in WEBHOOK_EVENTS if not event or known in event]
    if unknown := set(event or ()) - set(WEBHOOK_EVENTS):
        raise typer.BadParameter(f"there is no event '{min(unknown)}'; there are {', '.join(WEBHOOK_EVENTS)}", param_hint="--event")
    made = with_client(
        data, url, lambda client: client.webhooks.set(name, address, events, tenant=tenant or None, replace_secret=new_secret)
    )
    echo(made.secret or f"{name} is changed; its secret is the one that it had")


@app.command("list")
def list_webhooks(
    name: Annotated[str, typer.Argument(help="Only this one, with its latest messages.")] = "",
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
    wide: Wide = False,
) -> None:
    """List webhooks; with a name, also the outcomes of its latest messages."""
    found = with_client(data, url, lambda client: client.webhooks.all(name or None, tenant=tenant or None))
    if not found:
        echo("no such webhook" if name else "no webhooks; `marlaas webhooks set NAME https://…` makes one")
        return
    print_table(lambda width: webhook_table(found, width), wide)
    for one in found if name else []:
        if one.deliveries:
            if len(found) > 1:
                echo(f"\nmessages of tenant {one.tenant}:")
            print_table(lambda width, one=one: delivery_table(one.deliveries, width), wide)


@app.command("delete")
def delete_webhook(name: NameOf, tenant: Whose = "", data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Delete a webhook and its pending messages."""
    with_client(data, url, lambda client: client.webhooks.delete(name, tenant=tenant or None))
    echo(f"{name} is deleted")


def webhook_table(webhooks: "Sequence[WebhookOf]", width: int | None = None) -> "Table":
    columns = ("webhook", "address", "events", "waiting", "dropped", "last")
    return table_by_tenant(webhooks, columns, _cells, width)


def _cells(one: "WebhookOf") -> tuple[str, ...]:
    last = one.deliveries[0].state if one.deliveries else ""
    return one.name, one.url, ", ".join(one.events), str(one.waiting), str(one.dropped), last


def delivery_table(deliveries: "Sequence[DeliveryOf]", width: int | None = None) -> "Table":
    """Table of a webhook's deliveries, one row per message."""
    from rich.table import Table

    table = Table("message", "event", "created", "state", "attempts", "status", "reason", box=None, header_style="bold", width=width)
    for one in deliveries:
        status = "" if one.status is None else str(one.status)
        table.add_row(one.id, one.event, minute(one.created_s), one.state, str(one.attempts), status, one.reason)
    return table
