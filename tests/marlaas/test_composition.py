"""`marlaas demo --compose`: its task, what it needs, and what its end says."""

import json
from io import StringIO
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from rich.console import Console
from transformers import AutoModelForCausalLM

from common.client_api.errors import ClientError
from common.evaluation import Asked, EvaluationReport, Gain
from common.pools import objections, read_pools
from marlaas.demo import BASE, EXAMPLE, RESULT, composition, greedy_replies
from marlaas.reporting.progress import Progress, TrainedStep
from marlaas.task_file import read_task
from tests.support.paths import ROOT

RUN = {"kind": "rl", "base": 0, "held_out": {"0": 0.0, "25": 0.25}}
EARLIER = {
    "commit": "0123abc",
    "runs": {"a": RUN, "b": RUN | {"held_out": {"0": 0.1, "25": 0.5}}, "c": RUN | {"base": 1}, "d": RUN | {"kind": "coin"}},
    "bases": {"0": {"replies": [["R___ abcd", "Rdcba", "dcba"], ["K___ abcd", "Kacbd", "acbd"]]}},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part in ("models", "examples"):
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / RESULT).parent.mkdir(parents=True)
    (tmp_path / RESULT).write_text(json.dumps(EARLIER))
    return tmp_path


def test_task_is_the_example_with_seed_and_steps_and_its_pool_takes_it(root: Path) -> None:
    [spec] = composition(root, 5, 3).specs
    assert (spec.name, spec.seed, spec.steps) == ("compose", 5, 3)
    show = composition(root, 0, None)
    assert show.specs[0].steps > 100
    assert objections(show.specs[0], read_pools(ROOT / EXAMPLE / "pools.toml")) == []


def test_without_the_benchmark_s_result_one_sentence_names_it_and_the_command(root: Path) -> None:
    (root / RESULT).unlink()
    with pytest.raises(ClientError, match=r"no .*learning.json, .* `python -m bench.learning` makes it"):
        composition(root, 0, None)


def report(version: int, reward: float | None, gain: Gain | None = None) -> EvaluationReport:
    asked = Asked(environment="toy", options="a1", weights="b2", seed=0, temperature=0.0)
    return EvaluationReport(version=version, protocol="held-out", reward=reward, gain=gain, asked=asked, by_prompt="")


def test_end_says_the_gain_whose_band_it_is_and_shows_replies_before_and_after(root: Path, tmp_path: Path) -> None:
    show = composition(root, 0, 25)
    gain = Gain(reward=0.835, standard_error=0.02, interval=(0.79, 0.88), prompts=200)
    reports = {0: report(0, 0.04), 25: report(25, 0.875, gain), 50: report(50, None)}
    one = Progress("compose-1", show.specs[0], state="finished", evaluations={"held-out": reports, "single": {0: report(0, 1.0)}})
    one.steps.append(TrainedStep(25, 0.0, 0.5, 0.0, 0.0, 1, None, None, None))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(root / BASE), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "data" / "adapters" / "compose")
    written = StringIO()
    show.conclude(Console(file=written, width=200), [one], tmp_path / "data")
    text = written.getvalue()
    assert "0.04 at version 0, 0.88 at version 25, gain +0.79 to +0.88" in text
    assert "the band is not of this run: 2 seeds of bench/results/learning.json, measured at 0123abc" in text
    assert text.count("Rdcba") == 2, "a fresh adapter changes nothing, and the base model knows every function"
    assert (tmp_path / "data" / "plots" / "held-out.png").stat().st_size > 1000


def test_task_without_an_evaluation_is_named_with_its_reason(root: Path, tmp_path: Path) -> None:
    show, written = composition(root, 0, 1), StringIO()
    show.conclude(Console(file=written, width=200), [Progress("compose-1", show.specs[0], "failed", "out of memory")], tmp_path)
    assert "the task is failed, and nothing was evaluated: out of memory" in written.getvalue()


def test_trained_adapter_changes_the_reply(tmp_path: Path) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(ROOT / BASE),
        LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False),
    )
    for parameter in (one for one in model.parameters() if one.requires_grad):
        parameter.data.mul_(50)
    model.save_pretrained(tmp_path / "adapter")
    spec = read_task(ROOT / EXAMPLE / "compose.toml")
    asked = ["R___ abcd", "K___ abcd", "L___ abcd"]
    assert greedy_replies(ROOT / BASE, None, asked, spec) == ["Rdcba", "Kacbd", "Lbcda"]
    assert greedy_replies(ROOT / BASE, tmp_path / "adapter", asked, spec) != ["Rdcba", "Kacbd", "Lbcda"]
