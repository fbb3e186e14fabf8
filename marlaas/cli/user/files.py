"""Files of rows to train on: put, list, get, delete."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Whose, Wide, echo, minute, print_found, table_by_tenant, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import StoredFile
    from marlaas.client import Client

app = typer.Typer(help="Files of a tenant: rows with messages, which tasks name as file:ID.", no_args_is_help=True)

FileOf = Annotated[str, typer.Argument(help="Its id, or its beginning with 12 digits or more.")]


@app.command("put")
def put_file(
    file: Annotated[Path, typer.Argument(help="JSONL: one object with messages a line.")],
    name: Annotated[str, typer.Option(help="Its name for people; default: the file's.")] = "",
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Upload a file, and wait until its rows are checked."""
    from common.client_api.errors import ClientError

    try:
        with file.open("rb") as opened:
            found = with_client(data, url, lambda client: client.files.upload(opened, name or file.name, tenant or None))
    except OSError as error:
        raise ClientError(f"cannot read {file}: {error.strerror}") from None
    echo(f"{found.rows} rows; a task names them as its environment:")
    echo(f"  file:{found.file}")


@app.command("list")
def list_files(tenant: Whose = "", data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List the files that a tenant has uploaded."""
    found = with_client(data, url, lambda client: client.files.all(tenant=tenant or None))
    print_found(found, file_table, wide, "no files; upload one with `marlaas files put FILE`")


@app.command("get")
def get_file(
    file: FileOf,
    to: Annotated[Path | None, typer.Option(help="Where it is written; default: its name, here.")] = None,
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Download a file, exactly as it was uploaded."""

    async def fetched(client: "Client") -> tuple[str, Path]:
        found = await client.files.named(file, tenant or None)
        path = to or Path(safe_name(found))
        await client.files.fetch(found, path)
        return found.file, path

    name, path = with_client(data, url, fetched)
    echo(f"{name} is in {path}")


def safe_name(file: "StoredFile") -> str:
    """The file's original name, if it is a safe name in this folder; else its id."""
    usable = file.name.isprintable() and not set(file.name) & set("/\\:") and not file.name.startswith((".", "-"))
    return file.name if usable and file.name else f"{file.file}.jsonl"


@app.command("delete")
def delete_file(
    file: FileOf,
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Delete a file that no unfinished task names."""

    async def deleted(client: "Client") -> tuple[str, int]:
        found = await client.files.named(file, tenant or None)
        return found.file, await client.files.delete(found)

    name, freed = with_client(data, url, deleted)
    echo(f"{name} is deleted; {freed} bytes")


def file_table(files: "Sequence[StoredFile]", width: int | None = None) -> "Table":
    columns = ("file", "name", "state", "rows", "bytes", "live tasks", "uploaded", "reason")
    return table_by_tenant(files, columns, _cells, width)


def _cells(one: "StoredFile") -> tuple[str, ...]:
    numbers = (str(one.rows), str(one.size_bytes), str(one.live_tasks))
    return one.file, one.name, one.state, *numbers, minute(one.uploaded_s), one.reason
