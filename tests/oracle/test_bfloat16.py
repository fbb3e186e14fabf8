"""The trainer's step in bfloat16: as near to the reference in float32 as plain transformers and PEFT in bfloat16 are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.oracle.comparison import BUDGET_TOKENS, errors, flat, plain_model, relative, sampled_groups, trained_resident
from tests.oracle.reference import reference_step
from tests.oracle.settings import rows, spec_of
from trainer_svc.algorithm.step import train_step
from trainer_svc.model.adapter import write_adapter
from trainer_svc.model.policy import Policy

BOUND = 0.05
"""Maximum relative error of the gradient; bfloat16 has 8 bits."""
NORM_BOUND = 0.03
WORSE = 1.5
"""Maximum error as a multiple of the plain implementation's."""
LEARNING_RATE = 1e-5
"""Too small for a second update to find tokens at the other side of a bound."""
PAIRS = rows(2)


@pytest.fixture(scope="module")
def rough_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model rounded to bfloat16."""
    folder = tmp_path_factory.mktemp("rough")
    AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rough(rough_folder: Path, device: torch.device) -> Policy:
    found = Policy.load(str(rough_folder), device, "bfloat16")
    assert found.shares_prefixes
    return found


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_step_in_bfloat16_is_as_exact_as_a_plain_one(rough: Policy, rough_folder: Path, tmp_path: Path, number: int) -> None:
    spec = spec_of(PAIRS[number], learning_rate=LEARNING_RATE)
    before = trained_resident(rough, spec)
    before = replace(before, optimizer=replace(before.optimizer, params=before.optimizer.params.bfloat16().float()))
    write_adapter(tmp_path, before.layout, before.optimizer.params, torch.float32)
    exact, plain = (plain_model(rough_folder, tmp_path, dtype) for dtype in (torch.float32, torch.bfloat16))
    groups = sampled_groups(exact, spec, rough.vocabulary, number)
    expected, other = reference_step(exact, groups, spec), reference_step(plain, groups, spec)
    found = errors(before, train_step(rough, before, groups, spec, budget_tokens=BUDGET_TOKENS), expected)
    assert found.gradient <= BOUND
    assert found.grad_norm <= NORM_BOUND
    assert found.gradient <= WORSE * relative(flat(before.layout, other.exp_avg), flat(before.layout, expected.exp_avg))
