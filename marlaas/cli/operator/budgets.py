"""Commands for budgets of tenants, for operators."""

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client

app = typer.Typer(no_args_is_help=True, help="What tenants may spend in a day, a month or in all; operators set it.")
NONE = "none"


@app.command("list")
def list_budgets(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List budgets, what is spent in their present periods, and what work in flight may cost at most."""
    from marlaas.reporting.tenancy import billing

    found = with_client(data, url, lambda client: client.billing.budgets())
    if found:
        print_table(lambda width: billing.budget_table(found, width), wide)
    else:
        echo("no budgets")


@app.command("set")
def set_budget(
    tenant: Annotated[str, typer.Argument(help="Name of a tenant.")],
    amount: Annotated[str, typer.Argument(help=f"Amount in the unit, or '{NONE}' to remove the budget.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    unit: Annotated[str, typer.Option(help="money or tokens.")] = "money",
    period: Annotated[str, typer.Option("--per", help="day or month, in UTC, or total.")] = "month",
) -> None:
    """Set a budget. At 80 % an event warns; what does not fit is not begun, and tasks are paused until the budget allows more."""
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
