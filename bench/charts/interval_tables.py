"""The tables of docs/evaluation.md, from the result of `bench.intervals`."""

from typing import Any

ROWS = (
    ("binary", "all", "mean of 0 and 1: 16 to 512 prompts, 1 to 16 attempts, means of 0.05 to 0.95, correlations of 0 to 0.6"),
    ("binary", "enough", "the same with 64 prompts or more"),
    ("graded", "all", "graded mean: 16 to 256 prompts, 1 and 4 attempts, means of 0.1 to 0.9"),
    ("graded", "enough", "the same with 64 prompts or more"),
    ("paired", "all", "paired difference of 0 and 1: 16 to 256 prompts, 1 to 16 attempts, gains of 0 and 0.05"),
    ("paired", "enough", "the same with 64 prompts or more"),
)
"""Summary, which of its settings, and what they are."""


def intervals(result: dict[str, Any]) -> str:
    """Coverage of each kind of interval, and the prompts that a paired and an unpaired test need."""
    lines = [
        f"{result['runs']:,} evaluations of each setting of means, fewer of the others.",
        "",
        "| 95 % interval of a | settings | mean coverage | minimum | maximum | settings within 93 to 97 % |",
        "|---|---|---|---|---|---|",
    ]
    for kind, which, described in ROWS:
        found = result[kind][which]
        coverage = " | ".join(f"{found[name]:.1%}" for name in ("mean", "min", "max"))
        lines.append(f"| {described} | {found['cells']} | {coverage} | {found['within_93_to_97']:.1%} |")
    lines += [
        "",
        "| share of prompts at which two versions differ | correlation of their results | prompts, paired | prompts, unpaired | ratio |",
        "|---|---|---|---|---|",
    ]
    for each in result["power"]:
        counts = f"{each['paired_prompts']:,} | {each['unpaired_prompts']:,} | {each['ratio']:.2f}"
        lines.append(f"| {each['differing']:.0%} | {each['correlation']:.2f} | {counts} |")
    return "\n".join(lines)
