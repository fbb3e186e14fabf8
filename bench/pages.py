"""Writes the tables of docs/benchmarks.md from bench/results: `python -m bench.pages`. What is between the marks is made here."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import RESULTS, ROOT, median

PAGE = ROOT / "docs" / "benchmarks.md"
POLICIES = ("asynchronous", "synchronous", "sequential")

Result = dict[str, Any]
Table = Callable[[Result], str]


def page(text: str, results: dict[str, Result], tables: dict[str, Table]) -> str:
    """`text` with every marked table whose result is there written anew."""
    for name, table in tables.items():
        if name in results:
            marks = re.compile(rf"(<!-- {name}: made by bench\.pages -->\n).*?(<!-- end -->)", re.DOTALL)
            text = marks.sub(lambda found, name=name, table=table: found[1] + table(results[name]) + "\n" + found[2], text)
    return text


def scaling(result: Result) -> str:
    """Medians by number of tasks and policy, and what is gained over the other policies."""
    runs, times, options = result["runs"], result["times"], result["options"]
    lines = [
        f"{_machine(result)} Injected means: sampling {times['sample_s']} s and environment {times['environment_s']} s a turn,"
        f" {options['turns']} turns, training {times['train_s']} s a step; {options['groups']} × {options['size']} trajectories a step,"
        f" {options['steps']} steps a task, strictly on policy.",
        "",
        "| tasks | policy | runs | all done, s (spread) | limit, s | of the limit | sampler busy | trainer busy | first step, s"
        " | step p50 / p99, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tasks in sorted({run["tasks"] for run in runs}):
        for policy in POLICIES:
            chosen = [run for run in runs if run["tasks"] == tasks and run["policy"] == policy]
            if chosen:
                lines.append(_scaling_row(tasks, policy, chosen))
    most = max(run["tasks"] for run in runs)
    of_most = {policy: [run for run in runs if run["tasks"] == most and run["policy"] == policy] for policy in POLICIES}
    if all(of_most.values()):
        lines += ["", _gains(most, of_most)]
    return "\n".join(lines)


def _scaling_row(tasks: int, policy: str, chosen: list[Result]) -> str:
    def middle(value: Callable[[Result], float]) -> float:
        return median([value(run) for run in chosen])

    ends = [run["end_to_end_s"] for run in chosen]
    spread = f" ({min(ends):.1f} – {max(ends):.1f})" if len(ends) > 1 else ""
    return (
        f"| {tasks} | {policy} | {len(chosen)} | {median(ends):.1f}{spread} | {chosen[0]['limit_s']:.1f}"
        f" | {middle(lambda run: run['share_of_limit']):.0%} | {middle(lambda run: run['sampler']['busy']):.1%}"
        f" | {middle(lambda run: run['trainer']['busy']):.1%} | {middle(lambda run: run['first_step_s']['p50']):.2f}"
        f" | {middle(lambda run: run['step_s']['p50']):.2f} / {middle(lambda run: run['step_s']['p99']):.2f} |"
    )


def _gains(tasks: int, runs: dict[str, list[Result]]) -> str:
    ours = runs["asynchronous"][0]
    found = []
    for other in ("sequential", "synchronous"):
        times = median([run["end_to_end_s"] for run in runs[other]]) / median([run["end_to_end_s"] for run in runs["asynchronous"]])
        use = median([run["trainer"]["busy"] for run in runs["asynchronous"]]) / median([run["trainer"]["busy"] for run in runs[other]])
        possible = runs[other][0]["limit_s"] / ours["limit_s"]
        found.append(f"against {other}: {times:.1f}× sooner (what the limits leave: {possible:.1f}×), stages {use:.1f}× busier")
    return (
        f"{tasks} tasks asynchronous, {'; '.join(found)}. Closed form for updates one at a time, (R + E + T) / T:"
        f" {ours['limits_s']['closed_form']:.1f}×. Busiest stage: {ours['busiest']}."
    )


def _machine(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['cores']} cores ({machine['processor']}), load {machine['load_before']} before it began."


TABLES: dict[str, Table] = {"scaling": scaling}


def main() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(Path(RESULTS).glob("*.json"))}
    PAGE.write_text(page(PAGE.read_text(), results, TABLES))


if __name__ == "__main__":
    main()
