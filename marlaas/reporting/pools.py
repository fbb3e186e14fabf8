"""Tables of shared accelerators: executors, slices and moves. Pure."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from common.messages import ExecutorOf, MoveOf, SliceOf
from marlaas.reporting.listing import Field, listing


def executor_table(executors: Sequence[ExecutorOf], now_s: float, width: int | None = None) -> Table:
    fields: list[Field[ExecutorOf]] = [
        Field("accelerator", lambda one: Text(one.accelerator)),
        Field("executor", lambda one: Text(one.executor)),
        Field("state", lambda one: Text(one.state.value + (f" ({one.held})" if one.held else ""))),
        Field("tier", lambda one: Text(one.tier.value), rank=2),
        Field("holder", lambda one: Text("yes" if one.is_holder else "")),
        Field("since", lambda one: Text(lasting(one.since_s, now_s)), rank=3),
        Field("waiting", lambda one: Text(lasting(one.waiting_since_s, now_s))),
        Field("to wake", lambda one: Text("" if one.wake_s is None else f"{'' if one.is_measured else '~'}{one.wake_s:.2f} s"), rank=1),
        Field("switching", lambda one: Text("" if one.switch_share is None else f"{one.switch_share:.0%}"), rank=4),
    ]
    return listing(executors, fields, lambda one: one.fault or "", width)


def slice_table(slices: Sequence[SliceOf], width: int | None = None) -> Table:
    fields: list[Field[SliceOf]] = [
        Field("ordered (UTC)", lambda one: Text(datetime.fromtimestamp(one.ordered_s, UTC).strftime("%Y-%m-%d %H:%M:%S"))),
        Field("accelerator", lambda one: Text(one.accelerator)),
        Field("epoch", lambda one: Text(str(one.epoch)), rank=3),
        Field("executor", lambda one: Text(one.executor)),
        Field("function", lambda one: Text(one.function.value), rank=2),
        Field("why", lambda one: Text(one.reason), rank=1),
        Field("switch", lambda one: Text(_seconds(one.switch_ms))),
        Field("busy", lambda one: Text(_seconds(one.busy_ms))),
        Field("score", lambda one: Text(_seconds(one.score_ms or None)), rank=4),
        Field("idle", lambda one: Text(_seconds(one.idle_ms))),
        Field("ended", lambda one: Text(one.ended or "open")),
    ]
    return listing(slices, fields, _shares, width)


def move_table(moves: Sequence[MoveOf], width: int | None = None) -> Table:
    fields: list[Field[MoveOf]] = [
        Field("accelerator", lambda one: Text(one.accelerator)),
        Field("executor", lambda one: Text(one.executor)),
        Field("from", lambda one: Text(one.from_tier.value)),
        Field("to", lambda one: Text(one.to_tier.value)),
        Field("n", lambda one: Text(str(one.n))),
        Field("median", lambda one: Text(f"{one.p50_s:.3f} s")),
        Field("p90", lambda one: Text(f"{one.p90_s:.3f} s")),
    ]
    return listing(moves, fields, lambda _: "", width)


def lasting(since_s: float | None, now_s: float) -> str:
    """Time until now: 12 s, 5 min, 3 h; empty where it never began."""
    if since_s is None:
        return ""
    seconds = max(0.0, now_s - since_s)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{math.floor(seconds / length)} {unit}"
    return f"{seconds:.0f} s"


def _seconds(ms: int | None) -> str:
    return "" if ms is None else f"{ms / 1000:.2f} s"


def _shares(one: SliceOf) -> str:
    """Who paid."""
    return ", ".join(f"{share.task or 'nobody'} {share.ms / 1000:.2f} s" for share in one.shares)
