"""Commands for the streams of a deployment, for operators."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.operator.keys import Keys, signing_keys
from marlaas.cli.session import DEFAULT_DATA, Data, Url, echo, is_insecure, quiet, tls_files

if TYPE_CHECKING:
    from common.access.folder import SigningKeys

app = typer.Typer(no_args_is_help=True, help="NATS' streams, saved to a folder and restored from it, for operators.")
Folder = Annotated[Path, typer.Argument(help="Folder of the saved streams.")]


@app.command()
def save(folder: Folder, data: Data = DEFAULT_DATA, url: Url = "", keys: Keys = None) -> None:
    """Save every stream, bucket and blob. Each is consistent by itself; to save all of one moment, stop the services first."""
    from marlaas.tenancy.stored_streams import connected
    from marlaas.tenancy.stored_streams import save as save_all

    where, signing = _server(data, url, keys)

    async def run() -> None:
        async with connected(where, signing, insecure=is_insecure(), tls=tls_files()) as bus:
            async for stream, snapshot in save_all(bus, folder):
                echo(f"{stream}: {snapshot.messages} messages, {snapshot.bytes} bytes")

    quiet()
    asyncio.run(run())


@app.command()
def restore(
    folder: Folder,
    replicas: Annotated[int | None, typer.Option(min=1, max=5, help="Copies of each in a cluster; default: as many as it had.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    keys: Keys = None,
) -> None:
    """Create every saved stream in an empty NATS, before services start there. May be repeated."""
    from marlaas.tenancy.stored_streams import connected
    from marlaas.tenancy.stored_streams import restore as restore_all

    where, signing = _server(data, url, keys)

    async def run() -> None:
        async with connected(where, signing, insecure=is_insecure(), tls=tls_files()) as bus:
            async for stream, snapshot, was_absent in restore_all(bus, folder, replicas=replicas):
                echo(f"{stream}: {snapshot.messages} messages" + ("" if was_absent else ", there already"))

    quiet()
    asyncio.run(run())


def _server(data: Path, url: str, keys: Path | None) -> "tuple[str, SigningKeys | None]":
    """Address of NATS, and its signing keys if any: of the stack in `data`, unless `url` names another NATS."""
    from common.access.folder import open_folder
    from marlaas.stack.state_files import read_plan, running_stack

    if url:
        return url, open_folder(keys) if keys else None
    return running_stack(data).nats_url, signing_keys(data, keys) if keys or read_plan(data).keys else None
