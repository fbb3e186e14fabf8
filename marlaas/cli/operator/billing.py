"""Commands for prices and budgets, for operators."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_found, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import BudgetOf, PriceOf

prices = typer.Typer(no_args_is_help=True, help="Prices of what tasks use, for operators.")
budgets = typer.Typer(no_args_is_help=True, help="What tenants may spend in a day, a month or in all; operators set it.")
NONE = "none"


def _amount(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"'{text}' is no amount") from None


@prices.command("list")
def list_prices(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List every current and past price; for one kind and pool, the latest that has started applies."""
    found = with_client(data, url, lambda client: client.billing.prices())
    print_found(found, price_table, wide, "no prices yet; usage costs nothing. `marlaas prices set sampled 2.50 --per 1000000` sets one")


@prices.command("set")
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
    """Add a price. Existing ones are kept, so past invoices do not change."""
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


def price_table(prices: "Sequence[PriceOf]", width: int | None = None) -> "Table":
    from marlaas.reporting.listing import Field, listing

    fields: list[Field[PriceOf]] = [
        Field("of", lambda one: one.of),
        Field("pool", lambda one: one.pool or "all"),
        Field("price", lambda one: format(one.price, "f")),
        Field("per", lambda one: str(one.per)),
        Field("valid from", lambda one: one.valid_from.isoformat(timespec="seconds")),
    ]
    return listing(prices, fields, lambda _: "", width)


@budgets.command("list")
def list_budgets(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List budgets, the amounts spent in their current periods, and the maximum cost of work in flight."""
    found = with_client(data, url, lambda client: client.billing.budgets())
    print_found(found, budget_table, wide, "no budgets")


@budgets.command("set")
def set_budget(
    tenant: Annotated[str, typer.Argument(help="Name of a tenant.")],
    amount: Annotated[str, typer.Argument(help=f"Amount in the unit, or '{NONE}' to remove the budget.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    unit: Annotated[str, typer.Option(help="money or tokens.")] = "money",
    period: Annotated[str, typer.Option("--per", help="day or month, in UTC, or total.")] = "month",
) -> None:
    """Set a budget. At 80 % an event warns; work that does not fit is not started, and tasks are paused until the budget allows more."""
    if unit not in ("money", "tokens") or period not in ("day", "month", "total"):
        raise typer.BadParameter("--unit is money or tokens, --per is day, month or total")
    try:
        given = None if amount == NONE else Decimal(amount)
    except InvalidOperation:
        raise typer.BadParameter(f"'{amount}' is neither an amount nor '{NONE}'") from None
    if given is not None and not 0 <= given < Decimal("1e18"):
        raise typer.BadParameter(f"{amount} is no amount of a budget")
    with_client(data, url, lambda client: client.billing.set_budget(tenant, period, unit, given))
    echo(f"{tenant}: {'no budget of' if given is None else amount} {unit} {'in all' if period == 'total' else 'a ' + period}")


def budget_table(budgets: "Sequence[BudgetOf]", width: int | None = None) -> "Table":
    from rich.text import Text

    from common.messages import BudgetOf
    from marlaas.reporting.listing import Field, listing

    fields = [Field[BudgetOf](name, lambda one, name=name: Text(str(one.model_dump()[name]))) for name in BudgetOf.model_fields]
    return listing(budgets, fields, lambda _: "", width)
