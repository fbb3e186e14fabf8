"""The table of recoveries in docs/durability.md, from the result of `make chaos` with `--json bench/results/recovery.json`."""

from typing import Any

from bench.harness.report import percentile

FAULTS = {
    "kill nats": "NATS killed",
    "kill postgres": "PostgreSQL killed",
    "kill scheduler": "scheduler killed, crash points included",
    "kill env": "environment service killed, crash points included",
    "kill trainer": "trainer killed, crash points included",
    "kill rollout": "sampler killed, crash points included, with the start of its engine",
    "kill gateway": "gateway killed",
    "stop": "any process stopped (from its continuing)",
    "cut": "connection cut",
    "half-close": "connection half closed",
    "silence": "connection silent",
    "slow": "connection slow or narrow",
    "messages": "messages duplicated, late, cut short, or garbage",
    "clock": "clock an hour ahead or back",
    "full disk": "NATS's disk full",
}
"""Prefix of a kind of fault → its row in the table."""


def fault(kind: str) -> str:
    """Name of its row in the table."""
    kind = kind.replace("crash ", "kill ").replace("throttle ", "slow ")
    return FAULTS["messages"] if kind.endswith("messages") else next(name for start, name in FAULTS.items() if kind.startswith(start))


def chaos(result: dict[str, Any]) -> str:
    """Recovery times by kind of fault, and of all faults against their limits."""
    runs = result["runs"]
    found: dict[str, list[float]] = {}
    for recovery in [one for run in runs for one in run["recoveries"]]:
        found.setdefault(fault(recovery["kind"]), []).append(recovery["took_s"])
    counts = {name: sum(run[name] for run in runs) for name in ("faults", "tasks", "steps", "trajectories", "replayed_steps")}
    voids = sum(sum(run["void_groups"].values()) for run in runs)
    deaths = sum(sum(run["points_reached"].values()) for run in runs)
    seeds = ", ".join(str(run["seed"]) for run in runs)
    loads = ", ".join(str(run["machine"]["load_before"]) for run in runs)
    plain, beyond, limits = result["seconds"]["without_engine"], result["seconds"]["beyond_engine"], result["limits_s"]
    lines = [
        f"{counts['faults']} faults in {sum(run['took_s'] for run in runs) / 60:.0f} minutes, {len(runs)} runs with the seeds"
        f" {seeds}: {counts['tasks']} tasks finished, {counts['trajectories']} trajectories,"
        f" {counts['steps']} steps, of which {counts['replayed_steps']} were taken once more with equal digests. {voids} groups ran out of"
        f" time and were sampled once more; {deaths} processes died at the crash point that was armed in them."
        f" Doctor: {runs[-1]['doctor']}."
        f" {result['machine']['cores']} cores, load before each run: {loads}.",
        "",
        "| fault | times | p50, s | p90, s | max, s |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(FAULTS.values()):
        if taken := found.get(name):
            lines.append(f"| {name} | {len(taken)} | {' | '.join(f'{percentile(taken, share):.1f}' for share in (0.5, 0.9, 1.0))} |")
    for name, row, limit in (
        ("**all that end no engine**", plain, f"limits: p90 {limits['without_engine']['p90']:g}, max {limits['without_engine']['max']:g}"),
        ("**beyond the engine's own start**", beyond, f"limit: max {limits['beyond_engine']['max']:g}"),
    ):
        lines.append(f"| {name} ({limit}) | {row['times']} | {row['p50']:.1f} | {row['p90']:.1f} | {row['max']:.1f} |")
    return "\n".join(lines)
