"""Commands for aliases: `marlaas alias`."""

from typing import Annotated, Literal

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, print_table, with_client

app = typer.Typer(no_args_is_help=True, help="Names for versions of tasks, which requests may name as their model.")
NameOf = Annotated[str, typer.Argument(help="Name of the alias.")]
Whose = Annotated[str, typer.Option("--tenant", help="Whose it is; default: the key's tenant.")]
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
    """Let an alias name a version, which is then kept."""
    task, _, version = model.partition("@")
    wanted = _version(version)
    found = with_client(data, url, lambda client: client.aliases.set(name, task, wanted, tenant=tenant or None, expected=expected))
    echo(f"{found.name} names {found.model}")


def _version(text: str) -> "int | Literal['latest', 'best']":
    """Raises: BadParameter."""
    if text == "latest" or text == "best":
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0):
        raise typer.BadParameter(f"'{text}' is no version; name the model as TASK@7, TASK@latest or TASK@best", param_hint="MODEL")
    return int(text)


@app.command("list")
def list_aliases(tenant: Whose = "", data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List aliases, and what they name."""
    from marlaas.reporting.tenancy.aliases import alias_table

    found = with_client(data, url, lambda client: client.aliases.all(tenant=tenant or None))
    if found:
        print_table(lambda width: alias_table(found, width), wide)
    else:
        echo("no aliases; `marlaas alias set NAME TASK@best` makes one")


@app.command("delete")
def delete_alias(name: NameOf, tenant: Whose = "", expected: If = None, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Delete an alias; its version stays only as long as other rules keep it."""
    found = with_client(data, url, lambda client: client.aliases.delete(name, tenant=tenant or None, expected=expected))
    echo(f"{found.name} is deleted; it named {found.model}")
