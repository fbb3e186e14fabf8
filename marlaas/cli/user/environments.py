"""Commands for environments: `marlaas envs`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, Url, Whose, Wide, echo, minute, print_found, table_by_tenant, with_client

if TYPE_CHECKING:
    from rich.table import Table

    from common.messages import OwnPackage

app = typer.Typer()


@app.callback(invoke_without_command=True)
def envs(context: typer.Context, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """List the environments that a task may name: the stack's, or without a stack those installed here."""
    from marlaas.stack.state_files import find_stack

    if context.invoked_subcommand is not None:
        return
    if not url and find_stack(data) is None:
        echo(f"no stack runs on {data}; installed here, so that a stack started here offers them:", to=sys.stderr)
        raise typer.Exit(subprocess.run([sys.executable, "-m", "env_svc.registry"]).returncode)
    found = with_client(data, url, lambda client: client.environments())
    echo("\n".join(found.environments) if found.environments else "no environment service reports; see `marlaas status`")
    for package in found.packages:
        if package.state == "usable":
            echo("\n".join(package.environments))
    for sandbox in found.sandboxes:
        echo(f"code that policies write runs in {sandbox}", to=sys.stderr)


@app.command("new")
def new_environment(
    name: Annotated[str, typer.Argument(help="Name of the package, such as my_env.")],
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<name>.")] = None,
) -> None:
    """Write a package with a working environment, its test and a task file."""
    from marlaas.packages import write_package

    folder = to or Path(name)
    for path in write_package(name, folder):
        echo(str(path))
    echo(f"next: cd {folder} && marlaas envs check {name}")


@app.command("upload")
def upload_package(
    package: Annotated[Path, typer.Argument(help="A project's folder, which is built here, or a wheel.")],
    tenant: Whose = "",
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Upload a package with environments of a tenant, and wait until it is checked."""
    from common.messages import DIGEST_CHARS
    from marlaas.packages import read_wheel

    wheel = read_wheel(package)

    def waits(reason: str) -> None:
        echo(reason, to=sys.stderr)

    found = with_client(data, url, lambda client: client.packages.upload(wheel, tenant or None, waits=waits))
    echo(f"package {found['name']} {found['version']} ({str(found['digest'])[:DIGEST_CHARS]}); a task names its environment:")
    environments = found["environments"]
    for name in environments if isinstance(environments, list) else []:
        echo(f"  {name}")


@app.command("list")
def list_packages(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List the packages that a tenant has uploaded."""
    found = with_client(data, url, lambda client: client.packages.all())
    print_found(found, package_table, wide, "no packages; upload one with `marlaas envs upload FOLDER`")


@app.command("delete")
def delete_package(
    package: Annotated[str, typer.Argument(help="Its name, or the first 12 digits or more of its digest.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
) -> None:
    """Delete a package that no unfinished task uses."""
    from common.messages import DIGEST_CHARS
    from marlaas.client import Client

    async def deleted(client: Client) -> tuple[str, int]:
        found = await client.packages.find(package)
        return found.digest[:DIGEST_CHARS], await client.packages.delete(found)

    digest, freed = with_client(data, url, deleted)
    echo(f"package {digest} is deleted; {freed} bytes")


@app.command("check")
def check_environment(
    name: Annotated[str, typer.Argument(help="An environment that is installed, or whose package is in this folder; or module:Class.")],
    options: Annotated[str, typer.Option(help="The task's options, as JSON.")] = "{}",
    rows: Annotated[int, typer.Option(min=1, help="Prompts to play.")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Maximum turns of an episode.")] = 16,
) -> None:
    """Play an environment with a scripted policy, and report whether it is fit to train on."""
    from marlaas.packages import registered

    here = Path.cwd()  # a package that is not installed is searched in this folder and one below
    for folder in (here, here / name):
        path = registered(name, folder)
        if path is not None:
            name, here = path, folder
            break
    argv = [sys.executable, "-m", "env_svc.check", name, "--options", options]
    argv += ["--rows", str(rows), "--seed", str(seed), "--turns", str(turns)]
    paths = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(argv[0], argv, os.environ | {"PYTHONPATH": paths})


def package_table(packages: "Sequence[OwnPackage]", width: int | None = None) -> "Table":
    columns = ("package", "version", "digest", "state", "environments", "live tasks", "bytes", "uploaded", "reason")
    return table_by_tenant(packages, columns, _cells, width)


def _cells(one: "OwnPackage") -> tuple[str, ...]:
    from common.messages import DIGEST_CHARS

    package = (one.package, one.version, one.digest[:DIGEST_CHARS], one.state, ", ".join(one.environments))
    return *package, str(one.live_tasks), str(one.size_bytes), minute(one.uploaded_s), one.reason
