"""Table of kills and cuts on a shared accelerator, from the result of `python -m bench.plex.real.faults`."""

from collections.abc import Sequence

from bench.charts.tables import Result

POINTS = {
    "lease_before_park": "before parking",
    "lease_in_park": "while parking",
    "lease_after_park": "after parking",
    "lease_before_wake": "before waking",
    "lease_in_wake": "while waking",
    "lease_after_wake": "after waking",
    "lease_before_renew": "before renewing",
}
SERVICES = {"rollout": "sampler", "trainer": "trainer"}


def faults(result: Result) -> str:
    """By kind of fault: how often, until the accelerator was in use again, and what held in all runs."""
    kinds = result["kinds"]
    lines = [
        f"{result['machine']['cores']} cores, of which one is the accelerator; load when a run ended {_loads(result)}. {result['faults']}"
        f" faults in {len(result['runs']) - 1} runs, {sum(run['took_s'] for run in result['runs']) / 60:.0f} minutes.",
        "",
        "| what | n | in use again after, s: median, most | its wake, s: most | hung for, s: most | within lease + wake |",
        "|---|---|---|---|---|---|",
        *(_row(name, kinds[kind]) for kind, name in ((kind, _name(kind)) for kind in kinds) if "in_use_after_s" in kinds[kind]),
        "",
        _held(result),
    ]
    if result["missing"]:
        lines += ["", f"Not run yet: {', '.join(result['missing'])}."]
    poisons = [fault for run in result["runs"] for fault in run["faults"] if fault["kind"] == "poison"]
    return "\n".join([*lines, *(line for one in poisons for line in ("", _poison(one)))])


def _row(name: str, kind: Result) -> str:
    hung = f"{kind['hung_s'][1]:.1f}" if "hung_s" in kind else "–"
    after, most = kind["in_use_after_s"]
    return f"| {name} | {kind['times']} | {after:.1f}, {most:.1f} | {kind['wake_s'][1]:.2f} | {hung} | {kind.get('within', '–')} |"


def _name(kind: str) -> str:
    what, _, rest = kind.partition(" ")
    point, _, service = rest.partition(" ")
    if point not in POINTS:
        return kind.replace("_", " ")
    return f"{SERVICES[service]} {'killed' if what == 'kill' else 'hangs'} {POINTS[point]}"


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
