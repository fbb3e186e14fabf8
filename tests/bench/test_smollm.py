"""`bench.learning.smollm`: what counts as learned and as equal, and the whole bench with the tiny model in place of SmolLM2-135M."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from bench.charts.smollm_table import smollm
from bench.learning.logprobs import BASE, Replies, differences
from bench.learning.smollm import RECIPE, best_constant, held_out, recipe_task, summary, words_by_count
from common.pools import read_pools
from common.spec import TaskSpec
from env_svc.builtin.exact_words import topics_of
from rollout_svc.engine import Sampled

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models" / "tiny"
IDS = [1, 20, 30, 40, 50]
REPLY = [60, 70, 80]


@pytest.fixture
def spec(tmp_path: Path) -> TaskSpec:
    return recipe_task(read_pools(pools_file(tmp_path)), 0, None)


def pools_file(folder: Path) -> Path:
    """The recipe's pool with the tiny model."""
    path = folder / "pools.toml"
    path.write_text((RECIPE / "pools.toml").read_text().replace('"base"', json.dumps(str(TINY)), 1))
    return path


def run(before: list[float], after: list[float], spec: TaskSpec) -> dict[str, Any]:
    return {"evaluations": {one.name: {"0": before, str(spec.steps): after} for one in spec.evaluation.protocols}}


def test_gain_is_paired_by_prompt_and_every_seed_has_to_gain(spec: TaskSpec) -> None:
    good, bad = run([0.0, 0.25] * 20, [1.0, 0.75] * 20, spec), run([0.5, 0.25] * 20, [0.5, 0.25] * 20, spec)
    learned = summary(spec, {0: good, 1: good, 2: good})
    held_out = learned["protocols"]["held-out"]
    assert (held_out["before"], held_out["after"], held_out["gain"]["mean"], held_out["seeds"]) == (0.125, 0.875, 0.75, [0.75] * 3)
    assert (held_out["exact_before"], held_out["exact_after"]["mean"]) == (0.0, 0.5)
    assert learned["is_learned"]
    one_misses = summary(spec, dict.fromkeys(range(15), good) | {15: bad})
    assert one_misses["protocols"]["held-out"]["gain"]["low"] > 0.2
    assert not one_misses["is_learned"]


def test_gain_that_may_be_small_is_not_learned(spec: TaskSpec) -> None:
    assert not summary(spec, {seed: run([0.0] * 40, [1.0] * 8 + [0.0] * 32, spec) for seed in range(3)})["is_learned"]


def test_run_in_the_result_has_means_in_place_of_prompts(spec: TaskSpec) -> None:
    runs = summary(spec, {4: run([0.0, 0.5], [1.0, 1.0], spec)})["runs"]
    assert runs["4"]["evaluations"]["sampled"] == {"0": 0.25, str(spec.steps): 1.0}


def test_best_constant_reply_of_the_recipe_earns_less_than_half() -> None:
    assert best_constant([2, 4, 6]) == {"words": 2, "reward": 0.4722, "exact": 0.3333}
    assert best_constant([3]) == {"words": 3, "reward": 1.0, "exact": 1.0}


async def test_compared_prompts_are_held_out_ones_of_the_protocol_that_decides(spec: TaskSpec) -> None:
    openings = await held_out(spec)
    assert len({one.messages[0].content for one in openings}) == len(openings) == spec.evaluation.protocols[0].prompts
    topics = {one.messages[0].content.split(" in exactly")[0].removeprefix("Describe ") for one in openings}
    assert topics <= set(topics_of("held_out"))


def test_words_of_replies_are_counted_by_the_number_that_was_asked_for() -> None:
    assert words_by_count([4, 2, 2], ["One two three four.", "One.", "One two."]) == {"2": 1.5, "4": 4.0}


def test_differences_are_those_of_the_adapters_model_and_say_whether_it_has_an_effect(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    plain_T = reply_logprobs(base)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, config).eval()
    adapted_T = reply_logprobs(adapted)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    given = {BASE: replies([*plain_T]), "seed-0": replies([*adapted_T[:2], adapted_T[2] + 0.25])}
    found = differences(TINY, {"seed-0": tmp_path / "adapter"}, given)
    assert found[BASE]["max"] < 1e-5
    assert found[BASE]["moved"] == 0.0
    assert found["seed-0"]["max"] == pytest.approx(0.25, abs=1e-5)
    assert found["seed-0"]["mean"] == pytest.approx(0.25 / 3, abs=1e-5)
    assert found["seed-0"]["moved"] == pytest.approx(float(np.abs(adapted_T - plain_T).mean()), abs=1e-4)
    assert found["seed-0"]["tokens"] == len(REPLY)


def reply_logprobs(model: Any) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logprobs_T_V = model(input_ids=torch.tensor([IDS + REPLY])).logits[0].log_softmax(-1)
    return logprobs_T_V[torch.arange(len(IDS) - 1, len(IDS) + len(REPLY) - 1), torch.tensor(REPLY)].double().numpy()


def replies(logprobs: list[float]) -> Replies:
    return Replies([IDS], [Sampled(REPLY, logprobs, "stop")], ["said"])


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_bench_trains_compares_and_does_not_repeat_what_is_finished(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.learning.smollm", "--seeds", "0,1", "--steps", "1"]
    # The tiny model earns nothing here, so its adapter stays the base model: this is about the program, not about learning.
    command += ["--work", str(tmp_path / "work"), "--pools", str(pools_file(tmp_path))]
    texts = list[str]()
    for _ in range(2):
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "BENCH_RESULTS": str(tmp_path)}, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr[-3000:]
        texts.append(done.stdout)
        found = json.loads((tmp_path / "smollm.json").read_text())
        assert set(found["protocols"]) == {"held-out", "sampled", "other-counts"}
        assert set(found["runs"]) == {"0", "1"}
        assert set(found["logprobs"]) == {"base", "seed-0", "seed-1"}
        assert found["is_equal"]
        assert not found["is_learned"]
        assert "| greedy, topics that were held out |" in smollm(found)
    assert "at version 1" in texts[0]
    assert "at version" not in texts[1]
