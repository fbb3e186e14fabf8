"""Table of kills and cuts on a shared accelerator, from the result of `python -m bench.plex.real.faults`."""

from collections.abc import Sequence
from statistics import median

from bench.charts.tables import Result

GROUPS = (
    ("kill lease_ rollout", "sampler killed, at each point of a move and of the lease"),
    ("kill lease_ trainer", "trainer killed there"),
    ("hang lease_ rollout", "sampler hangs there"),
    ("hang lease_ trainer", "trainer hangs there"),
    ("kill scheduler", "scheduler killed, before and after it writes a slice"),
    ("kill nats", "NATS killed"),
    ("kill postgres", "PostgreSQL killed"),
    ("nats silent", "NATS silent for 5 and 60 s"),
    ("postgres silent", "PostgreSQL silent for 15 s"),
    ("restored", "a store restored to an older copy"),
)
"""Words of a kind of fault → its row; the first that fits. Others are in the last row."""
OTHERS = "executor stopped, without memory, model or locks"


def faults(result: Result) -> str:
    """By kind of fault: how often, until the accelerator was in use again, and what held in all runs."""
    rows: dict[str, list[Result]] = {}
    for fault in (fault for run in result["runs"] for fault in run["faults"] if "in_use_after_s" in fault):
        rows.setdefault(_group(fault["kind"]), []).append(fault)
    lines = [
        f"{result['machine']['cores']} cores, of which one is the accelerator; load when a run ended {_loads(result)}. {result['faults']}"
        f" faults in {len(result['runs']) - 1} runs, {sum(run['took_s'] for run in result['runs']) / 60:.0f} minutes.",
        "",
        "| what | n | in use again after, s: median, most | its wake, s: most | hung for, s: most | within lease + wake |",
        "|---|---|---|---|---|---|",
        *(_row(name, rows[name]) for name in (*dict(GROUPS).values(), OTHERS) if name in rows),
        "",
        _held(result),
    ]
    if result["missing"]:
        lines += ["", f"Not run yet: {', '.join(result['missing'])}."]
    poisons = [fault for run in result["runs"] for fault in run["faults"] if fault["kind"] == "poison"]
    return "\n".join([*lines, *(line for one in poisons for line in ("", _poison(one)))])


def _row(name: str, found: Sequence[Result]) -> str:
    after = [one["in_use_after_s"] for one in found]
    hung = [one["hung_s"] for one in found if "hung_s" in one]
    within = [one["within"] for one in found if one.get("within") is not None]
    longest = f"{max(hung):.1f}" if hung else "–"
    wake = max(one["wake_s"] for one in found)
    return f"| {name} | {len(found)} | {median(after):.1f}, {max(after):.1f} | {wake:.2f} | {longest} | {sum(within) if within else '–'} |"


def _group(kind: str) -> str:
    return next((name for words, name in GROUPS if all(word in kind for word in words.split())), OTHERS)


def _held(result: Result) -> str:
    return (
        f"{result['tasks']} tasks with {result['steps']} steps have finished, {len(result['differing'])} with other adapters than in the"
        f" undisturbed run{_replayed(result)}. A recorder outside the services looked {result['looks']:,} times: the lock had several"
        f" holders in {result['held_by_several']}, and several executors computed in {result['computing_together']} windows of 0.2 s."
        f" {result['slices']:,} slices held the accelerator for {result['held_ms']:,} ms, of which {result['booked_ms']:,} are booked"
        " to tasks; the doctor found nothing."
    )


def _replayed(result: Result) -> str:
    count = len(result.get("replayed", []))
    return f"; {count} more, some of whose groups were refilled after a restoration, with those of their replayed batches" if count else ""


def _poison(one: Result) -> str:
    attempts = f"{one['attempts']} attempt{'' if one['attempts'] == 1 else 's'}"
    return (
        f"A pool whose model's folder is gone: {attempts} took {one['attempts_s']:.1f} s of the accelerator; the other pool's tasks took"
        f" {one['others_beside_s']:.1f} s beside it, and {one['others_alone_s']:.1f} s alone. `marlaas why` said: {one['why']['sentence']}"
        " Once it was back, the tasks finished."
    )


def _loads(result: Result) -> str:
    loads: Sequence[float] = sorted(run["load"] for run in result["runs"])
    return f"{loads[0]:.1f} to {loads[-1]:.1f}"
