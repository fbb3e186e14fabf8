"""Plots of `bench.isolation` and `bench.shared_steps`, as PNG in docs/images."""

from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.charts.results import saved


def draw_isolation(result: dict[str, Any]) -> list[Path]:
    """Rewards of every run, and the histograms of staleness and ratio: alone against beside other tasks."""
    figure, axes = _figure()
    kinds = {0: ("C0", "alone"), max(run["others"] for run in result["runs"]): ("C1", "beside others")}
    for others, (colour, label) in kinds.items():
        runs = [run["rewards"] for run in result["runs"] if run["others"] == others]
        for rewards in runs:
            axes.plot(range(1, len(rewards) + 1), rewards, color=colour, alpha=0.3, linewidth=1)
        mean = [sum(step) / len(step) for step in zip(*runs, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2.5, label=f"{label}, mean of {len(runs)} seeds")
    axes.set(xlabel="optimizer step", ylabel="mean reward of the step", title="The same task alone and beside seven others")
    drawn = [saved(figure, "isolation-reward")]
    figure, pair = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for place, (name, label) in enumerate((("staleness", "staleness, in versions"), ("ratio", "start / sampler, at most"))):
        bins = sorted({key for run in result["runs"] for key in run[name]}, key=float)
        for offset, (others, (colour, kind)) in enumerate(kinds.items()):
            runs = [run[name] for run in result["runs"] if run["others"] == others]
            shares = [sum(run.get(key, 0.0) for run in runs) / len(runs) for key in bins]
            if name == "ratio":  # stored as shares up to each edge
                shares, keys = [high - low for low, high in zip((0.0, *shares), (*shares, 1.0), strict=True)], [*bins, "∞"]
            else:
                keys = bins
            pair[place].bar([index + 0.4 * offset for index in range(len(keys))], shares, width=0.4, color=colour, label=kind)
            pair[place].set_xticks([index + 0.2 for index in range(len(keys))], keys)
        pair[place].set(xlabel=label, ylabel="share of trajectories" if name == "staleness" else "share of tokens")
        pair[place].grid(alpha=0.25)
    pair[0].legend()
    return [*drawn, saved(figure, "isolation-histograms", legend=False)]


def draw_shared_steps(result: dict[str, Any], name: str) -> list[Path]:
    """Time of one step of every ready task, and memory, by the number of tasks."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    ways = {"alone": "one after another", "loop": "together, loop", "grouped_mm": "together, grouped_mm"}
    for way, label in ways.items():
        rows = [row for row in result["rows"] if way in row]
        left.plot([row["tasks"] for row in rows], [row[way]["cpu_s"] for row in rows], marker="o", label=label)
        right.plot([row["tasks"] for row in rows], [row[way]["memory_mib"] for row in rows], marker="o", label=label)
    left.set(xlabel="ready tasks", ylabel="processor seconds for a step of each")
    right.set(xlabel="ready tasks", ylabel="MiB", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.25)
    left.legend()
    return [saved(figure, name, legend=False)]


def _figure() -> tuple[Figure, Axes]:
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    axes.grid(alpha=0.25)
    return figure, axes
