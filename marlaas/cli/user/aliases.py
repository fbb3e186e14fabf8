"""Commands for aliases: `marlaas alias`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Whose, Wide, echo, minute, print_found, table_by_tenant, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import AliasOf

app = typer.Typer(no_args_is_help=True, help="Names for versions of tasks, which requests may name as their model.")
NameOf = Annotated[str, typer.Argument(help="Name of the alias.")]
If = Annotated[str | None, typer.Option("--if", help="Only where it names this version, such as TASK@7; empty: only where there is none.")]


@app.command("set")
def set_alias(
    name: NameOf,
    model: Annotated[str, typer.Argument(help="TASK@VERSION; VERSION is a number, latest or best, resolved once.")],
    tenant: Whose = "",
    expected: If = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Create or change an alias for a version, which is then kept."""
    task, _, version = model.partition("@")
    wanted = _version(version)
    found = with_client(data, url, lambda client: client.aliases.set(name, task, wanted, tenant=tenant or None, expected=expected))
    echo(f"{found.name} names {found.model}")


def _version(text: str) -> "int | Literal['latest', 'best']":
    """A version number, `latest` or `best`. Raises: BadParameter."""
    if text == "latest" or text == "best":
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0):
        raise typer.BadParameter(f"'{text}' is no version; name the model as TASK@7, TASK@latest or TASK@best", param_hint="MODEL")
    return int(text)


@app.command("list")
def list_aliases(tenant: Whose = "", data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List aliases, with the versions that they name."""
    found = with_client(data, url, lambda client: client.aliases.all(tenant=tenant or None))
    print_found(found, _table, wide, "no aliases; `marlaas alias set NAME TASK@best` makes one")


def _table(aliases: Sequence["AliasOf"], width: int | None) -> "Table":
    columns = ("alias", "model", "pool", "changed")
    return table_by_tenant(aliases, columns, lambda one: (one.name, one.model, one.pool, minute(one.changed_s)), width)


@app.command("delete")
def delete_alias(name: NameOf, tenant: Whose = "", expected: If = None, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Delete an alias; afterwards its version is kept only if other rules keep it."""
    found = with_client(data, url, lambda client: client.aliases.delete(name, tenant=tenant or None, expected=expected))
    echo(f"{found.name} is deleted; it named {found.model}")
