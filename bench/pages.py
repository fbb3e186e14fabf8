"""Writes the tables of docs/benchmarks.md, docs/durability.md and docs/learning.md from bench/results: `python -m bench.pages`. What is
between the marks is made here."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness.recovery import chaos
from bench.harness.report import RESULTS, ROOT, median

PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "durability.md", ROOT / "docs" / "learning.md")
POLICIES = ("asynchronous", "synchronous", "sequential")

Result = dict[str, Any]
Table = Callable[[Result], str]


def page(text: str, results: dict[str, Result], tables: dict[str, Table]) -> str:
    """`text` with every marked table whose result is there written anew."""
    for name, table in tables.items():
        if name in results:
            marks = re.compile(rf"(<!-- {name}: made by bench\.pages -->\n).*?(<!-- end -->)", re.DOTALL)
            text = marks.sub(
                lambda found, name=name, table=table: found[1] + _source(results[name]) + table(results[name]) + "\n" + found[2], text
            )
    return text


def _source(result: Result) -> str:
    return f"Measured at {str(result['commit'])[:7]}, {result['date']}. " if result.get("commit") else ""


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

    return (
        f"| {tasks} | {policy} | {len(chosen)} | {_with_spread([run['end_to_end_s'] for run in chosen])} | {chosen[0]['limit_s']:.1f}"
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


def agentic(result: Result) -> str:
    """Medians by number of tasks and policy on the real stack, what is gained, and what one task's stages leave to gain."""
    runs, options, cores, alone = result["runs"], result["options"], result["cores"], result["engine_alone"]
    lines = [
        f"{_machine(result)} Sampler on core {_list(cores['sampler'])}, trainer on core {_list(cores['trainer'])}."
        f" {options['steps']} steps a task of {options['groups']} × {options['size']} attempts, three turns each."
        f" The engine alone, full of turns of {alone['tokens_per_turn']} tokens with {alone['adapters']} adapters:"
        f" {alone['tokens_per_s']} tokens a second.",
        "",
        "| tasks | policy | runs | all done, s (spread) | sampler's core | trainer's core | trajectories a second | tokens a second"
        " (of the engine alone) | first step, s | step p50 / p99, s |",
        "|---" * 10 + "|",
    ]
    for tasks in sorted({run["tasks"] for run in runs}):
        for policy in POLICIES:
            chosen = [run for run in runs if run["tasks"] == tasks and run["policy"] == policy]
            if chosen:
                lines.append(_agentic_row(tasks, policy, chosen, alone["tokens_per_s"]))
    lines += ["", *_agentic_gains(result)]
    lines += [f"\nFailed: {'; '.join(result['failed'])}."] if result["failed"] else []
    return "\n".join(lines)


def _agentic_row(tasks: int, policy: str, chosen: list[Result], engine_tokens_per_s: float) -> str:
    def middle(value: Callable[[Result], float]) -> float:
        return median([value(run) for run in chosen])

    tokens_per_s = middle(lambda run: run["tokens_per_s"])
    return (
        f"| {tasks} | {policy} | {len(chosen)} | {_with_spread([run['end_to_end_s'] for run in chosen])}"
        f" | {middle(lambda run: run['sampler']['core']):.0%} | {middle(lambda run: run['trainer']['core']):.0%}"
        f" | {middle(lambda run: run['trajectories_per_s']):.1f}"
        f" | {tokens_per_s:.0f} ({tokens_per_s / engine_tokens_per_s:.0%})"
        f" | {middle(lambda run: run['first_step_s']['p50']):.2f}"
        f" | {middle(lambda run: run['step_s']['p50']):.2f} / {middle(lambda run: run['step_s']['p99']):.2f} |"
    )


def _agentic_gains(result: Result) -> list[str]:
    runs, stages = result["runs"], result["stages"]
    most = max(run["tasks"] for run in runs)
    of_most = {policy: [run for run in runs if run["tasks"] == most and run["policy"] == policy] for policy in POLICIES}
    ends = {policy: median([run["end_to_end_s"] for run in found]) for policy, found in of_most.items() if found}
    found: list[str] = []
    others = [policy for policy in ("sequential", "synchronous") if policy in ends]
    if "asynchronous" in ends and others and most > 1:
        against = [
            f"{ends[other] / ends['asynchronous']:.1f}× sooner than {other} (cores of sampler and trainer"
            f" {_times_busier(of_most, other, 'sampler')} and {_times_busier(of_most, other, 'trainer')} as busy)"
            for other in others
        ]
        found.append(f"{most} tasks asynchronous are done {' and '.join(against)}.")
    if stages:
        found.append(
            f"A step of one task takes {stages['step']:.2f} s: sampling R {stages['sampling']:.2f} s and tools E"
            f" {stages['environment']:.2f} s of its slowest attempt, training T {stages['training']:.2f} s,"
            f" {stages['between']:.2f} s between them."
            f" (R + E + T) / T = {stages['closed_form']:.1f} is the most that updates one at a time leave to gain."
        )
    if of_most["asynchronous"]:
        cpu_s, cores = median([run["cpu_s_per_step"] for run in of_most["asynchronous"]]), result["machine"]["cores"]
        busy = median([run["cores_busy"] for run in of_most["asynchronous"]])
        found.append(
            f"With {most} tasks asynchronous everything together takes {cpu_s:.2f} s of processor time a step and keeps the cores"
            f" {busy:.0%} busy" + (f": {cores} cores leave {cores * stages['step'] / cpu_s:.1f}×, {most} tasks {most}×." if stages else ".")
        )
    elsewhere = [run["elsewhere"] for run in runs]
    found.append(
        f"Staleness was {max(run['staleness_max'] for run in runs):.0f} throughout. {_agreement(runs)}"
        f" Others took {min(elsewhere):.0%} to {max(elsewhere):.0%} of the cores meanwhile."
    )
    return [" ".join(found)]


def _times_busier(runs: dict[str, list[Result]], other: str, stage: str) -> str:
    ours, theirs = (median([run[stage]["core"] for run in runs[policy]]) for policy in ("asynchronous", other))
    return f"{ours / theirs:.1f}×" if theirs else "far more"


def _agreement(runs: list[Result]) -> str:
    """What was learned, and how far a task's rewards differ between runs, whoever ran beside it."""
    seen: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        for task, rewards in run["rewards"].items():
            for step, reward in enumerate(rewards):
                seen.setdefault((task, step), []).append(reward)
    apart = max(max(found) - min(found) for found in seen.values())
    rewards = max((run["rewards"] for run in runs), key=len).values()
    first, last = (sum(one[step] for one in rewards) / len(rewards) for step in (0, -1))
    return (
        f"Mean reward of the {len(rewards)} tasks' first and last steps: {first:.3f} → {last:.3f}; that of a step of a task differs by"
        f" {apart:.4f} at most between these runs."
    )


def _with_spread(values: list[float]) -> str:
    return f"{median(values):.1f}" + (f" ({min(values):.1f} – {max(values):.1f})" if len(values) > 1 else "")


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _among(found: Result) -> str:
    """The least and the most that several runs came to."""
    return f" ({found['all'][0]:.4g} – {found['all'][-1]:.4g})" if len(found.get("all", [])) > 1 else ""


def _added(name: str, found: Result) -> str:
    added = found["added_ms"]
    return (
        f"| members {name}: added to a turn at {found['turns_per_s']:.0f} turns a second, ms"
        f" | p50 {added['p50']}{_among(found)}, p90 {added['p90']}, p99 {added['p99']} |"
    )


def machinery(result: Result) -> str:
    """What was measured of the machinery, one line each."""
    lines = [_machine(result), "", "| what | value |", "|---|---|"]
    if "throughput" in result:
        for name, fast, slow in (("together", "full", "half"), ("apart", "apart", "apart_half")):
            full, half = result["throughput"][fast], result["throughput"][slow]
            spent = ", ".join(f"{name} {value:.2f}" for name, value in full["cpu_ms_per_turn"].items())
            lines += [
                f"| members {name}: turns a second, as fast as they go | {full['turns_per_s']:.0f}{_among(full)} |",
                f"| members {name}: processor time a turn, ms | {sum(full['cpu_ms_per_turn'].values()):.2f}: {spent} |",
                _added(name, half),
            ]
        if "aim" in result:
            lines.append(_added("together", result["aim"]))
        full = result["throughput"]["full"]
        written, kept = full["wal_bytes_per_trajectory"], full["rows_bytes_per_trajectory"]
        lines.append(f"| PostgreSQL a trajectory, bytes | {written} written ahead, {kept} kept |")
    if "statements" in result:
        counted = result["statements"]
        lines.append(f"| SQL statements | {counted['per_step']} a step, {counted['per_trajectory']} a trajectory |")
    if "memory" in result:
        for what, found in (("a waiting task", "kib_per_task"), ("a trajectory in flight", "kib_per_trajectory_in_flight")):
            values = ", ".join(f"{name} {value:.1f}" for name, value in result["memory"][found].items())
            lines.append(f"| memory of {what}, KiB | {values} |")
    for case, found in result.get("decisions", {}).items():
        spent = f"{found['p50_ms']} (p90 {found['p90_ms']}), of it in the scheduler's process {found['scheduler_cpu_p50_ms']}"
        lines.append(f"| one admission, {case}, ms | {spent} |")
    for steps, found in result.get("past", {}).items():
        lines.append(f"| one step noted, {int(steps):,} steps behind it, ms | {found['p50_ms']} (p90 {found['p90_ms']}) |")
    return "\n".join(lines)


def slow_tools(result: Result) -> str:
    """What may be in flight fixed, and following the samplers."""
    options = result["options"]
    lines = [
        f"{_machine(result)} Sampling {options['sample']} s and tool {options['environment']} s a turn, {options['places']} places.",
        "",
        "| what may be in flight | turns a second, come to | places busy |",
        "|---|---|---|",
    ]
    for way, what in (("fixed", "1.5 times the places"), ("following", "1.5 to 8 times the places, following the sampler")):
        lines.append(f"| {what} | {result[way]['turns_per_s']} | {result[way]['places_busy']:.0%} |")
    return "\n".join(lines)


def trl(result: Result) -> str:
    """Both workloads, each way."""
    options = result["options"]
    lines = [
        f"{_machine(result)} {options['tasks']} tasks, {options['steps']} steps of {options['groups']} × {options['size']} attempts;"
        f" ours may be {options['staleness']} versions behind"
        + (f", and take {options['our_steps']} steps." if options.get("our_steps") else "."),
        "",
        "| workload | way | all trained, s | processor, s | with starting it, s | reward in training, first → last steps"
        " | reward afterwards, on other rows | memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload in ("single", "tools"):
        for way in ("marlaas", "one-by-one", "parallel"):
            if found := result.get(workload, {}).get(way):
                reward = f"{found['reward']['first']:.3f} → {found['reward']['last']:.3f}"
                spread = f" ({found['all_train_s'][0]} – {found['all_train_s'][-1]})" if len(found["all_train_s"]) > 1 else ""
                times_s = f"{found['train_s']}{spread} | {found.get('cpu_s', '–')} | {found['with_starts_s']}"
                reached = found.get("all_reached", [])
                among = f" ({min(reached):.3f} – {max(reached):.3f})" if len(reached) > 1 else ""
                lines.append(f"| {workload} | {way} | {times_s} | {reward} | {found['reached']:.3f}{among} | {found['peak_mib']} |")
        if times := result.get(workload, {}).get("times_faster_than_the_better"):
            lines.append(f"| {workload} | the better of TRL's ways took so many times as long | {times} | | | | | |")
    return "\n".join(lines)


def shared_steps(result: Result) -> str:
    """Seconds and memory of a step of each ready task, one after another and together."""
    lines = [
        f"{_machine(result)} {result['groups']} × {result['size']} attempts a task and step; medians of {result['repeats']}.",
        "",
        "| ready tasks | one after another | together, loop | together, `grouped_mm` | gain |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [
            f"{row[way]['cpu_s']:.2f} s, {row[way]['memory_mib']} MiB" if way in row else "–" for way in ("alone", "loop", "grouped_mm")
        ]
        lines.append(f"| {row['tasks']} | {' | '.join(cells)} | {row['gain'] or '–'} |")
    return "\n".join(lines)


def outside_torch(result: Result) -> str:
    """The share of a step outside torch, and in which module."""
    columns = {  # modules by their names of today, and of the day when it was measured
        "packing": ["packing.py"],
        "gathering (`batched_steps.py`)": ["batched_steps.py", "shared.py"],
        "the step itself": ["step.py"],
        "metrics": ["step_metrics.py", "metrics.py"],
        "advantages, shaping": ["advantage.py", "reward_shaping.py", "shaping.py", "batch.py"],
    }
    lines = [
        _machine(result),
        "",
        f"| attempts in a step | step | outside torch | standard error | {' | '.join(columns)} |",
        "|---" * (4 + len(columns)) + "|",
    ]
    for row in result["rows"]:
        parts = [f"{sum(row['outside_by_module'].get(name, 0.0) for name in names):.1%}" for names in columns.values()]
        lines.append(
            f"| {row['groups']} × {result['size']} | {row['step_cpu_ms']:.0f} ms | **{row['outside_torch_share']:.1%}** |"
            f" {row['standard_error']:.1%} | {' | '.join(parts)} |"
        )
    return "\n".join(lines)


def _machine(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['cores']} cores ({machine['processor']}), load {machine['load_before']} before it began{_speed(machine)}."


def _speed(machine: Result) -> str:
    """Nothing where it was not measured yet."""
    before_and_after = [f"{ms:.1f}" for ms in machine.get("fixed_work_ms", [])]
    took = f", a fixed sum took {' ms, afterwards '.join(before_and_after)} ms" if before_and_after else ""
    return took + (f", its host gave {machine['stolen_share']:.0%} of the time to others" if "stolen_share" in machine else "")


TABLES: dict[str, Table] = {
    "scaling": scaling,
    "scaling-8-steps": scaling,
    "scaling-1000": scaling,
    "agentic": agentic,
    "machinery": machinery,
    "slow-tools": slow_tools,
    "trl": trl,
    "trl-asynchronous": trl,
    "trl-eight": trl,
    "shared-steps-cpu": shared_steps,
    "shared-steps-tiny": shared_steps,
    "trainer-overhead": outside_torch,
    "recovery": chaos,
}


def pages() -> dict[Path, str]:
    """Each page as its results make it."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(Path(RESULTS).glob("*.json"))}
    return {path: page(path.read_text(), results, TABLES) for path in PAGES}


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
