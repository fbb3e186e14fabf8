"""Shared by all commands: options, output, the connection, and exec of a service's program."""

import asyncio
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from common.bus import TlsFiles
    from common.messages import SetAccess, TenantAccess
    from marlaas.client import Client
    from marlaas.stack.state_files import StackPlan


class Owned(Protocol):
    """A record of a tenant."""

    @property
    def tenant(self) -> str: ...


T = TypeVar("T")
R = TypeVar("R", bound=Owned)
DEFAULT_DATA = Path(".marlaas")
TENANT = "MARLAAS_TENANT"
"""Variable with the tenant whose tasks the commands show. Without it they show all tenants' tasks; a server with keys permits that only to
the operator."""
CREDS = "MARLAAS_NATS_CREDS"
"""Variable with the path of a key's file, for NATS."""
HTTP_KEY = "MARLAAS_KEY"
"""Variable with the text of an HTTP key, for a gateway."""
INSECURE, CA, CERT, KEY = "MARLAAS_NATS_INSECURE", "MARLAAS_NATS_CA", "MARLAAS_NATS_CERT", "MARLAAS_NATS_KEY"
"""Variables shared with services (docs/settings.md)."""
CHECKOUT = Path(__file__).parents[2]
KNOWN_BY = "pools.toml"
PIPE_WIDTH = 100_000
"""Characters per line if output is not a terminal, or with `--wide`: nothing is truncated."""


def valid_ids(ids: str | list[str] | None) -> str | list[str] | None:
    """The ids, if valid. Raises: WrongId, before anything is read or sent."""
    from marlaas.client import check_id

    for one in [ids] if isinstance(ids, str) else ids or []:
        check_id(one)
    return ids


Data = Annotated[Path, typer.Option("--data", help="Directory of the one-machine stack.", envvar="MARLAAS_DATA_DIR")]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="A gateway, https://…, or NATS; empty: NATS of the stack in --data.",
        envvar=["MARLAAS_URL", "MARLAAS_NATS_URL"],
    ),
]
Task = Annotated[str, typer.Argument(help="Id of a task, as `marlaas ps` shows it.", callback=valid_ids)]
Whose = Annotated[str, typer.Option("--tenant", help="Whose it is; default: the key's tenant.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print every column and whole reasons, in lines of any length.")]


def with_client(data: Path, url: str, ask: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """Connect to the stack; returns the result of `ask`."""
    from marlaas.client import Client
    from marlaas.over_http.address import is_http
    from marlaas.stack.state_files import running_stack

    async def run() -> T:
        where, tenant = url or running_stack(data).nats_url, tenant_named()
        creds, key = (None, http_key()) if is_http(where) else (_creds(data, url), None)
        async with Client.connect(where, tenant, creds=creds, key=key, insecure=is_insecure(), tls=tls_files()) as client:
            return await ask(client)

    quiet()
    return asyncio.run(run())


def check_is_nats(url: str) -> None:
    """Raises: ClientError if `url` is a gateway's. Commands that change NATS's accounts, or read its streams, need NATS itself."""
    from marlaas.over_http.address import is_http

    if is_http(url):
        from common.client_api.errors import ClientError

        raise ClientError("this needs NATS itself, not a gateway: --url nats://HOST:4222")


def quiet() -> None:
    """Disable logs: those of the bus are for a service's operator, and commands report errors as one line."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("httpx2").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each TLS connection that a server closes


def _creds(data: Path, url: str) -> Path | None:
    """File of the key for NATS: the one that the user names, else the operator's if `url` is empty or the stack in `data`. None: no key."""
    from marlaas.stack.state_files import find_stack

    if (named := named_creds()) is not None:
        return named
    stack = find_stack(data)
    if stack is None or (url and url != stack.nats_url):
        return None
    return stack.operator_key


def operator_key(plan: "StackPlan") -> dict[str, str]:
    """Environment variable with the operator's key, for a program run on a stack with keys."""
    from common.access.folder import credentials_path

    return {"MARLAAS_NATS_CREDS": str(credentials_path(plan.keys, "operator"))} if plan.keys else {}


def named_creds() -> Path | None:
    """File of `marlaas --creds`, which `app` stores in the environment variable CREDS."""
    return Path(name) if (name := os.environ.get(CREDS)) else None


def tenant_named() -> str | None:
    """Tenant whose tasks are shown; None: the key's tenant."""
    return os.environ.get(TENANT) or None


def http_key() -> str | None:
    """Text of an HTTP key for a gateway. There is no option for it: other users of the machine can read options."""
    return os.environ.get(HTTP_KEY) or None


def is_insecure() -> bool:
    """Whether a key may be used without TLS beyond loopback."""
    return os.environ.get(INSECURE, "").lower() in ("1", "true", "yes", "on")


def tls_files() -> "TlsFiles":
    """Certificates for the connection to NATS."""
    from common.bus import TlsFiles

    ca, cert, key = (Path(name) if (name := os.environ.get(variable)) else None for variable in (CA, CERT, KEY))
    return TlsFiles(ca, cert, key)


def open_console(wide: bool = False) -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() and not wide else PIPE_WIDTH)


def print_table(table: "Callable[[int | None], Table]", wide: bool = False) -> None:
    """Print a table built for a maximum number of characters per line; None: no maximum."""
    console = open_console(wide)
    console.print(table(None if console.width == PIPE_WIDTH else console.width))


def table_by_tenant(found: Sequence[R], columns: Sequence[str], cells: Callable[[R], Sequence[str]], width: int | None = None) -> "Table":
    """One row per record; with a column for the tenant if there are several."""
    from rich.table import Table

    has_tenants = len({one.tenant for one in found}) > 1
    table = Table(*(("tenant",) if has_tenants else ()), *columns, box=None, header_style="bold", width=width)
    for one in found:
        table.add_row(*((one.tenant,) if has_tenants else ()), *cells(one))
    return table


def minute(unix_s: float) -> str:
    """The minute of a Unix time, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}"


def print_found(found: Sequence[T], table: "Callable[[Sequence[T], int | None], Table]", wide: bool, otherwise: str) -> None:
    """Print a table of `found`, or `otherwise` if it is empty."""
    if found:
        print_table(lambda width: table(found, width), wide)
    else:
        echo(otherwise)


def echo(text: str, to: TextIO | None = None) -> None:
    print(text, flush=True, file=to)


def data_root() -> Path:
    """Root of the data files: the checkout, or the folder into which a wheel installs them (`data-files` in pyproject.toml)."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = (Path(sysconfig.get_path("data", scheme)) / "share" / "marlaas" for scheme in schemes)
    return next((folder for folder in (CHECKOUT, *installed) if (folder / KNOWN_BY).exists()), CHECKOUT)


def pools_file() -> Path:
    """pools.toml of the current directory, or else the project's."""
    here, theirs = Path("pools.toml"), data_root() / "pools.toml"
    return here if here.exists() or not theirs.exists() else theirs


def run_module(module: list[str], env: dict[str, str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m <module>`, with `env` as its only MARLAAS_ settings."""
    return subprocess.run([sys.executable, "-m", *module], env=_with(env), input=stdin, capture_output=True, text=True, check=False)


def record_access(settings: dict[str, str], requests: "Sequence[SetAccess]") -> "list[TenantAccess]":
    """Record access requests while no scheduler runs; returns PostgreSQL's content afterwards. Raises: StackError if they are refused."""
    from common.messages import TenantAccess
    from marlaas.stack.state_files import StackError

    done = run_module(["scheduler_svc.record_access"], settings, stdin="".join(f"{one.model_dump_json()}\n" for one in requests))
    if done.returncode:
        raise StackError(f"PostgreSQL does not record the keys: {done.stderr.strip()[-500:]}")
    return [TenantAccess.model_validate_json(line) for line in done.stdout.splitlines() if line.startswith('{"tenant"')]


def exec_module(module: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process by `python -m <module>`, with `env` as its only MARLAAS_ settings."""
    os.execve(sys.executable, [sys.executable, "-m", *module], _with(env))


def _with(env: dict[str, str]) -> dict[str, str]:
    """This process's environment, with its MARLAAS_ variables replaced by `env`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")} | env
