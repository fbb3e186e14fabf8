"""`marlaas init`: what a stack needs before its first start, and keys for a stack that was made without."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, echo, pools_file, quiet, record_access

if TYPE_CHECKING:
    from common.access.folder import SigningKeys
    from common.messages import TenantAccess
    from marlaas.stack.state_files import Stack, StackPlan


def init(
    data: Data = DEFAULT_DATA,
    pools: Annotated[
        Path | None, typer.Option(help="Pools file; default: the stack's, that here, or the project's.", envvar="MARLAAS_POOLS_FILE")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of signing keys; default: that of the last run, or `keys` in --data.")] = None,
    from_existing: Annotated[
        bool, typer.Option("--from-existing", help="Give keys to a stopped stack that was made without; its tasks continue.")
    ] = False,
) -> None:
    """Make keys and what else a stack needs, without starting it. Repeated after an interruption, it does the rest."""
    from marlaas.stack import control, first_start
    from marlaas.stack.state_files import plan_pools_file

    offered = pools or plan_pools_file(data) or pools_file()
    first_start.refuse_running(data)
    if from_existing:
        first_start.refuse_absent(data)
        folder = keys or control.keys_of_last_run(data) or data / "keys"
        _give_keys(control.make_plan(data, offered, keys=folder))
    else:
        plan = control.make_plan(data, offered, keys=keys)
        folder = first_start.make_ready(plan)
        echo(f"keys are in {folder}: back it up apart from the data; next: marlaas up")


def _give_keys(plan: "StackPlan") -> None:
    """Start the stores alone, record and push an account for each tenant, and stop them."""
    from common.access.folder import open_folder
    from marlaas.stack import control

    assert plan.keys is not None
    try:
        stack = control.wait_until_ready(control.start(plan.model_copy(update={"services": []}), end_with_parent=True), lambda _: None)
        found = _completed(open_folder(plan.keys), plan, stack)
    finally:
        control.stop(plan.data)
    _report(plan.keys, found)


def _completed(signing: "SigningKeys", plan: "StackPlan", stack: "Stack") -> "list[TenantAccess]":
    from marlaas.tenancy import existing

    quiet()
    found = record_access(plan.prepare_env, existing.missing_records(signing, record_access(plan.prepare_env, [])))
    existing.write_admin_key(signing)
    asyncio.run(existing.push_accounts(signing, stack.nats_url, found))
    return found


def _report(folder: Path, found: "list[TenantAccess]") -> None:
    from common.access.folder import open_folder
    from marlaas.tenancy import existing

    named = existing.names_for_accounts(found)
    for one in found:
        if one.tenant is not None and one.tenant not in named:
            echo(f"tenant '{one.tenant}' can have no account, by its name; its tasks continue, and the operator acts for it")
    echo(f"keys are in {folder}: back it up apart from the data")
    echo(f"the operator's key for any NATS client, which acts for every tenant: {existing.admin_key(open_folder(folder))}")
    echo(f"tenants with an account: {', '.join(named) or 'none yet'}; next: marlaas up, then marlaas keys create TENANT NAME --to FILE")
