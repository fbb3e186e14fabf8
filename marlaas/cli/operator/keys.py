"""Commands for keys, for operators."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, check_is_nats, echo, is_insecure, named_creds, print_found, quiet, tls_files

if TYPE_CHECKING:
    from rich.table import Table

    from common.access.folder import SigningKeys
    from common.messages import KeyRecord
    from marlaas.tenancy.recording import Operator

T = TypeVar("T")
app = typer.Typer(no_args_is_help=True, help="Keys of tenants, for operators.")
Tenant = Annotated[str, typer.Argument(help="Name of a tenant; 'admin' for operators' keys.")]
Name = Annotated[str, typer.Argument(help="Name of the key: small letters, digits and hyphens.")]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", help="File that the key is written to, for its holder alone; it must not be there. HTTP keys are printed instead."
    ),
]
Keys = Annotated[
    Path | None, typer.Option("--keys", help="Folder of signing keys; default: that of the stack in --data.", envvar="MARLAAS_KEYS")
]


def with_operator(data: Path, url: str, keys: Path | None, ask: "Callable[[Operator], Coroutine[Any, Any, T]]") -> T:
    """Connect with the signing keys; returns the result of `ask`."""
    from marlaas.stack.state_files import running_stack
    from marlaas.tenancy.recording import connected

    check_is_nats(url)
    signing, where = signing_keys(data, keys), url or running_stack(data).nats_url

    async def run() -> T:
        async with connected(signing, where, insecure=is_insecure(), tls=tls_files()) as operator:
            return await ask(operator)

    quiet()
    return asyncio.run(run())


def is_operator(data: Path, keys: Path | None) -> bool:
    """Whether this user has the folder of signing keys, and has named no other key."""
    from common.access.folder import credentials_path
    from marlaas.stack.state_files import read_plan

    folder = keys or (read_plan(data).keys if (data / "plan.json").exists() else None)
    return folder is not None and named_creds() in (None, credentials_path(folder, "operator"))


def signing_keys(data: Path, keys: Path | None) -> "SigningKeys":
    from common.access.folder import open_folder
    from marlaas.stack.state_files import StackError, read_plan

    folder = keys or (read_plan(data).keys if (data / "plan.json").exists() else None)
    if folder is None:
        raise StackError(f"the stack in {data} has no keys; name the folder of signing keys with --keys")
    return open_folder(folder)


@app.command()
def create(  # noqa: PLR0913 - each is an option with a name of its own
    tenant: Tenant,
    name: Name,
    to: To = None,
    http: Annotated[bool, typer.Option("--http", help="A key for the HTTP door, of one line; printed once, unless --to is given.")] = False,
    role: Annotated[str, typer.Option(help="owner, member, reader; admin for 'admin'.")] = "member",
    days: Annotated[int | None, typer.Option(min=1, help="Days until it ends; default: no end.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Make a key, and write it to a file that only this user can read, or print an HTTP key. It is stored nowhere else."""
    from common.access.roles import ROLES
    from marlaas.tenancy.keys import Receiver, create_key

    if to is None and not http:
        raise typer.BadParameter("name a file for the key with --to, or make an HTTP key with --http")
    if role not in ROLES:
        raise typer.BadParameter(f"'{role}' is no role; there are {', '.join(ROLES)}")
    _check_name(name)
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) if days else None
    receiver = Receiver(to, echo)
    with_operator(data, url, keys, lambda operator: create_key(operator, tenant, name, role, receiver, ends, is_http=http))
    made = f"key '{name}' ({role} of '{tenant}')"
    if http:
        where = f"is in {to}" if to else "is printed once, and kept nowhere"
        echo(f"{made} {where}; its holder sends it to a gateway as: Authorization: Bearer KEY", to=sys.stderr)
    else:
        echo(f"{made} is in {to}; its holder uses it with: marlaas --creds {to} --url NATS")


@app.command("list")
def list_keys(tenant: Tenant, data: Data = DEFAULT_DATA, url: Url = "", keys: Keys = None, wide: Wide = False) -> None:
    """List a tenant's keys, revoked ones included."""
    from marlaas.tenancy import recording

    access = with_operator(data, url, keys, lambda operator: recording.with_account(operator.door, tenant))
    print_found(access.keys, key_table, wide, f"'{tenant}' has no keys yet; `marlaas keys create {tenant} NAME --to FILE` makes one")


@app.command()
def rotate(
    tenant: Tenant,
    name: Name,
    to: To = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Leave the old key valid; revoke it later by its public key.")] = False,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Replace a key by a new one; the old one is revoked once the new one is written."""
    from marlaas.tenancy.keys import Receiver, rotate_key

    _check_name(name)
    with_operator(data, url, keys, lambda operator: rotate_key(operator, tenant, name, Receiver(to, echo), keep_old=keep_old))
    old = f"the old one {'is still valid' if keep_old else 'is revoked'}"
    if to is None:
        echo(f"key '{name}' of '{tenant}' is printed once, and kept nowhere; {old}", to=sys.stderr)
    else:
        echo(f"key '{name}' of '{tenant}' is in {to}; {old}")


@app.command()
def revoke(
    tenant: Tenant,
    name: Annotated[str, typer.Argument(help="Name of the key, or a public key as `marlaas keys list` shows it.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Refuse a key from now on, and close its connections; the tenant's other keys continue to work."""
    from marlaas.tenancy.keys import revoke_key

    revoked = with_operator(data, url, keys, lambda operator: revoke_key(operator, tenant, name))
    echo(f"key '{name}' of '{tenant}' is revoked" if revoked else f"key '{name}' of '{tenant}' was revoked already; NATS was updated")


@app.command("server-config")
def server_config(
    to: Annotated[Path, typer.Option("--to", help="File to write; nothing in it is secret.")],
    accounts: Annotated[str, typer.Option(help="Folder in which each server keeps the tenants' tokens.")] = "/data/accounts",
    data: Data = DEFAULT_DATA,
    keys: Keys = None,
) -> None:
    """Write the account section of the configuration of NATS servers that `marlaas up` does not start, such as a cluster's."""
    from common.access.folder import server_configuration

    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(server_configuration(signing_keys(data, keys), accounts))
    echo(f"written: {to}; it is included by deploy/nats-cluster.conf, and by deploy/nats.conf")


def _check_name(name: str) -> None:
    import re

    from common.spec.sections import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        raise typer.BadParameter(f"'{name}' cannot be a key's name: small letters, digits and hyphens, 40 at most")


def key_table(keys: "Sequence[KeyRecord]", width: int | None = None) -> "Table":
    from rich.table import Table

    table = Table("key", "for", "role", "state", "created", "ends", "last job", "public key", box=None, header_style="bold", width=width)
    for one in keys:
        state = f"revoked {_shown(one.revoked)}" if one.revoked else "valid"
        door, times = "HTTP" if one.is_http else "NATS", (one.created, one.ends, one.last_used)
        table.add_row(one.name, door, one.role, state, *map(_shown, times), one.key)
    return table


def _shown(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else ""
