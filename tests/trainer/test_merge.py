"""A merged model's logits equal those of the base model with its adapter, in plain transformers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from common.spec import Lora
from tests.support.trainer.groups import make_groups, make_spec
from tests.support.trainer.models import VOCABULARY
from trainer_svc.algorithm.step import train_step
from trainer_svc.learner import initial_resident
from trainer_svc.merge import main
from trainer_svc.model.adapter import initial_adapter, write_adapter
from trainer_svc.model.policy import Policy


def test_merged_model_has_the_logits_of_base_and_adapter(policy: Policy, model_folder: Path, tmp_path: Path) -> None:
    spec = make_spec("a", lora={"rank": 4, "alpha": 64, "rank_stabilized": True}, optimizer={"learning_rate": 0.05})
    resident = train_step(policy, initial_resident(policy, "a", spec), make_groups(1), spec, budget_tokens=1024).resident
    write_adapter(tmp_path / "adapter", resident.layout, resident.optimizer.params, torch.float32)
    argv = [sys.executable, "-m", "trainer_svc.merge", str(model_folder), str(tmp_path / "adapter"), str(tmp_path / "merged")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    ids = torch.arange(24)[None] * 7 % VOCABULARY

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(ids).logits

    base: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    plain = logits(base)
    adapted = logits(PeftModel.from_pretrained(base, str(tmp_path / "adapter")))
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert (merged - plain).abs().max() > 0.05


GREEDY = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "max_length": 99, "eos_token_id": [2, 3]}


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_settings_of_generation_that_contradict_each_other_are_left_out_and_said(
    policy: Policy, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    base = shutil.copytree(model_folder, tmp_path / "base")
    (base / "generation_config.json").unlink()
    before = json.loads((base / file).read_text()) if (base / file).exists() else {}
    (base / file).write_text(json.dumps(before | GREEDY))
    layout, vector = initial_adapter(Lora(), 0, policy.layers)
    write_adapter(tmp_path / "adapter", layout, vector, torch.float32)
    monkeypatch.setattr(sys, "argv", ["merge", str(base), str(tmp_path / "adapter"), str(tmp_path / "merged")])
    main()
    assert "contradicts itself; left out: temperature, top_p\n" in capfd.readouterr().err
    written = GenerationConfig.from_pretrained(tmp_path / "merged")
    assert (written.eos_token_id, written.max_length, written.temperature) == ([2, 3], 99, None)
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")


def test_what_cannot_be_merged_is_said_in_one_line(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["merge", str(model_folder), str(tmp_path / "none"), str(tmp_path / "merged")])
    with pytest.raises(SystemExit, match=r"^merge: adapter .*$"):
        main()
