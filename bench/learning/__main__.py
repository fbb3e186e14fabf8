"""Learning on the composition task, over seeds of RL and of the base model, against controls.

    python -m bench.learning [--seeds 0,1,2,3,4] [--bases 0,1] [--controls 0]    writes bench/results/learning.json
    python -m bench.learning --cut        one seed and its control, within 8 minutes; writes bench/results/learning-cut.json

Every seed is a task of a tenant of its own, and all of one base model train on one stack at once, the coin controls among them. Rejection
fine-tuning follows without the stack. Then each adapter answers the same questions in transformers and PEFT. What is finished stays in
`--work`, so a run that was stopped continues; the commits of all runs are in the result.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import report
from bench.harness.report import ROOT
from bench.learning import rejection
from bench.learning.arms import WORK, Arm, Workplace, spec_of, train_on_stack
from bench.learning.evaluation import SPLITS, Answers, Sizes, evaluate
from bench.learning.intervals import over_seeds_and_prompts, pass_at

NAME = "learning"
MEASURES = (*report.CODE, "bench/learning", "examples/compose", "models/compose")
CUT_STEPS = 60
CUT_SIZES = Sizes(prompts=100, attempts=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3, 4], help="of RL, on each base model")
    parser.add_argument("--bases", type=numbers, default=[0, 1], help="seeds of the base model; 0 is the committed one")
    parser.add_argument("--controls", type=numbers, default=[0, 1, 2, 3, 4], help="seeds of each control, on the first base model")
    parser.add_argument("--steps", type=int, help="in place of the example's")
    parser.add_argument("--threads", type=int, default=2, help="of everything but the stack")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of base models, runs and adapters")
    parser.add_argument("--cut", action="store_true", help=f"one base, one seed, its coin control, {CUT_STEPS} steps, fewer questions")
    parser.add_argument("--summary", action="store_true", help="of what is finished, without training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = Sizes()
    if options.cut:
        options.bases, options.seeds, options.controls, sizes = [0], [0], [0], CUT_SIZES
        options.steps = options.steps or CUT_STEPS
    place = Workplace(options.work, options.steps)
    place.folder.mkdir(parents=True, exist_ok=True)
    machine = report.machine()
    arms = all_arms(options.bases, options.seeds, options.controls, with_rejection=not options.cut)
    if not options.summary:
        for base in options.bases:
            run_base(place, base, [arm for arm in arms if arm.base == base and not place.is_done(arm)])
    finished = [arm for arm in arms if place.is_done(arm)]
    result = summary(place, finished, options.bases, sizes) | {"missing": [arm.name for arm in arms if arm not in finished]}
    print(json.dumps(result["comparisons"], indent=1))
    name = f"{NAME}-cut" if options.cut else NAME
    print(f"written: {report.write(name, {'machine': machine} | result, MEASURES)}")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def all_arms(bases: Sequence[int], seeds: Sequence[int], controls: Sequence[int], *, with_rejection: bool) -> list[Arm]:
    rl = [Arm("rl", base, seed) for base in bases for seed in seeds]
    coin = [Arm("coin", bases[0], seed) for seed in controls]
    return rl + coin + ([Arm("rejection", bases[0], seed) for seed in controls] if with_rejection else [])


def run_base(place: Workplace, base: int, arms: list[Arm]) -> None:
    """Train what is missing of one base model, which is made first where it is missing too."""
    if arms and not (place.base(base) / "tokenizer.json").exists():  # the last file that is written
        command = [sys.executable, "models/compose/make.py", "--out", str(place.base(base)), "--seed", str(base)]
        subprocess.run(command, check=True, cwd=ROOT)
    on_stack = [arm for arm in arms if arm.kind != "rejection"]
    if on_stack:
        train_on_stack(place, base, on_stack)
    for arm in arms:
        if arm.kind == "rejection":
            place.run(arm).mkdir(exist_ok=True)
            place.finish(arm, rejection.train(place.base(base), spec_of(arm, place.steps), place.adapter(arm)))
            print(f"{arm.name} finished", flush=True)


def summary(place: Workplace, arms: Sequence[Arm], bases: Sequence[int], sizes: Sizes) -> dict[str, Any]:
    """Numbers of every base model and run, and comparisons over seeds."""
    before = {base: answers(place.folder / f"base-{base}-answers.json", place.base(base), None, sizes) for base in bases}
    after = {arm: answers(place.run(arm) / "answers.json", place.base(arm.base), place.adapter(arm), sizes) for arm in arms}
    return {
        "task": spec_of(Arm("rl", 0, 0), place.steps).model_dump(mode="json", exclude={"name", "tenant", "seed"}),
        "prompts": sizes.prompts,
        "bases": {str(base): numbers_of(one) for base, one in before.items()},
        "runs": {arm.name: without_series(place.read(arm)) | numbers_of(one) for arm, one in after.items()},
        "comparisons": comparisons(before, after),
    }


def without_series(run: dict[str, Any]) -> dict[str, Any]:
    """What the result has of a run: not the values of every step."""
    return {name: value for name, value in run.items() if name not in ("rewards", "entropy", "losses")}


def answers(path: Path, base: Path, adapter: Path | None, sizes: Sizes) -> Answers:
    """Answers stored at `path`, or asked for now and stored there."""
    if path.exists():
        stored = Answers(**json.loads(path.read_text()))
        if stored.attempts == sizes.attempts and len(stored.sampled) == sizes.prompts:
            return stored
    found = evaluate(base, adapter, sizes)
    path.write_text(json.dumps(asdict(found)))
    return found


def numbers_of(one: Answers) -> dict[str, Any]:
    greedy = {split: round(float(np.mean(right)), 4) for split, right in one.greedy.items()}
    return {"greedy": greedy, "pass_at": pass_at(one.sampled, one.attempts), "replies": one.replies}


def comparisons(before: dict[int, Answers], after: dict[Arm, Answers]) -> dict[str, Any]:
    """Gain of greedy answers over the base model's, for each kind of run and base model and for all base models: mean and interval."""
    found: dict[str, Any] = {}
    for kind in ("rl", "coin", "rejection"):
        for name, arms in by_base([arm for arm in after if arm.kind == kind]).items():
            gains = {split: gains_S_P(split, arms, before, after) for split in SPLITS}
            found[f"{kind}, {name}"] = {
                "seeds": len(arms),
                "gain": {split: over_seeds_and_prompts(values).to_json() for split, values in gains.items()},
                "smallest_held_out_gain": round(float(gains["held_out"].mean(1).min()), 4),
                "greedy_held_out": round(float(np.mean([after[arm].greedy["held_out"] for arm in arms])), 4),
            }
    return found


def by_base(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
    """Runs by base model, and all of them where there are several base models."""
    bases = sorted({arm.base for arm in arms})
    named = {f"base {base}": [arm for arm in arms if arm.base == base] for base in bases}
    return named | ({"all bases": list(arms)} if len(bases) > 1 else {})


def gains_S_P(split: str, arms: Sequence[Arm], before: dict[int, Answers], after: dict[Arm, Answers]) -> np.ndarray[Any, Any]:
    """Greedy answers after minus before, a row for each run. Shape: (S, P)."""
    return np.array([np.subtract(after[arm].greedy[split], before[arm.base].greedy[split]) for arm in arms], dtype=np.float64)


if __name__ == "__main__":
    main()
