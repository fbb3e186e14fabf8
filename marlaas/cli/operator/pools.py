"""Commands for pools: base models, executors of shared accelerators, and orders of operators."""

import math
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import (
    DEFAULT_DATA,
    Data,
    Url,
    Wide,
    echo,
    exec_module,
    open_console,
    pools_file,
    print_found,
    print_table,
    with_client,
)

if TYPE_CHECKING:
    from rich.table import Table

    from common.accelerators.trace import Trace
    from common.messages import ExecutorOf, MoveOf, PoolVerb, SliceOf

app = typer.Typer(invoke_without_command=True, help="Base models, and the accelerators that they share.")
Pool = Annotated[str, typer.Argument(help="Name of the pool.")]
On = Annotated[str | None, typer.Option("--accelerator", help="On this accelerator only.")]
File = Annotated[Path | None, typer.Option("--pools", help="Pools file.", envvar="MARLAAS_POOLS_FILE")]


@app.callback()
def pools(context: typer.Context, data: Data = DEFAULT_DATA, url: Url = "", file: File = None, wide: Wide = False) -> None:
    """List the base models of this deployment, and the executors of accelerators that they share; with --url, as its scheduler reports
    them."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from common.pools import read_pools
    from marlaas.client import ClientError
    from marlaas.stack.state_files import StackError, find_stack, plan_pools_file

    if url and file is None:
        offered = {pool.name: pool for pool in with_client(data, url, lambda client: client.pools())}
        shared = any(pool.accelerators for pool in offered.values())
    else:
        offered = read_pools(file or plan_pools_file(data) or pools_file())
        shared = file is None and any(pool.samplers_on or pool.trainers_on for pool in offered.values())
    table = Table("pool", "model", "context", "max rank", "adapters", "sequences", "profile", box=None, header_style="bold")
    for name, pool in offered.items():
        numbers = (pool.context_tokens, pool.max_rank, pool.adapters, pool.sequences)
        table.add_row(name, pool.model, *map(str, numbers), pool.profile or "none")
    open_console(wide).print(table)
    if url or find_stack(data) is not None:
        for trouble in with_client(data, url, lambda client: client.troubles()):
            echo(trouble.sentence)
    if not shared:
        return
    try:
        executors = with_client(data, url, lambda client: client.accelerators.executors())
    except (ClientError, StackError) as error:
        echo(f"\nwho computes is not known: {error}")
        return
    if executors:
        echo("")
        print_table(lambda width: executor_table(executors, time.time(), width), wide)


@app.command("slices")
def list_slices(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    since: Annotated[str, typer.Option(help="How far back, as 90s, 30m, 12h or 7d.")] = "1h",
    accelerator: On = None,
    wide: Wide = False,
) -> None:
    """List slices of shared accelerators, oldest first, with the tasks charged for them; tenants see slices that served their tasks."""
    since_s = time.time() - _duration_s(since)
    found = with_client(data, url, lambda client: client.accelerators.slices(since_s, accelerator=accelerator))
    print_found(found[::-1], slice_table, wide, f"no slice was ordered in the last {since}")


@app.command()
def park(pool: Pool, data: Data = DEFAULT_DATA, url: Url = "", accelerator: On = None) -> None:
    """Park a pool's executors immediately, with requests frozen, until `wake` or `release`."""
    _order(data, url, pool, "park", accelerator)


@app.command()
def drain(pool: Pool, data: Data = DEFAULT_DATA, url: Url = "", accelerator: On = None) -> None:
    """Park a pool's executors once running operations have ended, until `wake` or `release`."""
    _order(data, url, pool, "drain", accelerator)


@app.command()
def wake(pool: Pool, data: Data = DEFAULT_DATA, url: Url = "", accelerator: On = None) -> None:
    """Give a pool's executors the next slices, with or without work."""
    _order(data, url, pool, "wake", accelerator)


@app.command()
def release(pool: Pool, data: Data = DEFAULT_DATA, url: Url = "", accelerator: On = None) -> None:
    """Withdraw an order: the scheduler decides again."""
    _order(data, url, pool, "release", accelerator)


@app.command()
def moves(data: Data = DEFAULT_DATA, url: Url = "", wide: Wide = False) -> None:
    """List measured durations of moves between tiers; for operators."""
    found = with_client(data, url, lambda client: client.accelerators.moves())
    print_found(found, move_table, wide, "no move was measured yet; `marlaas pools calibrate` measures those of every executor")


@app.command()
def calibrate(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Times that each move is measured.")] = 1,
) -> None:
    """Park each executor in every tier that its pool allows, and wake it from there, so that all its moves are measured.

    Running tasks wait meanwhile, and lose nothing.
    """
    from functools import partial

    from marlaas.cli.operator import calibration

    complain = partial(echo, to=sys.stderr)
    are_all = with_client(data, url, lambda client: calibration.calibrate(client.accelerators, rounds, echo, complain))
    found = with_client(data, url, lambda client: client.accelerators.moves())
    print_table(lambda width: move_table(found, width))
    if not are_all:
        raise typer.Exit(1)


@app.command()
def trace(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    since: Annotated[str, typer.Option(help="How far back, as 90s, 30m, 12h or 7d.")] = "7d",
) -> None:
    """Write executors, their moves and steps of all tasks as JSON lines, for `pools plan` and simulations; for operators."""
    from common.accelerators.trace import text_of

    echo(text_of(_trace(data, url, since)).rstrip("\n"))


@app.command()
def plan(
    data: Data = DEFAULT_DATA,
    url: Url = "",
    file: Annotated[Path | None, typer.Option("--trace", help="File of `marlaas pools trace`; default: the last 7 days.")] = None,
    accelerators: Annotated[int, typer.Option(min=1, max=1000, help="Accelerators to place the tasks on.")] = 1,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of each, as in the pools file; default: what the largest pool needs.")
    ] = None,
) -> None:
    """Estimate the savings and losses of sharing accelerators among pools, including cases in which it is not worthwhile."""
    import tempfile

    from common.accelerators import trace as traces

    if file is None:
        found = _trace(data, url, "7d")
        unnamed = tempfile.TemporaryFile("w")  # noqa: SIM115  # it has no name, and ends with the process that reads it
        unnamed.write(traces.text_of(found))
        unnamed.seek(0)
        os.set_inheritable(unnamed.fileno(), True)
        file = Path(f"/dev/fd/{unnamed.fileno()}")
    memory = [] if memory_gib is None else ["--device-gib", str(memory_gib)]
    exec_module(["scheduler_svc.plan", str(file), "--accelerators", str(accelerators), *memory], {})


def _order(data: Path, url: str, pool: str, verb: "PoolVerb", accelerator: str | None) -> None:
    moved = with_client(data, url, lambda client: client.accelerators.order(pool, verb, accelerator=accelerator))
    echo(f"{verb}: {', '.join(moved)}")


def _trace(data: Path, url: str, since: str) -> "Trace":
    since_s = time.time() - _duration_s(since)
    return with_client(data, url, lambda client: client.accelerators.trace(since_s))


def _duration_s(text: str) -> float:
    lengths = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    try:
        return float(text[:-1]) * lengths[text[-1]]
    except (ValueError, KeyError, IndexError):
        raise typer.BadParameter(f"'{text}' is no duration; give one as 90s, 30m, 12h or 7d") from None


def executor_table(executors: "Sequence[ExecutorOf]", now_s: float, width: int | None = None) -> "Table":
    from marlaas.reporting.listing import Field, listing

    fields: list[Field[ExecutorOf]] = [
        Field("accelerator", lambda one: one.accelerator),
        Field("executor", lambda one: one.executor),
        Field("state", lambda one: one.state.value + (f" ({one.held})" if one.held else "")),
        Field("tier", lambda one: one.tier.value, rank=2),
        Field("holder", lambda one: "yes" if one.is_holder else ""),
        Field("since", lambda one: lasting(one.since_s, now_s), rank=3),
        Field("waiting", lambda one: lasting(one.waiting_since_s, now_s)),
        Field("to wake", lambda one: "" if one.wake_s is None else f"{'' if one.is_measured else '~'}{one.wake_s:.2f} s", rank=1),
        Field("switching", lambda one: "" if one.switch_share is None else f"{one.switch_share:.0%}", rank=4),
    ]
    return listing(executors, fields, lambda one: one.fault or "", width)


def slice_table(slices: "Sequence[SliceOf]", width: int | None = None) -> "Table":
    from marlaas.reporting.listing import Field, listing

    fields: list[Field[SliceOf]] = [
        Field("ordered (UTC)", lambda one: datetime.fromtimestamp(one.ordered_s, UTC).strftime("%Y-%m-%d %H:%M:%S")),
        Field("accelerator", lambda one: one.accelerator),
        Field("epoch", lambda one: str(one.epoch), rank=3),
        Field("executor", lambda one: one.executor),
        Field("function", lambda one: one.function.value, rank=2),
        Field("why", lambda one: one.reason, rank=1),
        Field("switch", lambda one: _seconds(one.switch_ms)),
        Field("busy", lambda one: _seconds(one.busy_ms)),
        Field("score", lambda one: _seconds(one.score_ms or None), rank=4),
        Field("idle", lambda one: _seconds(one.idle_ms)),
        Field("ended", lambda one: one.ended or "open"),
    ]
    return listing(slices, fields, _shares, width)


def move_table(moves: "Sequence[MoveOf]", width: int | None = None) -> "Table":
    from marlaas.reporting.listing import Field, listing

    fields: list[Field[MoveOf]] = [
        Field("accelerator", lambda one: one.accelerator),
        Field("executor", lambda one: one.executor),
        Field("from", lambda one: one.from_tier.value),
        Field("to", lambda one: one.to_tier.value),
        Field("n", lambda one: str(one.n)),
        Field("median", lambda one: f"{one.p50_s:.3f} s"),
        Field("p90", lambda one: f"{one.p90_s:.3f} s"),
    ]
    return listing(moves, fields, lambda _: "", width)


def lasting(since_s: float | None, now_s: float) -> str:
    """Elapsed time, as 12 s, 5 min or 3 h; empty for None."""
    if since_s is None:
        return ""
    seconds = max(0.0, now_s - since_s)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{math.floor(seconds / length)} {unit}"
    return f"{seconds:.0f} s"


def _seconds(ms: int | None) -> str:
    return "" if ms is None else f"{ms / 1000:.2f} s"


def _shares(one: "SliceOf") -> str:
    """The tasks charged for a slice, each with its seconds."""
    return ", ".join(f"{share.task or 'none'} {share.ms / 1000:.2f} s" for share in one.shares)
