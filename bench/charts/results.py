"""Plots of benchmark results, as PNG in docs/images."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.harness.measures.timeline import PLACES
from bench.harness.report import IMAGES

DOTS_PER_INCH = 120
Runs = list[dict[str, Any]]
COLOURS = {"asynchronous": "C0", "synchronous": "C1", "sequential": "C2"}
PLACE_COLOURS = dict(zip(PLACES, ("C3", "#f2b8b5", "C0", "#b9d3ea", "C8", "#dddddd"), strict=True))


def draw_scaling(result: dict[str, Any]) -> list[Path]:
    """Utilization, idle time by cause and timelines of `bench.scaling`; returns the files."""
    return _drawn(result["runs"], result["options"]["name"], "busy", "sampler: places taken, %", "trainer: busy, %")


def draw_agentic(result: dict[str, Any]) -> list[Path]:
    """The same plots of `bench.agentic`, where a stage is as busy as its core; returns the files."""
    return _drawn(result["runs"], result["options"]["name"], "core", "sampler: its core busy, %", "trainer: its core busy, %")


def _drawn(runs: Runs, name: str, share: str, sampler: str, trainer: str) -> list[Path]:
    drawn = [_utilization(runs, name, share, sampler, trainer), _idle(runs, name)]
    return [*drawn, _timelines(runs, name)] if any(run["lanes"] for run in runs) else drawn


def _utilization(runs: Runs, name: str, share: str, sampler: str, trainer: str) -> Path:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
    _lines(left, runs, lambda run: 100 * run["sampler"][share], sampler)
    _lines(right, runs, lambda run: 100 * run["trainer"][share], trainer)
    right.axhline(100, color="grey", linewidth=0.8, linestyle="dotted")
    return saved(figure, f"{name}-utilization")


def _idle(runs: Runs, name: str) -> Path:
    max_tasks = max(run["tasks"] for run in runs)
    figure, pair = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axes, stage in zip(pair, ("sampler", "trainer"), strict=True):
        policies = [policy for policy in COLOURS if any(run["policy"] == policy and run["tasks"] == max_tasks for run in runs)]
        left = [0.0] * len(policies)
        for place in ("busy", *PLACES):
            shares = []
            for policy in policies:
                chosen = [run[stage] for run in runs if run["policy"] == policy and run["tasks"] == max_tasks]
                # Means: medians of shares do not add up to 1.
                shares.append(100 * fmean([use["busy"] if place == "busy" else use["idle_by_cause"][place] for use in chosen]))
            label = "busy" if place == "busy" else f"idle; tasks: {place}"
            axes.barh(policies, shares, left=left, color=PLACE_COLOURS.get(place, "black"), label=label)
            left = [one + share for one, share in zip(left, shares, strict=True)]
        axes.set(title=f"{stage}, {max_tasks} tasks", xlabel="% of the run")
    figure.legend(*pair[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return saved(figure, f"{name}-idle", legend=False)


def _timelines(runs: Runs, name: str) -> Path:
    shown = {run["policy"]: run for run in reversed(runs) if run["lanes"]}
    shown = {policy: shown[policy] for policy in COLOURS if policy in shown}
    figure, all_axes = pyplot.subplots(len(shown), 1, figsize=(11, 3 * len(shown)), layout="constrained", squeeze=False)
    for axes, (policy, run) in zip(all_axes[:, 0], shown.items(), strict=True):
        tasks = sorted(run["lanes"])
        for row, task in enumerate(tasks):
            for place in ("environment", "waiting for the sampler", "sampling", "waiting for the trainer", "training"):
                offset, height = (0.5, 0.4) if "train" in place else (0.05, 0.4)
                spans = run["lanes"][task].get(place, [])
                axes.broken_barh(spans, (row + offset, height), facecolors=PLACE_COLOURS[place], label=place if row == 0 else None)
        axes.set(title=f"{policy}: {run['end_to_end_s']:.1f} s", yticks=[row + 0.5 for row in range(len(tasks))], yticklabels=tasks)
    all_axes[-1][0].set_xlabel("seconds")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    return saved(figure, f"{name}-timeline", legend=False)


def _lines(axes: Axes, runs: Runs, value: Callable[[dict[str, Any]], float], title: str) -> None:
    """One line a policy: medians by number of tasks, and the spread of repeated runs."""
    for policy, colour in COLOURS.items():
        counts = sorted({run["tasks"] for run in runs if run["policy"] == policy})
        values = [[value(run) for run in runs if run["policy"] == policy and run["tasks"] == count] for count in counts]
        if not counts:
            continue
        middle = [median(found) for found in values]
        axes.plot(counts, middle, color=colour, marker="o", label=policy)
        axes.fill_between(counts, [min(found) for found in values], [max(found) for found in values], color=colour, alpha=0.2)
    counts = sorted({run["tasks"] for run in runs})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(xlabel="tasks")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25)


def saved(figure: Figure, name: str, *, legend: bool = True) -> Path:
    if legend:
        figure.axes[0].legend()
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.png"
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
    return path
