"""Commands for tenants, for operators: accounts, weights, limits, deletion, and read access to their own rows by psql."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marlaas.cli.operator.keys import Keys, is_operator, with_operator
from marlaas.cli.session import DEFAULT_DATA, Data, Url, Wide, echo, exec_module, print_found, print_table, run_module, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import TenantAccess

app = typer.Typer(no_args_is_help=True, help="Accounts, weights, limits and deletion of tenants, for operators.")
database = typer.Typer(help="Let tenants read their own rows with psql.", no_args_is_help=True)
Tenant = Annotated[str, typer.Argument(help="Name of a tenant.")]
OrAll = Annotated[str, typer.Argument(help="Name of a tenant; '_all' for the default limits.")]
NO_LIMIT, DEFAULT = "none", "default"
SETTING = f"NAME=NUMBER|{NO_LIMIT}|{DEFAULT}"
KINDS = ("adapters", "checkpoints", "batches", "events", "tasks")
KEPT = f"{'|'.join(KINDS)}=DAYS"


def _limit(text: str) -> tuple[str, int | str]:
    """Name of a limit, and its value, NO_LIMIT or DEFAULT. Raises: BadParameter."""
    from common.limits import LIMITS

    name, _, value = text.partition("=")
    if name not in LIMITS:
        raise typer.BadParameter(f"there is no limit '{name}'; there are {', '.join(LIMITS)}")
    if value in (NO_LIMIT, DEFAULT):
        return name, value
    try:
        return name, int(value)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not {SETTING}, such as max_tasks=4") from None


def _days(text: str) -> tuple[str, int]:
    """Name of a retention setting and its days. Raises: BadParameter."""
    kind, _, days = text.partition("=")
    if kind not in KINDS or not days.isdecimal():
        raise typer.BadParameter(f"'{text}' is not {KEPT}, such as adapters=90")
    return f"{kind}_days", int(days)


@app.command()
def create(tenant: Tenant, data: Data = DEFAULT_DATA, url: Url = "", keys: Keys = None) -> None:
    """Make a tenant with an account, so that it may have keys."""
    from marlaas.tenancy.accounts import create_tenant

    is_new = with_operator(data, url, keys, lambda operator: create_tenant(operator, tenant))
    echo(f"tenant '{tenant}' {'is made' if is_new else 'is there already'}; next: marlaas keys create {tenant} NAME --role owner --to FILE")


@app.command("list")
def list_tenants(data: Data = DEFAULT_DATA, url: Url = "", keys: Keys = None, wide: Wide = False) -> None:
    """List all tenants, with their numbers of keys."""
    from marlaas.tenancy import recording

    found = [one for one in with_operator(data, url, keys, lambda operator: recording.read_all(operator.door)) if one.tenant]
    print_found(found, tenant_table, wide, "no tenants yet; `marlaas tenants create NAME` makes one")


@app.command()
def suspend(
    tenant: Tenant,
    end: Annotated[bool, typer.Option("--end", help="End the suspension: its keys are taken again.")] = False,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Refuse all keys of a tenant, and close their connections; its tasks continue."""
    from marlaas.tenancy.accounts import suspend_tenant

    with_operator(data, url, keys, lambda operator: suspend_tenant(operator, tenant, suspended=not end))
    echo(f"tenant '{tenant}' is {'active again' if end else 'suspended'}")


@app.command()
def push(
    delete_others: Annotated[
        bool, typer.Option("--delete-others", help="Delete accounts from NATS that PostgreSQL knows nothing of.")
    ] = False,
    new_accounts: Annotated[
        bool, typer.Option("--new-accounts", help="Give tenants whose account is not of this folder of signing keys one that is.")
    ] = False,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Synchronize all tenants from PostgreSQL to NATS, after a command was interrupted or NATS's store was lost."""
    from marlaas.tenancy.accounts import push_all

    changed, others = with_operator(
        data, url, keys, lambda operator: push_all(operator, delete_others=delete_others, new_accounts=new_accounts)
    )
    echo(f"updated in NATS: {', '.join(changed)}" if changed else "NATS agrees with PostgreSQL about every tenant")
    if others:
        echo(f"{'deleted from NATS' if delete_others else 'unknown to PostgreSQL, kept'}: {', '.join(sorted(others))}")


@app.command("set")
def set_tenant(
    tenant: OrAll,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
    weight: Annotated[float | None, typer.Option(min=1e-6, help="Share of every queue, relative to other tenants' (1 at first).")] = None,
    limit: Annotated[list[str] | None, typer.Option(help=f"{SETTING}; `show` prints the names. Repeatable.")] = None,
    keep: Annotated[list[str] | None, typer.Option(help=f"Retention after a task's end: {KEPT}; 0 days: for ever. Repeatable.")] = None,
) -> None:
    """Change a tenant's weight, limits and retention; they apply from the next decision on, without a restart."""
    from common.limits import IN_ACCOUNT

    limits, days = dict(map(_limit, limit or [])), dict(map(_days, keep or []))
    if weight is None and not limits and not days:
        raise typer.BadParameter("give a weight, a limit or days to set; `marlaas tenants show` prints them")
    values = [{"of": name, "value": None if value == NO_LIMIT else value} for name, value in limits.items() if value != DEFAULT]
    defaults = [name for name, value in limits.items() if value == DEFAULT]
    _print(tenant, data, url, weight=weight, limits=values, defaults=defaults, **days)
    if limits.keys() & set(IN_ACCOUNT):
        _push(data, url, keys)


def _push(data: Path, url: str, keys: Path | None) -> None:
    """Put the limits of tenants' accounts into the accounts' tokens in NATS, for which the signing keys are needed."""
    from marlaas.stack.state_files import StackError
    from marlaas.tenancy.accounts import push_all

    try:
        changed, _ = with_operator(data, url, keys, lambda operator: push_all(operator, delete_others=False))
    except StackError as error:
        echo(f"limits of accounts hold once NATS has them: marlaas tenants push ({error})", to=sys.stderr)
    else:
        echo(f"updated in NATS: {', '.join(changed)}" if changed else "NATS has these limits already")


@app.command()
def show(tenant: OrAll, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Show a tenant's weight, retention and limits: the effective value, the default, and the amount used."""
    _print(tenant, data, url)


@app.command()
def delete(
    tenant: Tenant,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
    confirmed: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Cancel and delete all of a tenant's tasks, its other stored data, its keys and its account; records of its usage are kept.

    Repeated after an interruption, it deletes the rest, or reports that everything is deleted.
    """
    if not confirmed:
        typer.confirm(f"Delete everything that is stored of tenant {tenant}, adapters included?", abort=True)
    role = "not removed here; `marlaas database revoke` does, where the stack is" if url else _revoke_role(data, tenant)
    if is_operator(data, keys):
        from marlaas.client import DELETE_TIMEOUT_S
        from marlaas.tenancy.accounts import delete_with_account

        receipt = with_operator(data, url, keys, lambda operator: delete_with_account(operator, tenant, DELETE_TIMEOUT_S))
    else:  # an owner, or a deployment without keys
        receipt = with_client(data, url, lambda client: client.delete_tenant(tenant))
    width = max(map(len, receipt))
    echo("\n".join(f"{name:{width}}  {count}" for name, count in {**receipt, "role": role}.items()))


def _revoke_role(data: Path, tenant: str) -> str:
    """Remove the tenant's role from PostgreSQL; only the schema's owner may do so."""
    from marlaas.stack.state_files import read_plan, running_stack

    running_stack(data)
    done = run_module(["scheduler_svc.tenant_access", "revoke", tenant], read_plan(data).prepare_env)
    if done.returncode and "has no role" not in done.stderr:
        echo(done.stderr.strip(), to=sys.stderr)
        raise typer.Exit(1)
    return "none" if done.returncode else "removed"


def _print(tenant: str, data: Any, url: str, **changes: Any) -> None:
    from pydantic import ValidationError

    from common.formats.wrong_values import complaints
    from common.messages import SetTenant
    from common.streams import EVERY_TENANT

    try:
        request = SetTenant(tenant=None if tenant == EVERY_TENANT else tenant, request=secrets.token_hex(6), **changes)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(complaints(error))) from None
    found: dict[str, Any] = with_client(data, url, lambda client: client.set_tenant(request))
    limits, width = found.pop("limits"), max(map(len, found))
    echo("\n".join(f"{name:{width}}  {value}" for name, value in found.items()))
    print_table(lambda width: limit_table(limits, width), wide=False)


def tenant_table(tenants: "Sequence[TenantAccess]", width: int | None = None) -> "Table":
    from rich.table import Table

    table = Table("tenant", "state", "valid keys", "account", box=None, header_style="bold", width=width)
    for one in tenants:
        state = "deleted" if one.deleted else "suspended" if one.suspended else "active" if one.account else "no account"
        table.add_row(one.tenant, state, str(sum(key.revoked is None for key in one.keys)), one.account or "")
    return table


def limit_table(limits: Mapping[str, Mapping[str, int | None]], width: int | None = None) -> "Table":
    """One row per limit. `limits`: name → value, default and amount used, as in the event `tenant`."""
    from rich.table import Table

    from common.limits import LIMITS

    table = Table("limit", "value", "default", "used", "of", box=None, header_style="bold", width=width)
    for name, limit in limits.items():
        value, default = ("no limit" if limit[each] is None else str(limit[each]) for each in ("value", "default"))
        used = "" if limit["used"] is None else str(limit["used"])
        table.add_row(name, value, default, used, next((kind.of for known, kind in LIMITS.items() if known == name), ""))
    return table


@database.command()
def grant(tenant: Tenant, data: Data = DEFAULT_DATA) -> None:
    """Make a role that reads this tenant's rows, and print its password once; repeated, it sets a new password."""
    _access(data, "grant", tenant)


@database.command()
def revoke(tenant: Tenant, data: Data = DEFAULT_DATA) -> None:
    """Remove the tenant's role, and end its sessions."""
    _access(data, "revoke", tenant)


@database.command(name="list")
def list_roles(data: Data = DEFAULT_DATA) -> None:
    """List tenants that have a role, with the roles."""
    _access(data, "list")


def _access(data: Data, *arguments: str) -> None:
    from marlaas.stack.state_files import read_plan, running_stack

    running_stack(data)
    exec_module(["scheduler_svc.tenant_access", *arguments], read_plan(data).prepare_env)
