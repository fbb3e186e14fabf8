"""Tables of tasks, of the stack and of its start: pure functions to rich's renderables."""

import time
from collections.abc import Mapping, Sequence

from rich.table import Column, Table
from rich.text import Text

from common.evaluation import EvaluationReport
from common.messages import Event, TaskStatus
from common.spec import MAIN_PROTOCOL
from marlaas.client import Failure
from marlaas.comparison import Comparison, Evaluated
from marlaas.reporting.listing import Field, listing, scaled
from marlaas.reporting.progress import Progress, sparkline, step_of
from marlaas.stack.state_files import Stack

NOT_PARKED: Mapping[str, float] = {}
COLOURS = (
    dict.fromkeys(("ready", "done", "running"), "green")
    | dict.fromkeys(("starting", "restarting", "paused"), "yellow")
    | dict.fromkeys(("faulty", "failed", "rejected"), "red")
    | {"finished": "cyan"}
)


def stack_table(stack: Stack) -> Table:
    """Every process of the stack and its condition."""
    now_s = time.time()
    table = Table("component", "state", "process", "for", "restarts", "detail", title=None, box=None, header_style="bold")
    for one in stack.components:
        pid = str(one.process.pid) if one.process else "-"
        lasting = "-" if one.condition == "waiting" else duration(now_s - one.since_s)
        took = f"took {one.took_s:.1f} s" if one.took_s is not None else ""
        table.add_row(one.name, _coloured(one.condition), pid, lasting, str(one.restarts), Text(one.detail or took))
    return table


def starting_table(stack: Stack, now_s: float) -> Table:
    """Every process during the start, with its seconds since the start began, or the seconds that its completed start took."""
    table = Table.grid(padding=(0, 2))
    for one in stack.components:
        seconds = one.took_s if one.took_s is not None else None if one.condition == "waiting" else now_s - one.since_s
        table.add_row(one.name, _coloured(one.condition), "" if seconds is None else f"{seconds:.1f} s", Text(one.detail))
    return table


def status_table(
    statuses: Sequence[TaskStatus],
    width: int | None = None,
    now_s: float | None = None,
    more: Sequence[Field[TaskStatus]] = (),
    parked: Mapping[str, float] = NOT_PARKED,
) -> Table:
    """Every task, one line each, in `width` characters; None: complete lines. `more`: columns at the end. `parked`: pool whose
    samplers are all parked → expected seconds until one wakes.
    """
    now_s = now_s or time.time()
    fields: list[Field[TaskStatus]] = [
        Field("task", lambda one: one.task),
        Field("tenant", lambda one: one.tenant, rank=4),
        Field("pool", lambda one: one.pool, rank=7),
        Field("state", lambda one: _coloured(one.state)),
        Field("version", lambda one: f"{one.version}/{one.steps}"),
        Field("reward", lambda one: _f(one.reward), rank=1),
        Field("staleness", lambda one: _f(one.staleness), rank=8),
        Field("failed", lambda one: _share(one.failed_share), rank=3),
        Field("tokens", lambda one: _count(one.sampled_tokens), rank=6),
        Field("dead letters", lambda one: Text(str(one.dead_letters), style="red" if one.dead_letters else ""), rank=5),
        Field("left", lambda one: _left(one, now_s), rank=2),
        Field("age", lambda one: duration(now_s - one.submitted_s), rank=2),
        *more,
    ]
    return listing(statuses, fields, lambda one: _reason_of(one, parked), width)


def failures_table(failures: Sequence[Failure], width: int | None = None) -> Table:
    """Dead letters, one line each, in `width` characters; None: complete lines."""
    fields: list[Field[Failure]] = [
        Field("letter", lambda one: str(one.letter)),
        Field("task", lambda one: one.task or f"- ({one.subject})"),
        Field("stage", lambda one: one.stage, rank=1),
        Field("attempts", lambda one: str(one.attempts), rank=2),
    ]
    return listing(failures, fields, lambda one: one.reason, width)


def task_table(status: TaskStatus, evaluated: Evaluated | None = None, now_s: float | None = None) -> Table:
    """Every field of one task, one per line, and its evaluations; long texts are wrapped and never truncated."""
    now_s = now_s or time.time()
    adapter = status.adapter
    rows: dict[str, Text | str] = {
        "task": status.task,
        "name": status.name,
        "tenant": status.tenant,
        "pool": status.pool,
        "state": _coloured(status.state),
        "reason": status.reason or "-",
        **{f"warning {name}": Text(sentence, style="yellow") for name, sentence in sorted(status.warnings.items())},
        "version": f"{status.version} of {status.steps}",
        "time left": _left(status, now_s),
        "reward": _f(status.reward),
        **(_evaluation_rows(evaluated) if evaluated else {}),
        "staleness": _f(status.staleness),
        "failed groups": _share(status.failed_share),
        "sampled tokens": f"{status.sampled_tokens:,}",
        "dead letters": str(status.dead_letters),
        "adapter": "-" if adapter is None else f"{adapter.blob.name}, rank {adapter.rank}, {adapter.blob.size_bytes:,} bytes",
        "submitted": f"{duration(now_s - status.submitted_s)} ago",
        "changed": f"{duration(now_s - status.updated_s)} ago",
    }
    table = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def _evaluation_rows(evaluated: Evaluated) -> dict[str, Text | str]:
    """Rows with the results of the last and the best version, by each protocol."""
    rows: dict[str, Text | str] = {}
    for protocol in dict.fromkeys(report.protocol for report in evaluated.reports):
        last, best = evaluated.last(protocol), evaluated.best(protocol)
        if last and best:
            said = [f"version {last.version}: {_with_interval(last.reward, last.interval)}"]
            if last.gain:
                said.append(f"over version 0 {_with_interval(last.gain.reward, last.gain.interval, sign='+')}")
            if best.version != last.version:
                said.append(f"best: version {best.version}, {_with_interval(best.reward, best.interval)}")
            rows[f"evaluation {protocol}"] = "; ".join(said)
    return rows


def comparison_lines(found: Comparison) -> list[str]:
    """Both results, and the paired difference with its verdict."""
    lines = [f"protocol {found.reports[0].protocol}, {found.difference.prompts} prompts in common"]
    for task, report in zip(found.tasks, found.reports, strict=True):
        lines.append(f"{task} version {report.version}: reward {_with_interval(report.reward, report.interval)}, {report.prompts} prompts")
    difference = _with_interval(found.difference.mean, found.difference.interval, sign="+")
    return [*lines, f"difference {difference}: {found.verdict}"]


def progress_table(tasks: Sequence[Progress]) -> Table:
    """Running tasks, for a terminal that is redrawn."""
    table = Table("task", "tenant", "state", "step", "reward", "", "staleness", "tokens/s", "left", box=None, header_style="bold")
    for one in tasks:
        last = one.steps[-1] if one.steps else None
        table.add_row(
            one.spec.name,
            one.spec.tenant,
            _coloured(one.state),
            f"{one.version}/{one.spec.steps}",
            _f(last.reward if last else None),
            Text(sparkline(one.rewards), style="cyan"),
            _f(last.staleness_mean if last else None, 1),
            _count(one.tokens_per_s()),
            "-" if (left_s := one.left_s()) is None else duration(left_s),
        )
    return table


def summary_table(tasks: Sequence[Progress]) -> Table:
    """Each task's reward before and after."""
    table = Table(
        "task", "tenant", "environment", "state", "steps", "reward before", "after", "", "staleness", "tokens", header_style="bold"
    )
    for one in tasks:
        before, after = one.reward_before, one.reward_after
        gain = "" if before is None or after is None else f"{after - before:+.3f}"
        state = _coloured(one.state)
        if one.reason:
            state.append(f" ({one.reason})", style="dim")
        row = [one.spec.name, one.spec.tenant, one.spec.environment.name, state, f"{one.version}/{one.spec.steps}"]
        table.add_row(*row, _f(before), _f(after), gain, _f(one.staleness), _count(one.sampled_tokens))
    return table


def _reason_of(status: TaskStatus, parked: Mapping[str, float]) -> str:
    """Reason of the task's state, the accelerator wait of its pool, and its active warnings."""
    reasons = [status.reason] if status.reason else []
    if status.state == "running" and status.pool in parked:
        reasons.append(f"waits for its accelerator, about {parked[status.pool]:.0f} s")
    return "; ".join([*reasons, *(f"warning {name}: {sentence}" for name, sentence in sorted(status.warnings.items()))])


def event_line(event: Event) -> str:
    """One event in one line, for output that is not redrawn."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    if (report := EvaluationReport.in_event(event)) is not None:
        return f"{clock} {event.task} {_evaluation(report)}"
    if event.event == "warning":
        said = f"warning {event.data.get('warning')}"
        return (
            f"{clock} {event.task} {said} is over" if event.data.get("over") else f"{clock} {event.task} {said}: {event.data.get('reason')}"
        )
    if event.event != "step":
        reason = event.data.get("reasons") or event.data.get("reason") or event.data.get("subject") or ""
        return f"{clock} {event.task} {event.event}{f': {reason}' if reason else ''}"
    step = step_of(event)
    loss = f" loss {step.metrics['loss']:.4f}" if "loss" in step.metrics else ""
    failed = f" failed {_share(step.failed_share)}" if step.failed_share else ""
    return (
        f"{clock} {event.task} step {step.version} reward {_f(step.reward)} staleness {_f(step.staleness_mean, 1)}"
        f" tokens {step.sampled_tokens}{loss}{failed}"
    )


def _evaluation(report: EvaluationReport) -> str:
    named = "" if report.protocol == MAIN_PROTOCOL else f" {report.protocol}"
    gain = f" gain {_with_interval(report.gain.reward, report.gain.interval, sign='+')}" if report.gain else ""
    failed = f" failed {report.failed_share:.0%}: {report.failure}" if report.failed_share else ""
    passed = "".join(f" pass@{k} {value:.3f}" for k, value in report.pass_at.items())
    return f"evaluation{named} of version {report.version} reward {_with_interval(report.reward, report.interval)}{passed}{gain}{failed}"


def _with_interval(value: float | None, interval: tuple[float, float] | None, *, sign: str = "") -> str:
    """A value and its 95 % interval, if any: 0.500 (0.381 to 0.619)."""
    if value is None:
        return "-"
    return f"{value:{sign}.3f}" + ("" if interval is None else f" ({interval[0]:{sign}.3f} to {interval[1]:{sign}.3f})")


def duration(seconds: float) -> str:
    """A duration as 3 s, 4 min 05 s, 2 h 07 min or 3 d 04 h."""
    whole = int(seconds)
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def _left(status: TaskStatus, now_s: float) -> str:
    return "-" if (left_s := status.remaining_s(now_s)) is None else duration(left_s)


def _coloured(state: str) -> Text:
    return Text(state, style=COLOURS.get(state, ""))


def _f(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _count(value: float | None) -> str:
    return "-" if value is None else scaled(value)
