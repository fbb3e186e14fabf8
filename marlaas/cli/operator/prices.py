"""Commands for prices, for operators."""

import secrets
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client

app = typer.Typer(no_args_is_help=True, help="Prices of what tasks use, for operators.")


def _amount(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"'{text}' is no amount") from None


@app.command("list")
def list_prices(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List every price that there is or was; of one kind and pool, the last that has begun holds."""
    from marlaas.reporting.tenancy import billing

    found = with_client(data, url, lambda client: client.billing.prices())
    if found:
        print_table(lambda width: billing.price_table(found, width), wide)
    else:
        echo("no prices yet; usage costs nothing. `marlaas prices set sampled 2.50 --per 1000000` sets one")


@app.command("set")
def set_price(
    of: Annotated[
        str,
        typer.Argument(
            help="prompt, sampled, trained, evaluation, served_prompt or served_sampled (tokens), env_ms or accelerator (milliseconds), or "
            "stored_byte_hours."
        ),
    ],
    price: Annotated[str, typer.Argument(help="Amount in the operator's currency.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    per: Annotated[int, typer.Option(help="Units that cost it: 1, 1000, 1000000, 1000000000 or 1000000000000.")] = 1,
    pool: Annotated[str | None, typer.Option(help="Pool; default: all pools without a price of their own.")] = None,
    valid_from: Annotated[datetime | None, typer.Option("--from", help="Moment in UTC, not in the past; default: now.")] = None,
) -> None:
    """Add a price. Those that there are stay: invoices of the past do not change."""
    from pydantic import ValidationError

    from common.formats.wrong_values import complaints
    from common.messages import SetPrice

    begins = valid_from.replace(tzinfo=UTC) if valid_from else None
    given = {"of": of, "pool": pool, "price": _amount(price), "per": per, "valid_from": begins}
    try:
        request = SetPrice.model_validate({"request": secrets.token_hex(6)} | given)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(complaints(error))) from None
    with_client(data, url, lambda client: client.billing.set_price(request))
    where = f"in pool {pool}" if pool else "in all pools without a price of their own"
    echo(f"{of}: {price} per {per} {where}, from {begins.isoformat() if begins else 'now'} on")
