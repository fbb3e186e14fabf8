"""Commands for the stack on this machine: prepare, start, stop, inspect, benchmark."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from marlaas.cli.session import (
    CHECKOUT,
    DEFAULT_DATA,
    Data,
    Url,
    Wide,
    data_root,
    echo,
    exec_module,
    open_console,
    operator_key,
    pools_file,
    with_client,
)
from marlaas.cli.user.tasks import ps


def up(  # noqa: PLR0913 - each is an option with a name of its own
    data: Data = DEFAULT_DATA,
    pools: Annotated[
        Path | None, typer.Option(help="Pools file; default: that here, or the project's.", envvar="MARLAAS_POOLS_FILE")
    ] = None,
    nats_port: Annotated[int | None, typer.Option(help="Default: that of the last run, or any free one.")] = None,
    postgres_port: Annotated[int | None, typer.Option(help="Default: that of the last run, or any free one.")] = None,
    gateway_port: Annotated[
        int | None, typer.Option(help="Default: that of the last run, or any free one.", envvar="MARLAAS_GATEWAY_PORT")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of signing keys; default: that of the last run, or `keys` in --data.")] = None,
    without_keys: Annotated[
        bool, typer.Option("--open", help="Without keys: every user of this machine may do everything in this stack.")
    ] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay attached, and stop the stack on Ctrl-C.")] = False,
    start_timeout_s: Annotated[
        float, typer.Option(min=1, help="Seconds until ready; large models load for long.", envvar="MARLAAS_START_TIMEOUT_S")
    ] = 600.0,
) -> None:
    """Start everything on this machine: NATS, PostgreSQL and all services."""
    from common.pools import read_accelerators, read_pools
    from marlaas import memory
    from marlaas.reporting import live
    from marlaas.stack import control, devices, placement

    if keys is not None and without_keys:
        raise typer.BadParameter("--keys and --open exclude each other")
    offered = pools or pools_file()
    plan = control.make_plan(
        data,
        offered,
        nats_port=nats_port,
        postgres_port=postgres_port,
        gateway_port=gateway_port,
        keys=keys,
        without_keys=without_keys,
    )
    described, machine = read_pools(offered), placement.this_machine()
    echo(f"pools without a shared accelerator compute on {machine}")
    for estimate in memory.memory_needs(described, read_accelerators(offered, described), machine):
        echo("; ".join(filter(None, estimate)))
    starting = control.start(plan, end_with_parent=foreground)
    try:
        state = live.show_start(open_console(), starting, start_timeout_s)
        for sandbox in with_client(data, state.nats_url, lambda client: client.environments()).sandboxes:
            echo(f"code that policies write runs in {sandbox}")
        for line in devices.memory_lines(state, machine.gpus):
            echo(line)
        key = f"  key: {state.operator_key}" if state.operator_key else ""
        echo(f"ready; NATS: {state.nats_url}{key}  HTTP: {state.gateway.url}  logs: {data / 'logs'}  next: marlaas submit task.toml")
        if foreground:
            starting.supervisor.wait()
    except KeyboardInterrupt:
        echo("stopping")
        control.stop(data)
        raise


def down(data: Data = DEFAULT_DATA) -> None:
    """Stop the stack; tasks resume at the next `up`."""
    from marlaas.stack import control

    started = time.monotonic()
    if control.stop(data):
        echo(f"stopped in {time.monotonic() - started:.1f} s; everything is kept in {data}")
    else:
        echo(f"nothing runs on {data}")


def status(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """Show the processes of the stack and every task."""
    from marlaas.reporting import tables
    from marlaas.stack import servers
    from marlaas.stack.state_files import running_stack

    if not url:
        stack = running_stack(data)
        if full := servers.full_disk(data):
            echo(full, to=sys.stderr)
        open_console().print(tables.stack_table(stack))
        echo(f"\nHTTP: {stack.gateway.url}\n")
        if stack.component("nats").condition != "ready":
            return
    ps(data, url, wide)


def dashboard(
    data: Data = DEFAULT_DATA,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address only.")] = False,
) -> None:
    """Print the address of the dashboard, and open it in a browser."""
    import webbrowser

    from marlaas.stack.state_files import dashboard_of, running_stack

    address = dashboard_of(running_stack(data))
    echo(address)
    if not no_open and not webbrowser.open(address):
        echo("no browser is here to open it", to=sys.stderr)


def logs(
    service: Annotated[str, typer.Argument(help="Name in `marlaas status`, or supervisor.")],
    data: Data = DEFAULT_DATA,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines.")] = False,
) -> None:
    """Show the log of one process of the stack."""
    from marlaas.stack.state_files import StackError, log_path

    path = log_path(data, service)
    if not path.exists():
        known = ", ".join(sorted(one.stem for one in (data / "logs").glob("*.log"))) or "none yet"
        raise StackError(f"no log of '{service}' in {data}; there are: {known}")
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)])


def doctor(
    data: Data = DEFAULT_DATA,
    deep: Annotated[bool, typer.Option("--deep", help="Read every adapter and checkpoint, and compare digests.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Report also what the scheduler's next sweep would delete.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    machine: Annotated[bool, typer.Option("--machine", help="Instead, check this machine for `up`; no stack has to run.")] = False,
    pools: Annotated[Path | None, typer.Option(help="For --machine; default: as of `init`.", envvar="MARLAAS_POOLS_FILE")] = None,
) -> None:
    """Check every invariant of PostgreSQL, streams and blobs; with --machine, this machine."""
    from marlaas.stack import servers
    from marlaas.stack.state_files import plan_pools_file, read_plan, running_stack

    if machine:
        from marlaas import host

        if deep or strict:
            raise typer.BadParameter("--machine reads no stack: leave out --deep and --strict")
        report, is_wrong = host.examine(data, pools or plan_pools_file(data) or pools_file(), as_json=as_json)
        echo(report)
        raise typer.Exit(is_wrong)
    running_stack(data)
    if full := servers.full_disk(data):
        echo(full, to=sys.stderr)
    given = {"--deep": deep, "--strict": strict, "--json": as_json}
    plan = read_plan(data)
    folder = ["--keys", str(plan.keys)] if plan.keys else []
    chosen = [name for name, wanted in given.items() if wanted]
    exec_module(["scheduler_svc.doctor", *chosen, *folder], plan.prepare_env | operator_key(plan))


def psql(
    data: Data = DEFAULT_DATA,
    command: Annotated[str, typer.Option("--command", "-c", help="Run this statement and return.")] = "",
    owner: Annotated[
        bool, typer.Option("--owner", help="As the owner of the schema, who may change rows; else everything is read only.")
    ] = False,
    address: Annotated[bool, typer.Option("--address", help="Print the database's address only.")] = False,
) -> None:
    """Open PostgreSQL's own shell on the stack's database. The password stays in its file."""
    from marlaas.stack import servers
    from marlaas.stack.state_files import running_stack

    stack = running_stack(data)
    database_url = stack.database_url.replace("+psycopg", "")
    if owner:
        database_url = database_url.replace(f"//{servers.READER}@", f"//{servers.OWNER}@")
    if address:
        echo(database_url)
        return
    argv = [servers.postgres_binary("psql"), database_url, *(["-c", command] if command else [])]
    os.execv(argv[0], argv)


def bench(context: typer.Context) -> None:
    """Measure: scaling, machinery, gpu, trl, … with their options; needs a checkout. `marlaas bench scaling --help`"""
    from marlaas.client import ClientError

    folder = CHECKOUT / "bench"
    modules = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text()}
    names = sorted(modules | {path.parent.name for path in folder.glob("*/__main__.py")})
    name, *options = context.args or [""]
    if name not in names:
        raise ClientError(f"no benchmark '{name}' here: {', '.join(names) or 'benchmarks need a checkout'}")
    os.chdir(CHECKOUT)
    os.execv(sys.executable, [sys.executable, "-m", f"bench.{name}", *options])


def demo(
    data: Data = DEFAULT_DATA / "demo",
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of each task; default: its file's.")] = None,
    keep_running: Annotated[bool, typer.Option("--keep-running", help="Leave the stack running.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="One task that is learned from nothing, in place of the three.")] = False,
) -> None:
    """Start a stack, train three tasks of three tenants concurrently on one base model, and show their gains."""
    from marlaas.demo import composition, run_demo, three_tasks

    root = data_root()
    show = composition(root, seed, steps) if compose else three_tasks(root / "examples", pools_file(), seed, steps)
    if not run_demo(open_console(), data, show, keep_running=keep_running):
        raise typer.Exit(1)


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
    """Make keys and the other files of a stack, without starting it. After an interruption, repeat it to complete the rest."""
    from marlaas.stack import control, first_start
    from marlaas.stack.keys import rekey as replace_keys
    from marlaas.stack.state_files import plan_pools_file

    first_start.refuse_running(data)
    if rekey:
        replace_keys(keys or control.keys_of_last_run(data) or data / "keys", data / "nats")
    folder = first_start.make_ready(control.make_plan(data, pools or plan_pools_file(data) or pools_file(), keys=keys))
    then = ", then marlaas tenants push --new-accounts --delete-others" if rekey else ""
    echo(f"keys are in {folder}: back it up apart from the data; next: marlaas up{then}")
