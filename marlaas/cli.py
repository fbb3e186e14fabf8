"""The command line: `marlaas --help`.

Every command imports what it needs when it runs, so that help and mistakes are answered at once. An error that a user
can do something about is one line on stderr and exit status 1.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from common.blobs import StoreUsage
    from common.messages import TaskStatus
    from marlaas.client import Client, Stored

T = TypeVar("T")
DEFAULT_DATA = Path(".marlaas")
WIDTH_OF_A_PIPE = 100_000
"""Characters of a line where output is no live, or `--wide` asks for whole lines: nothing is cut off."""

app = typer.Typer(
    help="Reinforcement-learning fine-tuning of language models, for many tenants on one base model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

envs_app = typer.Typer()
app.add_typer(envs_app, name="envs")


def _possible(ids: str | list[str] | None) -> str | list[str] | None:
    """What was given, where a task can have such an id: before anything else is read or asked."""
    from marlaas.client import check_id

    for one in [ids] if isinstance(ids, str) else ids or []:
        check_id(one)
    return ids


Data = Annotated[Path, typer.Option("--data", help="Directory of the one-machine control.", envvar="MARLAAS_DATA_DIR")]
Url = Annotated[str, typer.Option("--url", help="NATS of the stack; empty: that of the stack in --data.", envvar="MARLAAS_NATS_URL")]
Task = Annotated[str, typer.Argument(help="Id of a task, as `marlaas ps` shows it.", callback=_possible)]
Reason = Annotated[str, typer.Option(help="Kept with the task.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print every column, and every reason whole, however long the lines become.")]


# --------------------------------------------------------------------------------------------------------------- stack


@app.command()
def up(
    data: Data = DEFAULT_DATA,
    pools: Annotated[
        Path | None, typer.Option(help="Pools file; default: pools.toml here, or the project's own.", envvar="MARLAAS_POOLS_FILE")
    ] = None,
    nats_port: Annotated[int | None, typer.Option(help="Default: that of the last run, or any free one.")] = None,
    postgres_port: Annotated[int | None, typer.Option(help="Default: that of the last run, or any free one.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop the stack on Ctrl-C.")] = False,
    start_timeout_s: Annotated[
        float,
        typer.Option(
            "--start-timeout-s", min=1, help="For all to be ready; a large model loads for long.", envvar="MARLAAS_START_TIMEOUT_S"
        ),
    ] = 600.0,
) -> None:
    """Start everything on this machine: NATS, PostgreSQL and all services."""
    from common.pools import read_pools
    from marlaas import memory
    from marlaas.reporting import live, tables
    from marlaas.stack import control, placement

    offered = pools or pools_file()
    plan = control.make_plan(data, offered, nats_port=nats_port, postgres_port=postgres_port)
    for line in memory.trainer_memory(read_pools(offered), has_gpu=placement.has_gpu()):
        _say(line)
    starting = control.start(plan, end_with_parent=foreground)
    try:
        state = live.show_start(_console(), starting, start_timeout_s)
        for sandbox in tables.sandboxes(_asked(data, state.nats_url, lambda client: client.replicas())):
            _say(f"code that policies write runs in {sandbox}")
        _say(f"ready; NATS: {state.nats_url}  logs: {data / 'logs'}  next: marlaas submit task.toml")
        if foreground:
            starting.supervisor.wait()
    except KeyboardInterrupt:
        _say("stopping")
        control.stop(data)
        raise


@app.command()
def down(data: Data = DEFAULT_DATA) -> None:
    """Stop the stack; tasks go on at the next `up`."""
    from marlaas.stack import control

    started = time.monotonic()
    if control.stop(data):
        _say(f"stopped in {time.monotonic() - started:.1f} s; everything is kept in {data}")
    else:
        _say(f"nothing runs on {data}")


@app.command()
def status(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """Show the processes of the stack and every task."""
    from marlaas.reporting import tables
    from marlaas.stack.state_files import running_stack

    if not url:
        stack = running_stack(data)
        _console().print(tables.stack_table(stack))
        _say("")
        if stack.component("nats").condition != "ready":
            return
    ps(data, url, wide)


@app.command()
def ps(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List every task, as many columns as fit; `marlaas show TASK` has all of one, --wide also what each stores."""
    from marlaas.reporting import storage, tables

    async def ask(client: "Client") -> "tuple[list[TaskStatus], dict[str, Stored], StoreUsage]":
        return await client.tasks(), await client.stored() if wide else {}, await client.store_usage()

    statuses, stored, usage = _asked(data, url, ask)
    if statuses:
        console = _console(wide)
        more = storage.stored_fields(stored) if wide else []
        console.print(tables.status_table(statuses, _width(console), more=more))
    else:
        _say("no tasks yet; submit one with `marlaas submit task.toml`")
    if (said := storage.store_line(usage, always=wide)) is not None:
        _say(said)


@app.command()
def show(task: Task, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Show everything that is known of one task."""
    from marlaas.reporting import tables

    _console().print(tables.task_table(_asked(data, url, lambda client: client.status(task))))


@app.command()
def logs(
    service: Annotated[str, typer.Argument(help="As `marlaas status` names it; or supervisor.")],
    data: Data = DEFAULT_DATA,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written next.")] = False,
) -> None:
    """Show the log of one process of the control."""
    from marlaas.stack.state_files import StackError, log_path

    path = log_path(data, service)
    if not path.exists():
        known = ", ".join(sorted(one.stem for one in (data / "logs").glob("*.log"))) or "none: nothing ran here yet"
        raise StackError(f"no log of '{service}' in {data}; there are: {known}")
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)])


@app.command()
def doctor(
    data: Data = DEFAULT_DATA,
    deep: Annotated[bool, typer.Option("--deep", help="Read every adapter and checkpoint, and compare its digest.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Count also what the scheduler's next sweep would delete.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether everything that must always hold does: PostgreSQL, streams and blobs against each other."""
    from marlaas.stack.state_files import read_plan, running_stack

    running_stack(data)
    given = {"--deep": deep, "--strict": strict, "--json": as_json}
    _become(["scheduler_svc.doctor", *(name for name, wanted in given.items() if wanted)], read_plan(data).prepare_env)


@app.command()
def psql(
    data: Data = DEFAULT_DATA,
    command: Annotated[str, typer.Option("--command", "-c", help="Run this and return.")] = "",
    address: Annotated[bool, typer.Option("--address", help="Print the database's address only.")] = False,
) -> None:
    """Open PostgreSQL's own shell on the stack's database."""
    from marlaas.stack import servers
    from marlaas.stack.state_files import running_stack

    database_url = running_stack(data).database_url.replace("+psycopg", "")
    if address:
        _say(database_url)
        return
    argv = [servers.postgres_binary("psql"), database_url, *(["-c", command] if command else [])]
    os.execv(argv[0], argv)


# --------------------------------------------------------------------------------------------------------------- tasks


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="The task, in TOML.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    task: Annotated[
        str | None, typer.Option("--id", help="The task's id; with one, submitting again is harmless.", callback=_possible)
    ] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
) -> None:
    """Submit a task, and say whether it is accepted."""
    from marlaas.task_file import read_task

    spec = read_task(file)
    task = _asked(data, url, lambda client: client.submit(spec, task))
    if not watching:
        _say(f"accepted: {task}")
        return
    watch([task], data, url)


@app.command()
def watch(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Ids; none: every task that has not ended, from now on.", callback=_possible)
    ] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    following: Annotated[bool, typer.Option("--follow", "-f", help="Without ids: also tasks that come later, without end.")] = False,
    log_to: Annotated[
        list[str] | None, typer.Option("--log-to", help="Also tensorboard:<folder>, wandb:<project> or trackio:<project>.")
    ] = None,
) -> None:
    """Print what happens to tasks, one line per event, until they have ended."""
    from common.task_states import ENDED
    from marlaas.reporting import tables, trackers

    opened = [trackers.open_sink(address) for address in log_to or []]

    async def follow(client: "Client") -> None:
        for task in tasks or []:
            await client.status(task)
        live = [] if tasks or following else [status.task for status in await client.tasks() if status.state not in ENDED]
        if not (tasks or following or live):
            _say("no task is running; `marlaas watch --follow` waits for the next one")
            return
        async for event in client.watch(*(tasks or live), from_now=not tasks):
            _say(tables.event_line(event))
            if (point := trackers.point_of(event)) is not None:
                for sink in opened:
                    sink.log(point)

    try:
        _asked(data, url, follow)
    finally:
        for sink in opened:
            sink.close()


@app.command()
def cancel(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """End a task; the versions trained so far stay."""
    _asked(data, url, lambda client: client.cancel(task, reason))
    _say(f"cancelling {task}")


@app.command()
def pause(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """Give a task no new work until it is resumed."""
    _asked(data, url, lambda client: client.pause(task, reason))
    _say(f"pausing {task}")


@app.command()
def resume(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """Go on with a paused task."""
    _asked(data, url, lambda client: client.resume(task, reason))
    _say(f"resuming {task}")


@app.command()
def delete(task: Task, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Delete a task that has ended: adapters, checkpoints, messages and rows; what it consumed stays on the bill."""
    from marlaas.reporting import storage

    freed = _asked(data, url, lambda client: client.delete(task))
    _say(f"deleted {task}: {storage.size(freed)} freed")


@app.command()
def prune(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only; default: of all.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0.001, help="Delete also tasks that ended more than so many days ago.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
) -> None:
    """Free what no task's section `keep` asks for any more, and delete tasks that ended long ago."""
    from marlaas.reporting import storage

    age_s = None if older_than is None else older_than * 86_400
    for line in storage.pruned_lines(
        _asked(data, url, lambda client: client.prune(tenant, ended_before_s=age_s, dry_run=dry_run)), dry_run
    ):
        _say(line)


@app.command()
def failures(
    task: Annotated[
        str | None, typer.Argument(help="Id of a task; none: of all tasks, and jobs that could not be taken.", callback=_possible)
    ] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    wide: Wide = False,
) -> None:
    """List messages that were given up, with the reason: dead letters."""
    from marlaas.reporting import tables

    found = _asked(data, url, lambda client: client.failures(task))
    if found:
        console = _console(wide)
        console.print(tables.failures_table(found, _width(console)))
    else:
        _say("no message was given up")


@app.command()
def resend(
    letter: Annotated[int, typer.Argument(help="As `marlaas failures` numbers them.")], data: Data = DEFAULT_DATA, url: Url = ""
) -> None:
    """Send the message of a dead letter again, once its cause is gone; what it says counts once at most."""
    _asked(data, url, lambda client: client.resend(letter))
    _say(f"sent again: the message of letter {letter}")


@app.command()
def pull(
    task: Task,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<task>.v<version>.")] = None,
    version: Annotated[int | None, typer.Option(help="Default: the latest.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Write the base model with the adapter merged into its weights.")] = False,
    pools: Annotated[Path | None, typer.Option(help="Pools file; default: that of the control.", envvar="MARLAAS_POOLS_FILE")] = None,
) -> None:
    """Fetch a task's adapter: a PEFT folder, which vLLM and transformers load as it is."""
    from marlaas.stack.state_files import plan_pools_file

    with TemporaryDirectory(prefix="marlaas-pull-") as temporary:

        async def fetch(client: "Client") -> "tuple[TaskStatus, Path, str]":
            status = await client.status(task)
            folder = to or Path(f"{task}.v{version or status.version}{'.merged' if merged else ''}")
            adapter = await client.pull(task, Path(temporary) / "adapter" if merged else folder, version)
            return status, folder, f"version {adapter.version} of {task}, rank {adapter.rank}, {adapter.blob.size_bytes} bytes"

        status, folder, said = _asked(data, url, fetch)
        if merged:
            _merge(status.pool, pools or (None if url else plan_pools_file(data)) or pools_file(), Path(temporary) / "adapter", folder)
    _say(f"{said}{', merged' if merged else ''}: {folder}")


@app.command()
def replay(
    task: Task,
    step: Annotated[int | None, typer.Argument(help="The version that the step made; none: every step from version 0 on.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    pools: Annotated[Path | None, typer.Option(help="Pools file; default: that of the control.", envvar="MARLAAS_POOLS_FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a step.")] = False,
) -> None:
    """Take recorded steps again and compare the digests; the task's file must have set keep.batches."""
    pool = _asked(data, url, lambda client: client.status(task)).pool
    argv = ["trainer_svc.replay", task, *([str(step)] if step is not None else []), *(["--json"] if as_json else [])]
    _become_trainer(argv, data, url, pool, pools)


# ---------------------------------------------------------------------------------------------------------- deployment


@envs_app.callback(invoke_without_command=True)
def envs(context: typer.Context, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """List the environments that a task may name: those of the control, or without one those installed here."""
    from marlaas.reporting import tables
    from marlaas.stack.state_files import is_running_on

    if context.invoked_subcommand is not None:
        return
    if not url and not is_running_on(data):
        _say(f"no stack runs on {data}; installed here, so that a stack started here offers them:", to=sys.stderr)
        raise typer.Exit(subprocess.run([sys.executable, "-m", "env_svc.installed"]).returncode)
    replicas = _asked(data, url, lambda client: client.replicas())
    names = tables.environments(replicas)
    _say("\n".join(names) if names else "no environment service reports; see `marlaas status`")
    for sandbox in tables.sandboxes(replicas):
        _say(f"code that policies write runs in {sandbox}", to=sys.stderr)


@envs_app.command("new")
def new_environment(
    name: Annotated[str, typer.Argument(help="Of the package, such as my_env.")],
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<name>.")] = None,
) -> None:
    """Write a package with an environment that works, its test and a task file."""
    from marlaas.scaffold import write_package

    folder = to or Path(name)
    for path in write_package(name, folder):
        _say(str(path))
    _say(f"next: cd {folder} && marlaas envs check {name}")


@envs_app.command("check")
def check_environment(
    name: Annotated[str, typer.Argument(help="An environment that is installed, or whose package is in this folder; or module:Class.")],
    options: Annotated[str, typer.Option(help="The task's options, as JSON.")] = "{}",
    rows: Annotated[int, typer.Option(min=1, help="Prompts to play.")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Most turns of an episode.")] = 16,
) -> None:
    """Play an environment by a script, and say whether it is fit to train on."""
    from marlaas.scaffold import registered

    here = Path.cwd()  # a package that is not installed is found where the command is given, or one folder below
    for folder in (here, here / name):
        path = registered(name, folder)
        if path is not None:
            name, here = path, folder
            break
    argv = [sys.executable, "-m", "env_svc.check", name, "--options", options]
    argv += ["--rows", str(rows), "--seed", str(seed), "--turns", str(turns)]
    paths = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(argv[0], argv, os.environ | {"PYTHONPATH": paths})


@app.command()
def pools(
    data: Data = DEFAULT_DATA,
    file: Annotated[Path | None, typer.Option("--pools", help="Pools file.", envvar="MARLAAS_POOLS_FILE")] = None,
) -> None:
    """List the base models that this deployment offers."""
    from rich.table import Table

    from common.pools import read_pools
    from marlaas.stack.state_files import plan_pools_file

    table = Table("pool", "model", "context", "max rank", "adapters", "sequences", box=None, header_style="bold")
    for name, pool in read_pools(file or plan_pools_file(data) or pools_file()).items():
        table.add_row(name, pool.model, str(pool.context_tokens), str(pool.max_rank), str(pool.adapters), str(pool.sequences))
    _console().print(table)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(context: typer.Context) -> None:
    """Measure: scaling, machinery, gpu, trl, … with their options; needs a checkout. `marlaas bench scaling --help`"""
    from marlaas import shipped
    from marlaas.client import ClientError

    folder = shipped.CHECKOUT / "bench"
    modules = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text()}
    names = sorted(modules | {path.parent.name for path in folder.glob("*/__main__.py")})
    name, *options = context.args or [""]
    if name not in names:
        raise ClientError(f"no benchmark '{name}' here: {', '.join(names) or 'they are in a checkout, and this is none'}")
    os.chdir(shipped.CHECKOUT)
    os.execv(sys.executable, [sys.executable, "-m", f"bench.{name}", *options])


@app.command()
def demo(
    data: Data = DEFAULT_DATA / "demo",
    seed: Annotated[int, typer.Option(help="Of the three tasks.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of each task; default: as its file says.")] = None,
    keep_running: Annotated[bool, typer.Option("--keep-running", help="Leave the stack running.")] = False,
) -> None:
    """Start a control, train three tasks of three tenants at once on one base model, and show what they gained."""
    from marlaas import shipped
    from marlaas.demo import run_demo

    if not run_demo(_console(), data, shipped.root() / "examples", pools_file(), seed=seed, steps=steps, keep_running=keep_running):
        raise typer.Exit(1)


# -------------------------------------------------------------------------------------------------------------- shared


def pools_file() -> Path:
    """pools.toml of the current directory, or that which comes with the project."""
    from marlaas import shipped

    here, theirs = Path("pools.toml"), shipped.root() / "pools.toml"
    return here if here.exists() or not theirs.exists() else theirs


def _become(module: list[str], env: dict[str, str]) -> NoReturn:
    """Go on as `python -m <module>` with these settings and no others."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
    os.execve(sys.executable, [sys.executable, "-m", *module], inherited | env)


def _become_trainer(module: list[str], data: Path, url: str, pool: str, pools: Path | None) -> NoReturn:
    """With the settings of the stack's own trainer of that pool, so that it rounds alike; with an address: those given here."""
    from marlaas.stack.state_files import read_plan

    if url:
        _become(
            module, {"MARLAAS_NATS_URL": url, "MARLAAS_TRAINER_POOL": pool, "MARLAAS_POOLS_FILE": str((pools or pools_file()).resolve())}
        )
    services = {service.name: service for service in read_plan(data).services}
    _become(module, services[f"trainer-{pool}"].env | ({"MARLAAS_POOLS_FILE": str(pools.resolve())} if pools else {}))


def _merge(pool: str, file: Path, adapter: Path, folder: Path) -> None:
    """By a process of its own: only services load models."""
    from common.pools import read_pools
    from marlaas.client import ClientError, make_way

    offered = read_pools(file)
    if pool not in offered:
        raise ClientError(f"{file} has no pool '{pool}', so its base model is not known; name another with --pools")
    make_way(folder)
    if subprocess.run([sys.executable, "-m", "trainer_svc.merge", offered[pool].model, str(adapter), str(folder)]).returncode:
        raise typer.Exit(1)


def _asked(data: Path, url: str, ask: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """What `ask` returns, given a connected client."""

    async def run() -> T:
        async with _client(data, url) as client:
            return await ask(client)

    return asyncio.run(run())


@asynccontextmanager
async def _client(data: Path, url: str) -> "AsyncGenerator[Client]":
    import logging

    import structlog

    from marlaas.client import Client
    from marlaas.stack.state_files import running_stack

    # The bus logs what a service's operator wants to see; here errors come as one line.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    async with Client.connect(url or running_stack(data).nats_url) as client:
        yield client


def _console(wide: bool = False) -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() and not wide else WIDTH_OF_A_PIPE)


def _width(console: "Console") -> int | None:
    """Characters that a line may take; None where it may take any number."""
    return None if console.width == WIDTH_OF_A_PIPE else console.width


def _say(text: str, to: TextIO | None = None) -> None:
    print(text, flush=True, file=to)


def main() -> None:
    """Entry point of the `marlaas` command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end `up --foreground` and `demo` in order
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Exit status of one command; an error that its user can correct is one line on stderr."""
    try:
        app(arguments, prog_name="marlaas")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        from common.errors import MarlaasError
        from marlaas.stack.servers import ServerError
        from marlaas.stack.state_files import StackError

        if not isinstance(error, MarlaasError | StackError | ServerError):
            raise
        print(f"marlaas: {error}", file=sys.stderr)
        return 1
    return 0
