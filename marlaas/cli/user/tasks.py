"""Commands for tasks: submit, follow, control, fetch."""

import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from marlaas.cli.session import (
    DEFAULT_DATA,
    Data,
    Task,
    Url,
    Wide,
    check_is_nats,
    echo,
    exec_module,
    operator_key,
    pools_file,
    print_found,
    print_table,
    valid_ids,
    with_client,
)

if TYPE_CHECKING:
    from common.messages import AdapterRef, TaskStatus, TroubleOf, UsageAnswer
    from marlaas.client import Client
    from marlaas.comparison import Evaluated

Pools = Annotated[Path | None, typer.Option(help="Pools file; default: the stack's.", envvar="MARLAAS_POOLS_FILE")]
Reason = Annotated[str, typer.Option(help="Text kept with the task.")]


def ps(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List every task, with as many columns as fit; `marlaas show TASK` prints all fields of one, --wide adds storage."""
    from marlaas.cli.user import usage as storage
    from marlaas.reporting import tables

    async def ask(client: "Client") -> "tuple[list[TaskStatus], UsageAnswer | None, dict[str, float], list[TroubleOf]]":
        statuses = await client.tasks()
        offered = await client.pools() if any(one.state == "running" for one in statuses) else []
        parked = {pool.name: pool.wakes_in_s for pool in offered if pool.wakes_in_s is not None}
        usage = await client.usage() if wide or client.tenant is None else None
        return statuses, usage, parked, await client.troubles() if client.tenant is None else []

    statuses, usage, parked, troubles = with_client(data, url, ask)
    if statuses:
        more = storage.stored_fields(usage) if wide and usage else []
        print_table(lambda width: tables.status_table(statuses, width, more=more, parked=parked), wide)
    else:
        echo("no tasks yet; submit one with `marlaas submit task.toml`")
    if usage is not None and (said := storage.store_line(usage, always=wide)) is not None:
        echo(said)
    for trouble in troubles:
        echo(trouble.sentence)


def show(task: Task, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Show every field of one task, and its evaluations by protocol."""
    from marlaas.reporting import tables

    async def ask(client: "Client") -> "tuple[TaskStatus, Evaluated]":
        return await client.status(task), await client.evaluations(task)

    status, evaluated = with_client(data, url, ask)
    print_table(lambda _: tables.task_table(status, evaluated))


def why(task: Task, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Explain why a task waits, with the number that would have to change."""
    found = with_client(data, url, lambda client: client.why(task))
    echo(f"{found.cause}: {found.sentence}" if found.cause else found.sentence)


def compare(
    first: Task,
    second: Task,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    protocol: Annotated[str | None, typer.Option(help="Protocol of the evaluations; default: the one that decides for the first.")] = None,
    version: Annotated[str, typer.Option(help="Version of both: a number, last, or best by the protocol that decides.")] = "last",
) -> None:
    """Compare two tasks by their evaluations at the same prompts: both means, and the paired difference."""
    from marlaas.reporting import tables

    found = with_client(data, url, lambda client: client.compare(first, second, protocol=protocol, version=version))
    echo("\n".join(tables.comparison_lines(found)))


def submit(
    file: Annotated[Path, typer.Argument(help="The task, in TOML.")],
    data: Data = DEFAULT_DATA,
    url: Url = "",
    task: Annotated[str | None, typer.Option("--id", help="The task's id; with one, resubmitting is harmless.", callback=valid_ids)] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every value with its origin, and submit nothing.")] = False,
) -> None:
    """Submit a task, and report whether it is accepted."""
    from marlaas.task_file import own_errors_first, read_given

    spec = read_given(file)
    if dry_run:
        with own_errors_first(file, spec):
            preview = with_client(data, url, lambda client: client.preview(spec))
        echo("\n".join(preview.lines()))
        for reason in preview.reasons:
            echo(f"would be rejected: {reason}", to=sys.stderr)
        raise typer.Exit(int(bool(preview.reasons)))
    with own_errors_first(file, spec):
        accepted = with_client(data, url, lambda client: client.accepted(spec, task))
    task = accepted.task
    if accepted.data.get("new_tenant"):
        echo(f"tenant '{accepted.tenant}' is new: this task has made it")
    if not watching:
        echo(f"accepted: {task}")
        return
    watch([task], data, url)


def watch(
    tasks: Annotated[list[str] | None, typer.Argument(help="Ids; default: unended tasks, from now on.", callback=valid_ids)] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    following: Annotated[bool, typer.Option("--follow", "-f", help="Without ids: also tasks submitted later, without end.")] = False,
    log_to: Annotated[list[str] | None, typer.Option(help="Trackers: tensorboard:<folder>, wandb:<project> or trackio:<project>.")] = None,
) -> None:
    """Print the events of tasks, one per line, until they have ended."""
    from common.task_states import ENDED
    from marlaas.reporting import tables, trackers

    opened = [trackers.open_tracker(address) for address in log_to or []]

    async def follow(client: "Client") -> None:
        for task in tasks or []:
            await client.status(task)
        live = [] if tasks or following else [status.task for status in await client.tasks() if status.state not in ENDED]
        if not (tasks or following or live):
            echo("no task is running; `marlaas watch --follow` waits for the next one")
            return
        async with aclosing(client.watch(*(tasks or live), from_now=not tasks)) as events:
            async for event in events:
                echo(tables.event_line(event))
                if (point := trackers.point_of(event)) is not None:
                    for tracker in opened:
                        tracker.log(point)

    try:
        with_client(data, url, follow)
    finally:
        for tracker in opened:
            tracker.close()


def cancel(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """End a task; trained versions are kept."""
    with_client(data, url, lambda client: client.cancel(task, reason))
    echo(f"cancelling {task}")


def pause(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """Admit no new work of a task until it is resumed."""
    with_client(data, url, lambda client: client.pause(task, reason))
    echo(f"pausing {task}")


def resume(task: Task, data: Data = DEFAULT_DATA, url: Url = "", reason: Reason = "") -> None:
    """Resume a paused task."""
    with_client(data, url, lambda client: client.resume(task, reason))
    echo(f"resuming {task}")


def delete(task: Task, data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Delete a task that has ended: adapters, checkpoints, messages and rows; its ledger is kept."""
    from marlaas.cli.user.usage import size

    freed = with_client(data, url, lambda client: client.delete(task))
    echo(f"deleted {task}: {size(freed)} freed")


def failures(
    task: Annotated[str | None, typer.Argument(help="Id; default: all tasks, and refused jobs.", callback=valid_ids)] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    wide: Wide = False,
) -> None:
    """List dead letters, with the reason of each."""
    from marlaas.reporting import tables

    found = with_client(data, url, lambda client: client.failures(task))
    print_found(found, tables.failures_table, wide, "no dead letters")


def samples(
    task: Task,
    step: Annotated[int | None, typer.Option(min=1, help="Version that the step made; default: the latest with samples.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    wide: Wide = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object an attempt, with its tokens' ids and numbers.")] = False,
) -> None:
    """List stored attempts of a step (keep.samples in the task's file): the best, the worst, and others."""
    from marlaas.reporting import samples as reporting

    found = with_client(data, url, lambda client: client.samples(task, step))
    kept = found.samples
    if kept is None:
        echo("no step has samples yet, or the task keeps none")
    elif as_json:
        echo("\n".join(reporting.json_lines(kept)))
    else:
        print_table(lambda width: reporting.samples_table(kept, width), wide)
        echo(f"step {kept.version}; steps with samples: {found.steps[0]} to {found.steps[-1]}")


def resend(letter: Annotated[int, typer.Argument(help="Number in `marlaas failures`.")], data: Data = DEFAULT_DATA, url: Url = "") -> None:
    """Resend the message of a dead letter after its cause is fixed; it takes effect at most once."""
    with_client(data, url, lambda client: client.resend(letter))
    echo(f"resent: the message of letter {letter}")


def pull(
    task: Task,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<task>.v<version>.")] = None,
    version: Annotated[int | None, typer.Option(help="Default: the latest.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Write the base model with the adapter merged into its weights.")] = False,
    pools: Pools = None,
) -> None:
    """Fetch a task's adapter as a PEFT folder, which vLLM and transformers can load directly."""
    from marlaas.stack.state_files import plan_pools_file

    with TemporaryDirectory(prefix="marlaas-pull-") as temporary:

        def folder_of(adapter: "AdapterRef") -> Path:
            return to or Path(f"{task}.v{adapter.version}{'.merged' if merged else ''}")

        async def fetch(client: "Client") -> "tuple[TaskStatus, AdapterRef]":
            return await client.status(task), await client.pull(task, Path(temporary) / "adapter" if merged else folder_of, version)

        status, adapter = with_client(data, url, fetch)
        folder, said = folder_of(adapter), f"version {adapter.version} of {task}, rank {adapter.rank}, {adapter.blob.size_bytes} bytes"
        if merged:
            offered = pools or (None if url else plan_pools_file(data)) or pools_file()
            _merge_adapter(status.pool, offered, Path(temporary) / "adapter", folder)
    echo(f"{said}{', merged' if merged else ''}: {folder}")


def _merge_adapter(pool: str, file: Path, adapter: Path, folder: Path) -> None:
    """Merge in a separate process: only services load models."""
    from common.pools import read_pools
    from marlaas.client import ClientError, make_way

    offered = read_pools(file)
    if pool not in offered:
        raise ClientError(f"{file} has no pool '{pool}', so its base model is unknown; name another file with --pools")
    make_way(folder)
    base = offered[pool]
    revision = ["--revision", base.revision] if base.revision else []
    if subprocess.run([sys.executable, "-m", "trainer_svc.merge", base.model, str(adapter), str(folder), *revision]).returncode:
        raise typer.Exit(1)


def replay(
    task: Task,
    step: Annotated[int | None, typer.Argument(help="Version that the step made; default: every step from version 0.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    pools: Pools = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a step.")] = False,
) -> None:
    """Replay recorded steps and compare digests; needs keep.batches in the task's file."""
    check_is_nats(url)
    pool = with_client(data, url, lambda client: client.status(task)).pool
    argv = ["trainer_svc.replay", task, *([str(step)] if step is not None else []), *(["--json"] if as_json else [])]
    _exec_trainer(argv, data, url, pool, pools)


def _exec_trainer(module: list[str], data: Path, url: str, pool: str, pools: Path | None) -> NoReturn:
    """Replace this process by `module` with the settings of the pool's own trainer, for identical rounding. With `url`, only the settings
    given here are used."""
    from marlaas.stack.state_files import read_plan

    if url:
        offered = str((pools or pools_file()).resolve())
        exec_module(module, {"MARLAAS_NATS_URL": url, "MARLAAS_TRAINER_POOL": pool, "MARLAAS_POOLS_FILE": offered})
    plan = read_plan(data)
    services = {service.name: service for service in plan.services}
    exec_module(
        module, services[f"trainer-{pool}"].env | operator_key(plan) | ({"MARLAAS_POOLS_FILE": str(pools.resolve())} if pools else {})
    )
