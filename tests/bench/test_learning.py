"""`bench.learning`: intervals over seeds and prompts, its runs, and the cut that shows learning against its control."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.learning import rejection
from bench.learning.__main__ import all_arms, comparisons
from bench.learning.arms import Arm, Workplace, spec_of
from bench.learning.evaluation import SPLITS, Answers
from bench.learning.intervals import over_seeds_and_prompts, pass_at
from env_svc.builtin.compose import run
from tests.support.paths import ROOT


def test_interval_of_equal_values_is_their_mean() -> None:
    found = over_seeds_and_prompts(np.full((3, 10), 0.5))
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_interval_covers_the_mean_of_seeds_and_prompts_about_as_often_as_it_says() -> None:
    """Seeds and prompts both vary: an interval over prompts alone would cover far less."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(40):
        means_S_P = 0.5 + 0.1 * rng.standard_normal((8, 1)) + 0.1 * rng.standard_normal((1, 60))
        found = over_seeds_and_prompts((rng.random((8, 60)) < means_S_P).astype(float))
        covered += found.low <= 0.5 <= found.high
    assert covered >= 33


def test_more_seeds_that_agree_narrow_the_interval_and_seeds_that_differ_widen_it() -> None:
    prompts_P = np.tile([0.0, 1.0], 50)

    def width(values_S_P: np.ndarray[Any, Any]) -> float:
        found = over_seeds_and_prompts(values_S_P)
        return found.high - found.low

    agreeing, differing = np.tile(prompts_P, (4, 1)), np.repeat([[0.0], [1.0], [0.0], [1.0]], 100, axis=1)
    assert width(differing) > 2 * width(agreeing)


def test_pass_at_counts_prompts_that_one_of_k_attempts_solves() -> None:
    assert pass_at([0, 2, 4], 4) == {"1": 0.5, "2": round((0 + (1 - 1 / 6) + 1) / 3, 4), "4": 0.6667}


def test_runs_are_seeds_on_each_base_and_controls_on_the_first() -> None:
    arms = all_arms([0, 1], [0, 1], [0], with_rejection=True)
    assert [arm.name for arm in arms if arm.kind == "rl"] == [f"rl-base-{base}-seed-{seed}" for base in (0, 1) for seed in (0, 1)]
    assert [(arm.kind, arm.base, arm.seed) for arm in arms if arm.kind != "rl"] == [("coin", 0, 0), ("rejection", 0, 0)]


def test_control_is_the_same_task_but_for_its_reward_and_is_evaluated_by_the_result() -> None:
    rl, coin = spec_of(Arm("rl", 0, 3), 7), spec_of(Arm("coin", 0, 3), 7)
    assert rl.tenant != coin.tenant
    assert (rl.steps, rl.seed, coin.steps, coin.seed) == (7, 3, 7, 3)
    same = {"algorithm", "lora", "optimizer", "sampling", "limits", "pool"}
    assert rl.model_dump(include=same) == coin.model_dump(include=same)
    assert coin.environment.options == rl.environment.options | {"reward": "coin"}
    assert {one.name for one in coin.evaluation.protocols} == {"held-out", "single", "longer"}
    for one, same in zip(coin.evaluation.protocols, rl.evaluation.protocols, strict=True):
        assert one == same.model_copy(update={"options": same.options | {"reward": "outcome"}})


def answers(held_out: list[int]) -> Answers:
    return Answers(dict.fromkeys(SPLITS, [0] * 4) | {"held_out": held_out}, [0] * 4, 4, [])


def test_gain_is_paired_with_the_answers_of_the_same_base_model() -> None:
    before = {0: answers([0, 0, 0, 0]), 1: answers([1, 1, 1, 0])}
    after = {Arm("rl", 0, 0): answers([1, 1, 0, 0]), Arm("rl", 1, 0): answers([1, 1, 1, 1]), Arm("coin", 0, 0): answers([0, 0, 0, 0])}
    found = comparisons(before, after)
    assert found["rl, base 0"]["gain"]["held_out"]["mean"] == 0.5
    assert found["rl, base 1"]["gain"]["held_out"]["mean"] == 0.25
    assert found["rl, all bases"]["gain"]["held_out"]["mean"] == 0.375
    assert found["rl, all bases"]["smallest_held_out_gain"] == 0.25
    assert found["coin, base 0"]["gain"]["held_out"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_run_that_is_finished_is_known_by_its_record(tmp_path: Path) -> None:
    place, arm = Workplace(tmp_path), Arm("rl", 1, 2)
    place.adapter(arm).mkdir(parents=True)
    assert not place.is_done(arm)
    place.finish(arm, {"rewards": [0.5]})
    assert place.is_done(arm)
    assert place.read(arm)["rewards"] == [0.5]
    assert place.base(0) == ROOT / "models" / "compose"
    assert place.base(1) == tmp_path / "base-1"
    assert not Workplace(tmp_path, steps=7).is_done(arm)


def test_rejection_keeps_right_replies_by_prompt_and_its_loss_is_that_of_the_replies_alone() -> None:
    base = ROOT / "models" / "compose"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base).eval(), AutoTokenizer.from_pretrained(base, padding_side="left")
    spec = spec_of(Arm("rejection", 0, 0), 1)
    environment = spec.environment.model_copy(update={"options": {"single_share": 0.5}})
    spec = spec.model_copy(update={"environment": environment, "algorithm": spec.algorithm.model_copy(update={"group_size": 8})})
    torch.manual_seed(0)
    kept, tokens = rejection.sampled(model, tokenizer, spec)
    assert 1 < len(kept) <= 16
    assert tokens > sum(len(one.ids) - one.start for right in kept for one in right)
    for right in kept:
        assert len({tuple(one.ids[: one.start]) for one in right}) == 1
        for one in right:
            program, word = tokenizer.decode(one.ids[1 : one.start - 2]).split()
            assert tokenizer.decode(one.ids).endswith(run(program.rstrip("_"), word) + "<|end|>")
    batch = [right[0] for right in kept]
    logprobs = [
        model(torch.tensor([one.ids])).logits[0].log_softmax(-1)[torch.arange(one.start - 1, len(one.ids) - 1), one.ids[one.start :]]
        for one in batch
    ]
    expected = -torch.cat(logprobs).mean()
    assert rejection.reply_loss(model, batch, tokenizer.pad_token_id).item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_cut_learns_held_out_programs_and_its_control_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.learning", "--cut", "--work", str(tmp_path / "work")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "BENCH_RESULTS": str(tmp_path)}, capture_output=True, text=True, timeout=850
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "learning-cut.json").read_text())
    assert found["missing"] == []
    gain, control = (found["comparisons"][f"{kind}, base 0"]["gain"] for kind in ("rl", "coin"))
    assert gain["held_out"]["low"] > max(0.05, control["held_out"]["high"])
    assert gain["single"]["mean"] > -0.05
