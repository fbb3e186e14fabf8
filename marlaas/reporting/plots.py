"""Plots of a run, as PNG: reward, staleness, and when each task was sampled and trained. Wraps matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.spec import MAIN_PROTOCOL
from marlaas.reporting.progress import Progress

SIZE_INCHES = (9.0, 4.5)
DOTS_PER_INCH = 120
WINDOW = 5
"""Number of values in a moving average."""


def draw(tasks: Sequence[Progress], folder: Path) -> list[Path]:
    """Write reward.png, staleness.png and timeline.png to `folder`, and evaluation.png if a task was evaluated; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_reward(tasks, folder / "reward.png"), _staleness(tasks, folder / "staleness.png"), _timeline(tasks, folder / "timeline.png")]
    return [*drawn, *([draw_evaluations(tasks, folder / "evaluation.png")] if any(one.evaluations for one in tasks) else [])]


def draw_evaluations(tasks: Sequence[Progress], path: Path) -> Path:
    """Every protocol's reward by version, with the band of its 95 % interval."""
    figure, axes = _figure()
    for one in tasks:
        for protocol, by_version in one.evaluations.items():
            reports = [by_version[version] for version in sorted(by_version) if by_version[version].reward is not None]
            label = _label(one) + ("" if protocol == MAIN_PROTOCOL else f", {protocol}")
            (line,) = axes.plot([each.version for each in reports], [each.reward or 0.0 for each in reports], label=label, linewidth=2)
            known = [(each.version, *each.interval) for each in reports if each.interval is not None]
            versions, low, high = ([values[place] for values in known] for place in range(3))
            axes.fill_between(versions, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="version", ylabel="mean reward", title="Evaluations on held-out prompts (band: 95 % interval)")
    return _saved(figure, axes, path)


def draw_held_out(curve: Mapping[int, float], others: Sequence[Mapping[int, float]], path: Path) -> Path:
    """A task's reward on held-out prompts by version, over the range of earlier runs' rewards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = _figure()
    versions = sorted(set[int]().union(*others))
    by_version = {version: [one[version] for one in others if version in one] for version in versions}
    low, high = ([edge(by_version[version]) for version in versions] for edge in (min, max))
    axes.fill_between(versions, low, high, alpha=0.2, color="C7", label=f"earlier runs: lowest to highest of {len(others)} seeds")
    axes.plot(list(curve), list(curve.values()), linewidth=2, marker="o", color="C0", label="this run")
    axes.set(xlabel="optimizer step", ylabel="right answers, greedy", title="Held-out programs, never trained on")
    axes.set_ylim(0, 1)
    return _saved(figure, axes, path)


def _reward(tasks: Sequence[Progress], path: Path) -> Path:
    figure, axes = _figure()
    for one in tasks:
        steps = [step for step in one.steps if step.reward is not None]
        rewards = [step.reward or 0.0 for step in steps]
        versions = [step.version for step in steps]
        (line,) = axes.plot(versions, _smoothed(rewards), label=_label(one), linewidth=2)
        axes.plot(versions, rewards, color=line.get_color(), alpha=0.25, linewidth=1)
    axes.set(xlabel="optimizer step", ylabel="mean reward of the step", title="Reward per task (thin: each step; thick: mean of 5)")
    return _saved(figure, axes, path)


def _staleness(tasks: Sequence[Progress], path: Path) -> Path:
    figure, axes = _figure()
    for one in tasks:
        steps = [step for step in one.steps if step.staleness_mean is not None]
        axes.plot([step.version for step in steps], [step.staleness_mean or 0.0 for step in steps], label=_label(one), linewidth=1.5)
    axes.set(xlabel="optimizer step", ylabel="staleness, in versions", title="Mean staleness of each step's trajectories")
    return _saved(figure, axes, path)


def _timeline(tasks: Sequence[Progress], path: Path) -> Path:
    """Plot two lanes per task: from the first sampled trajectory to the batch, and from the batch to the new version."""
    figure, axes = _figure()
    origin_s = min((step.first_sampled_s for one in tasks for step in one.steps if step.first_sampled_s), default=0.0)
    for number, one in enumerate(tasks):
        sampling = [
            (step.first_sampled_s - origin_s, step.batched_s - step.first_sampled_s)
            for step in one.steps
            if step.first_sampled_s and step.batched_s
        ]
        training = [(step.batched_s - origin_s, step.trained_s - step.batched_s) for step in one.steps if step.batched_s and step.trained_s]
        colour = f"C{number}"
        axes.broken_barh(sampling, (number + 0.05, 0.4), facecolors=colour, alpha=0.3)
        axes.broken_barh(training, (number + 0.5, 0.4), facecolors=colour)
    axes.set_yticks([number + 0.5 for number in range(len(tasks))], [_label(one) for one in tasks])
    axes.set(xlabel="seconds", title="Each step of each task: sampled (pale), then trained (solid)")
    return _saved(figure, axes, path)


def _figure() -> tuple[Figure, Axes]:
    figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    axes.grid(alpha=0.25)
    return figure, axes


def _saved(figure: Figure, axes: Axes, path: Path) -> Path:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
    return path


def _label(one: Progress) -> str:
    return f"{one.spec.name} ({one.spec.tenant})"


def _smoothed(values: list[float]) -> list[float]:
    """Moving average over the last WINDOW values."""
    return [sum(values[max(0, end - WINDOW) : end]) / len(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
