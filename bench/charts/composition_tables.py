"""Table of docs/composition.md: gains of seeds and controls, and pass@k."""

from collections import defaultdict
from statistics import fmean, stdev
from typing import Any

from bench.charts.tables import Result, machine_line

SPLITS = {"held_out": "held-out pairs", "train": "trained pairs, new words", "single": "single functions", "longer": "three functions"}
KINDS = {"rl": "RL", "coin": "control: coin rewards", "rejection": "control: rejection fine-tuning"}


def learning(result: Result) -> str:
    """Greedy answers of the bases and, as mean and deviation, of the seeds of each arm; gains with intervals; pass@k; missing runs."""
    lines = [
        machine_line(result),
        "",
        f"| greedy, share right (mean ± deviation of seeds) | {' | '.join(SPLITS.values())} |",
        "|---" * (1 + len(SPLITS)) + "|",
    ]
    lines += [f"| base {base} | {_shares(one)} |" for base, one in result["bases"].items()]
    arms: dict[str, list[Result]] = defaultdict(list)
    for run in result["runs"].values():
        arms[f"{KINDS[run['kind']]}, base {run['base']}"].append(run)
    lines += [f"| {arm}, {len(runs)} seeds | {_spreads(runs)} |" for arm, runs in arms.items()]
    lines += ["", f"| gain of greedy answers, mean [95 %] | seeds | {' | '.join(SPLITS.values())} |", "|---" * (2 + len(SPLITS)) + "|"]
    for name, one in result["comparisons"].items():
        kind, _, bases = name.partition(", ")
        gains = " | ".join(_interval(one["gain"][split]) for split in SPLITS)
        lines.append(f"| {KINDS[kind]}, {bases} | {one['seeds']} | {gains} |")
    ks = list(next(iter(result["bases"].values()))["pass_at"])
    lines += ["", f"| pass@k on held-out pairs, k = | {' | '.join(ks)} |", "|---" * (1 + len(ks)) + "|"]
    for base, one in result["bases"].items():
        lines.append(_pass_line(f"base {base}", [one], ks))
        for kind, what in KINDS.items():
            runs = [run for run in result["runs"].values() if (run["kind"], str(run["base"])) == (kind, base)]
            lines += [_pass_line(f"{what}, base {base}, mean of {len(runs)}", runs, ks)] if runs else []
    if result["missing"]:
        lines += ["", f"Not run: {', '.join(result['missing'])}."]
    return "\n".join(lines)


def _shares(one: Result) -> str:
    return " | ".join(f"{one['greedy'][split]:.3f}" for split in SPLITS)


def _spreads(runs: list[Result]) -> str:
    shares = [[run["greedy"][split] for run in runs] for split in SPLITS]
    return " | ".join(f"{fmean(one):.3f} ± {stdev(one) if len(one) > 1 else 0:.3f}" for one in shares)


def _interval(gain: dict[str, float]) -> str:
    return f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"


def _pass_line(what: str, runs: list[dict[str, Any]], ks: list[str]) -> str:
    shares = [fmean(run["pass_at"][k] for run in runs) for k in ks]
    return f"| {what} | {' | '.join(f'{share:.3f}' for share in shares)} |"
