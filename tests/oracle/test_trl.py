"""The loss against TRL's own, same inputs, for each form that TRL has. TRL runs in an environment of its own, installed at first use."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.trl import installed
from common.spec import Algorithm, Correction
from trainer_svc.algorithm.loss import Tokens, policy_loss, token_weights

LENGTHS = (9, 3, 7, 1, 5, 9)
TOKENS = max(LENGTHS)
MASK_B_T = np.arange(TOKENS) < np.array(LENGTHS)[:, None]
TRUNCATE = 1.2
SPREADS = {"start": 0.4, "sampler": 0.5, "base": 0.3}
"""Standard deviations of these policies' log-probabilities from the current one's."""
BOUND = 1e-6
Form = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
FORMS: dict[str, Form] = {
    "dapo": ({}, {}, {}),
    "bnpo": ({"loss_type": "bnpo"}, {}, {}),
    "grpo": ({"loss_type": "grpo"}, {"normalize": "sequence"}, {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"normalize": "constant"}, {}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
        {"loss": "gspo", "normalize": "sequence", "clip_low": 0.03, "clip_high": 0.04},
        {},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.28}, {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.28}, {}),
    "two-sided clip": ({"delta": 1.4}, {"dual_clip": 1.4}, {}),
    "k3 to the base model": ({"loss_type": "grpo", "beta": 0.1}, {"normalize": "sequence", "kl_coefficient": 0.1}, {}),
    "entropy bonus": ({"entropy_coef": 0.02}, {"entropy_coefficient": 0.02}, {}),
    "truncated correction": ({"use_vllm": True}, {}, {"proximal": "start", "truncate": TRUNCATE}),
    "truncated correction and k3": ({"use_vllm": True, "beta": 0.1}, {"kl_coefficient": 0.1}, {"proximal": "start", "truncate": TRUNCATE}),
}
"""Name → fields of TRL's configuration, of `algorithm`, of `correction`."""

pytestmark = pytest.mark.acceptance


def made_inputs() -> dict[str, np.ndarray]:
    """Log-probabilities of the current policy, the step's start, the sampler and the base model; advantages. Ratios pass every bound."""
    rng = np.random.default_rng(0)
    logprobs_B_T = -3 * rng.random(MASK_B_T.shape)
    near = {name: logprobs_B_T + rng.normal(0, spread, MASK_B_T.shape) for name, spread in SPREADS.items()}
    found = {"logprobs": logprobs_B_T, **near, "advantages": rng.normal(0, 1, len(LENGTHS))}
    return {name: values.astype(np.float32) for name, values in found.items()}


INPUTS = made_inputs()


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, Any]]:
    """TRL's results, by form. Its old policy is the step's start where it corrects from the sampler, else the sampler itself."""
    found: dict[str, dict[str, Any]] = {}
    for corrected in (False, True):
        forms = {name: form for name, (form, _, _) in FORMS.items() if form.get("use_vllm", False) is corrected}
        inputs = {
            "logprobs_B_T": INPUTS["logprobs"],
            "old_B_T": INPUTS["start" if corrected else "sampler"],
            "base_B_T": INPUTS["base"],
            "ratio_B_T": np.exp(INPUTS["start"] - INPUTS["sampler"]).clip(max=TRUNCATE),
            "advantages_B": INPUTS["advantages"],
            "mask_B_T": MASK_B_T.astype(np.int64),
        }
        given = {"inputs": {name: values.tolist() for name, values in inputs.items()}, "forms": list(forms.values())}
        command = [str(installed()), "-P", str(Path(__file__).with_name("trl_loss.py"))]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found |= dict(zip(forms, json.loads(done.stdout.splitlines()[-1]), strict=True))
    return found


def ours(algorithm: Algorithm, correction: Correction) -> tuple[float, torch.Tensor]:
    """Loss and its gradient by the log-probabilities. Shapes: scalar, (B, T)."""
    tensors = {name: torch.from_numpy(values) for name, values in INPUTS.items()}
    mask_B_T, counts_B = torch.from_numpy(MASK_B_T), torch.tensor(LENGTHS)
    logprobs_B_T = tensors["logprobs"].clone().requires_grad_()
    tokens = Tokens(
        logprobs_N=logprobs_B_T[mask_B_T],
        sampler_logprobs_N=tensors["sampler"][mask_B_T],
        advantages_N=tensors["advantages"].repeat_interleave(counts_B),
        weights_N=torch.tensor(token_weights(LENGTHS, algorithm.normalize, TOKENS)).repeat_interleave(counts_B),
        sequence_N=torch.arange(len(LENGTHS)).repeat_interleave(counts_B),
        entropy_N=logprobs_B_T.square()[mask_B_T],  # as in trl_loss.py
        start_logprobs_N=tensors["start"][mask_B_T],
        base_logprobs_N=tensors["base"][mask_B_T] if algorithm.kl_coefficient else None,
    )
    loss = policy_loss(tokens, algorithm, correction).loss
    torch.autograd.backward(loss)
    assert logprobs_B_T.grad is not None
    return loss.item(), logprobs_B_T.grad


@pytest.mark.parametrize("name", FORMS)
def test_loss_is_trls(theirs: dict[str, dict[str, Any]], name: str) -> None:
    _, algorithm, correction = FORMS[name]
    loss, gradient_B_T = ours(Algorithm.model_validate(algorithm), Correction.model_validate(correction))
    expected_B_T = torch.tensor(theirs[name]["gradient_B_T"])
    assert expected_B_T.count_nonzero() > 0
    assert loss == pytest.approx(theirs[name]["loss"], rel=BOUND, abs=BOUND)
    assert (gradient_B_T - expected_B_T).norm() <= BOUND * expected_B_T.norm()
