"""`marlaas init`: what a stack needs before its first start, and new keys in place of lost or stolen ones."""

from pathlib import Path
from typing import Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, echo, pools_file


def init(
    data: Data = DEFAULT_DATA,
    pools: Annotated[
        Path | None, typer.Option(help="Pools file; default: the stack's, that here, or the project's.", envvar="MARLAAS_POOLS_FILE")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of signing keys; default: that of the last run, or `keys` in --data.")] = None,
    rekey: Annotated[
        bool, typer.Option("--rekey", help="Make new keys for a stopped stack whose folder of keys was lost or stolen; its tasks continue.")
    ] = False,
) -> None:
    """Make keys and what else a stack needs, without starting it. Repeated after an interruption, it does the rest."""
    from marlaas.stack import control, first_start
    from marlaas.stack.keys import rekey as replace_keys
    from marlaas.stack.state_files import plan_pools_file

    first_start.refuse_running(data)
    if rekey:
        replace_keys(keys or control.keys_of_last_run(data) or data / "keys", data / "nats")
    folder = first_start.make_ready(control.make_plan(data, pools or plan_pools_file(data) or pools_file(), keys=keys))
    then = ", then marlaas tenants push --new-accounts --delete-others" if rekey else ""
    echo(f"keys are in {folder}: back it up apart from the data; next: marlaas up{then}")
