"""Writes the tables of some pages of docs/ from bench/results: `python -m bench.pages`.

It replaces the text between each table's marks.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from bench.charts import composition_tables, plex_tables, policy_tables, serving_tables, tables
from bench.charts.plex_faults_table import faults
from bench.charts.recovery_table import chaos
from bench.charts.tables import Result
from bench.harness.report import RESULTS, ROOT

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "composition", "durability", "learning"))
Table = Callable[[Result], str]
TABLES: dict[str, Table] = {
    "scaling": policy_tables.scaling,
    "agentic": policy_tables.agentic,
    "machinery": tables.machinery,
    "fairness": tables.fairness,
    "trl": tables.trl,
    "trl-asynchronous": tables.trl,
    "trl-eight": tables.trl,
    "shared-steps-cpu": tables.shared_steps,
    "shared-steps-tiny": tables.shared_steps,
    "shared-steps-gpu": tables.shared_steps,
    "memory-gpu": tables.memory,
    "gpu-curve": policy_tables.curve,
    "learning": composition_tables.learning,
    "recovery": chaos,
    "plex-cells": plex_tables.cells,
    "plex-tiers": plex_tables.tiers,
    "plex-faults": faults,
    "plex-real-two": plex_tables.real,
    **{f"serving-{name}": getattr(serving_tables, name) for name in serving_tables.__all__},
    "coserving-arms": serving_tables.arms,
}


def pages() -> dict[Path, str]:
    """Each page with the tables of its results."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(Path(RESULTS).glob("*.json"))}
    return {path: page(path.read_text(), joined(results), TABLES) for path in PAGES}


def joined(results: dict[str, Result]) -> dict[str, Result]:
    """With the parts of `bench.gpu curve` that ran on a GPU as one result, which is of the last part's commit."""
    curve = [one for name, one in results.items() if name.startswith("gpu-curve-") and not one["small"] and "tokens_per_s" in one["found"]]
    return results | ({"gpu-curve": curve[-1] | {"parts": curve}} if curve else {})


def page(text: str, results: dict[str, Result], tables: dict[str, Table]) -> str:
    """`text` with every marked table rewritten from its result."""
    for name, table in tables.items():
        if name in results:
            marks = re.compile(rf"(<!-- {name}: made by bench\.pages -->\n).*?(<!-- end -->)", re.DOTALL)
            text = marks.sub(
                lambda found, name=name, table=table: found[1] + _source(results[name]) + table(results[name]) + "\n" + found[2], text
            )
    return text


def _source(result: Result) -> str:
    return f"Measured at {str(result['commit'])[:7]}, {result['date']}. " if result.get("commit") else ""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
