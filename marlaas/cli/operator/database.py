"""`marlaas database`: which tenants read their own rows with psql."""

from typing import Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, exec_module

app = typer.Typer(help="Let tenants read their own rows with psql.", no_args_is_help=True)
Tenant = Annotated[str, typer.Argument(help="Name of a tenant.")]


@app.command()
def grant(tenant: Tenant, data: Data = DEFAULT_DATA) -> None:
    """Make a role that reads this tenant's rows, and print its password once; again: another password."""
    _access(data, "grant", tenant)


@app.command()
def revoke(tenant: Tenant, data: Data = DEFAULT_DATA) -> None:
    """Remove the tenant's role, and end its sessions."""
    _access(data, "revoke", tenant)


@app.command(name="list")
def list_roles(data: Data = DEFAULT_DATA) -> None:
    """List tenants with a role, and the roles."""
    _access(data, "list")


def _access(data: Data, *arguments: str) -> None:
    from marlaas.stack.state_files import read_plan, running_stack

    running_stack(data)
    exec_module(["scheduler_svc.tenant_access", *arguments], read_plan(data).prepare_env)
