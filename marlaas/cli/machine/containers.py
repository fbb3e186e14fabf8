"""`marlaas containers`: commands that docker-compose.yml runs before its services."""

import functools
import os
from pathlib import Path
from typing import Annotated

import typer

from marlaas.cli.session import Url, echo, pools_file, quiet, record_access

app = typer.Typer(no_args_is_help=True, help="What docker-compose.yml runs before its services.")
DATABASE = "MARLAAS_SCHEDULER_DATABASE_URL"
COPY = "umask 077; docker compose run --rm -T --entrypoint cat marlaas {}"
"""Command template that prints a file of the volumes."""


@app.command()
def init(
    volumes: Annotated[Path, typer.Option(help="Folder with the deployment's volumes.")] = Path("/volumes"),
    pools: Annotated[Path | None, typer.Option(help="Pools file.", envvar="MARLAAS_POOLS_FILE")] = None,
    families: Annotated[
        str, typer.Option(help="Families that environment replicas serve beyond those installed here, with commas.", envvar="ENV_FAMILIES")
    ] = "",
    rekey: Annotated[bool, typer.Option("--rekey", help="Make new keys for a deployment whose volume of keys was lost or stolen.")] = False,
) -> None:
    """Make missing keys and passwords in the volumes of a deployment, and write to each service's volume the ones it needs."""
    from common.access.services import Deployment
    from common.pools import read_accelerators, read_pools
    from marlaas.containers import Volumes, prepare
    from marlaas.stack.keys import installed_families

    known = dict.fromkeys([*installed_families(None), *(name.strip() for name in families.split(",") if name.strip())])
    described = read_pools(file := pools or pools_file())
    read_accelerators(file, described)  # otherwise every container would refuse the file, one after another
    deployment = Deployment.of(described, tuple(known))
    is_new = prepare(Volumes(volumes), deployment, rekey=rekey)
    echo("keys and passwords are made; back up the volume `keys` apart from the data" if is_new else "keys and passwords are there")


@app.command()
def accounts(
    keys: Annotated[Path, typer.Option("--keys", help="Folder of signing keys.", envvar="MARLAAS_KEYS")],
    creds: Annotated[Path, typer.Option("--to", help="Folder for the first tenant's key.")] = Path("/creds"),
    tenant: Annotated[str, typer.Option(help="Name of the first tenant; empty: none is made.")] = "",
    url: Url = "",
) -> None:
    """Make the operator's key and a first tenant with a key, unless they exist, and print where they are. Needs NATS and PostgreSQL."""
    from common.access.folder import open_folder
    from common.access.roles import ADMIN
    from marlaas.containers import open_accounts

    quiet()
    signing = open_folder(keys)
    record = functools.partial(record_access, {DATABASE: os.environ[DATABASE]})
    made = open_accounts(signing, url, tenant, creds, record)
    if made:
        echo(f"accounts were made for: {', '.join(made)}")
    echo(f"the operator's key, for every tenant: {COPY.format(signing.credentials(ADMIN))} > operator.creds")
    for file in sorted(creds.glob("*.creds")):
        echo(f"a tenant's key: {COPY.format(file)} > {file.name}")
    echo("tenants and keys: docker compose run --rm marlaas tenants --help; docker compose run --rm marlaas keys --help")
