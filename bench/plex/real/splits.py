"""The best static split of an accelerator: `python -m bench.plex.real.splits two`.

Every combination of the pools' windows is simulated, with moves and times as in `predict`; the best ones are printed as arms for
`python -m bench.plex.real two --arms …`, which measures them.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from bench.harness import report
from bench.harness.services import run_or_exit
from bench.plex.real import arms
from bench.plex.real.arms import Arm
from bench.plex.real.kept import FOLDER, Kept
from bench.plex.real.predict import Known, simulated
from bench.plex.real.workloads import PAIR, THIRD, TWO, Workload

WINDOWS_S = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Lengths of a pool's window."""
SEEDS = range(10)
WORKLOADS = {one.name: one for one in (TWO, PAIR, THIRD)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WORKLOADS))
    parser.add_argument("--best", type=int, default=5, help="how many are printed")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of base models and finished runs")
    parser.add_argument("--commit", default=report.commit(), help="whose runs are read")
    options = parser.parse_args()
    workload, known = WORKLOADS[options.name], Known.of(Kept(options.folder, options.commit))
    for arm, seconds in ranked(workload, known, WINDOWS_S)[: options.best]:
        print(f"{arm.name}: {seconds:.3f} accelerator-seconds a step, simulated")


def ranked(workload: Workload, known: Known, lengths_s: Sequence[float], seeds: Sequence[int] = SEEDS) -> list[tuple[Arm, float]]:
    """Static splits with their simulated accelerator-seconds a step, the best first."""
    pools = [load.base for load in workload.pools]
    splits = [arms.split(dict(zip(pools, each, strict=True))) for each in product(lengths_s, repeat=len(pools))]
    found = [(one, simulated(one, workload, known, seeds)["accelerator_s_per_step"]) for one in splits]
    return sorted(found, key=lambda pair: pair[1])


if __name__ == "__main__":
    run_or_exit("bench.plex.real.splits", main)
