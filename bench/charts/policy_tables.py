"""Tables of the scheduling policies: `bench.scaling` and `bench.agentic`."""

from functools import reduce
from operator import getitem
from statistics import median

from bench.charts.tables import Result, machine_line, with_spread

POLICIES = ("asynchronous", "synchronous", "sequential")


def scaling(result: Result) -> str:
    """Medians by number of tasks and policy, and the gains over the other policies."""
    runs, times, options = result["runs"], result["times"], result["options"]
    lines = [
        f"{machine_line(result)} Injected means: sampling {times['sample_s']} s and environment {times['environment_s']} s a turn,"
        f" {options['turns']} turns, training {times['train_s']} s a step; {options['groups']} × {options['size']} trajectories a step,"
        f" {options['steps']} steps a task, strictly on policy.",
        "",
        "| tasks | policy | runs | all done, s (spread) | limit, s | of the limit | sampler busy | trainer busy | first step, s"
        " | step p50 / p99, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tasks in _shown(runs):
        lines += [_scaling_row(tasks, policy, chosen) for policy, chosen in _by_policy(runs, tasks).items() if chosen]
    max_tasks = max(run["tasks"] for run in runs)
    of_max = _by_policy(runs, max_tasks)
    if all(of_max.values()):
        lines += ["", _gains(max_tasks, of_max)]
    return "\n".join(lines)


def _shown(runs: list[Result]) -> list[int]:
    """Numbers of tasks that have rows; the result has the others."""
    counts = sorted({run["tasks"] for run in runs})
    return [count for count in counts if count in (1, 8, counts[-1])]


def _by_policy(runs: list[Result], tasks: int) -> dict[str, list[Result]]:
    """Runs of that number of tasks, by policy."""
    return {policy: [run for run in runs if run["tasks"] == tasks and run["policy"] == policy] for policy in POLICIES}


def _middle(runs: list[Result], *path: str) -> float:
    """Median over the runs of the value under these keys."""
    return median([reduce(getitem, path, run) for run in runs])


def _scaling_row(tasks: int, policy: str, chosen: list[Result]) -> str:
    return (
        f"| {tasks} | {policy} | {len(chosen)} | {with_spread([run['end_to_end_s'] for run in chosen])} | {chosen[0]['limit_s']:.1f}"
        f" | {_middle(chosen, 'share_of_limit'):.0%} | {_middle(chosen, 'sampler', 'busy'):.1%}"
        f" | {_middle(chosen, 'trainer', 'busy'):.1%} | {_middle(chosen, 'first_step_s', 'p50'):.2f}"
        f" | {_middle(chosen, 'step_s', 'p50'):.2f} / {_middle(chosen, 'step_s', 'p99'):.2f} |"
    )


def _gains(tasks: int, runs: dict[str, list[Result]]) -> str:
    ours = runs["asynchronous"][0]
    found = []
    for other in ("sequential", "synchronous"):
        times = _middle(runs[other], "end_to_end_s") / _middle(runs["asynchronous"], "end_to_end_s")
        use = _middle(runs["asynchronous"], "trainer", "busy") / _middle(runs[other], "trainer", "busy")
        possible = runs[other][0]["limit_s"] / ours["limit_s"]
        found.append(f"against {other}: {times:.1f}× sooner (what the limits leave: {possible:.1f}×), stages {use:.1f}× busier")
    return (
        f"{tasks} tasks asynchronous, {'; '.join(found)}. Closed form for updates one at a time, (R + E + T) / T:"
        f" {ours['limits_s']['closed_form']:.1f}×. Busiest stage: {ours['busiest']}."
    )


def agentic(result: Result) -> str:
    """Medians by number of tasks and policy on the real stack, the gains, and the maximum that one task's stages allow."""
    runs, options, cores, alone = result["runs"], result["options"], result["cores"], result["engine_alone"]
    lines = [
        f"{machine_line(result)} Sampler on core {_list(cores['sampler'])}, trainer on core {_list(cores['trainer'])}."
        f" {options['steps']} steps a task of {options['groups']} × {options['size']} attempts, three turns each."
        f" The engine alone, full of turns of {alone['tokens_per_turn']} tokens with {alone['adapters']} adapters:"
        f" {alone['tokens_per_s']} tokens a second.",
        "",
        "| tasks | policy | runs | all done, s (spread) | sampler's core | trainer's core | trajectories a second | tokens a second"
        " (of the engine alone) | first step, s | step p50 / p99, s |",
        "|---" * 10 + "|",
    ]
    for tasks in _shown(runs):
        lines += [
            _agentic_row(tasks, policy, chosen, alone["tokens_per_s"]) for policy, chosen in _by_policy(runs, tasks).items() if chosen
        ]
    lines += ["", *_agentic_gains(result)]
    lines += [f"\nFailed: {'; '.join(result['failed'])}."] if result["failed"] else []
    return "\n".join(lines)


def curve(result: Result) -> str:
    """Runs of `bench.gpu curve`, a part each: by number of tasks and policy, what the device gave. Utilisation is the driver's."""
    parts = sorted(result["parts"], key=lambda one: (POLICIES.index(one["found"]["policy"]), one["found"]["tasks"]))
    lines = [
        *sorted({f"{one['commit'][:7]}: {machine_line(one)}" for one in parts}),
        "",
        "| tasks | policy | sampled tokens a second | trained tokens a second | utilisation | steps | first step, s | step p50 / p99, s"
        " | done, s | held back by the product |",
        "|---" * 10 + "|",
    ]
    for one in parts:
        found = one["found"]
        busy = (one["driver"] or {}).get("utilisation", {}).get("measured")
        done = found["finish_s"]
        lines.append(
            f"| {found['tasks']} | {found['policy']} | {found['tokens_per_s']:,} | {found['trained_tokens_per_s']:,}"
            f" | {'–' if busy is None else f'{busy:.0%}'} | {found['steps']} | {found['first_step_s']['p50']:.1f}"
            f" | {found['step_s']['p50']:.2f} / {found['step_s']['p99']:.2f} | {done['min']:.1f} – {done['max']:.1f}"
            f"{'' if one['complete'] else ' (cut off)'} | {found['time_in']['held']:.0%} |"
        )
    return "\n".join(lines)


def _agentic_row(tasks: int, policy: str, chosen: list[Result], engine_tokens_per_s: float) -> str:
    tokens_per_s = _middle(chosen, "tokens_per_s")
    return (
        f"| {tasks} | {policy} | {len(chosen)} | {with_spread([run['end_to_end_s'] for run in chosen])}"
        f" | {_middle(chosen, 'sampler', 'core'):.0%} | {_middle(chosen, 'trainer', 'core'):.0%}"
        f" | {_middle(chosen, 'trajectories_per_s'):.1f} | {tokens_per_s:.0f} ({tokens_per_s / engine_tokens_per_s:.0%})"
        f" | {_middle(chosen, 'first_step_s', 'p50'):.2f}"
        f" | {_middle(chosen, 'step_s', 'p50'):.2f} / {_middle(chosen, 'step_s', 'p99'):.2f} |"
    )


def _agentic_gains(result: Result) -> list[str]:
    runs, stages = result["runs"], result["stages"]
    max_tasks = max(run["tasks"] for run in runs)
    of_max = _by_policy(runs, max_tasks)
    ends = {policy: _middle(found, "end_to_end_s") for policy, found in of_max.items() if found}
    found: list[str] = []
    others = [policy for policy in ("sequential", "synchronous") if policy in ends]
    if "asynchronous" in ends and others and max_tasks > 1:
        against = [
            f"{ends[other] / ends['asynchronous']:.1f}× sooner than {other} (cores of sampler and trainer"
            f" {_times_busier(of_max, other, 'sampler')} and {_times_busier(of_max, other, 'trainer')} as busy)"
            for other in others
        ]
        found.append(f"{max_tasks} tasks asynchronous are done {' and '.join(against)}.")
    if stages:
        found.append(
            f"A step of one task takes {stages['step']:.2f} s: sampling R {stages['sampling']:.2f} s and tools E"
            f" {stages['environment']:.2f} s of its slowest attempt, training T {stages['training']:.2f} s,"
            f" {stages['between']:.2f} s between them."
            f" (R + E + T) / T = {stages['closed_form']:.1f} is the maximum gain of updates one at a time."
        )
    if of_max["asynchronous"]:
        cpu_s, cores = _middle(of_max["asynchronous"], "cpu_s_per_step"), result["machine"]["cores"]
        busy = _middle(of_max["asynchronous"], "cores_busy")
        found.append(
            f"With {max_tasks} tasks asynchronous everything together takes {cpu_s:.2f} s of processor time a step and keeps the cores"
            f" {busy:.0%} busy"
            + (f": {cores} cores leave {cores * stages['step'] / cpu_s:.1f}×, {max_tasks} tasks {max_tasks}×." if stages else ".")
        )
    elsewhere = [run["elsewhere"] for run in runs]
    found.append(
        f"Staleness was {max(run['staleness_max'] for run in runs):.0f} throughout. {_agreement(runs)}"
        f" Others took {min(elsewhere):.0%} to {max(elsewhere):.0%} of the cores meanwhile."
    )
    return [" ".join(found)]


def _times_busier(runs: dict[str, list[Result]], other: str, stage: str) -> str:
    ours, theirs = (_middle(runs[policy], stage, "core") for policy in ("asynchronous", other))
    return f"{ours / theirs:.1f}×" if theirs else "far more"


def _agreement(runs: list[Result]) -> str:
    """Rewards before and after, and the difference of a task's rewards between runs."""
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


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))
