"""TRL's own GRPO loss and its gradient, for forms and inputs given as JSON: a program for TRL's environment (`bench.trl.installed`).

    {"inputs": {"logprobs_B_T": …, "old_B_T": …, "base_B_T": …, "ratio_B_T": …, "advantages_B": …, "mask_B_T": …}, "forms": [{…}]}

A form is the fields of TRL's configuration that are not as below. Prints a list of {"loss": …, "gradient_B_T": …}, float32.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer

PLAIN = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "beta": 0.0,
    "delta": None,
    "entropy_coef": 0.0,
    "use_vllm": False,
}


def main() -> None:
    given = json.load(sys.stdin)
    inputs = {name: torch.tensor(values) for name, values in given["inputs"].items()}
    print(json.dumps([loss_of(PLAIN | form, inputs) for form in given["forms"]]))


def loss_of(form: dict[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    logprobs_B_T, mask_B_T = inputs["logprobs_B_T"].clone().requires_grad_(), inputs["mask_B_T"]
    attempts, tokens = logprobs_B_T.shape
    trainer = SimpleNamespace(
        **{name: form[name] for name in ("loss_type", "importance_sampling_level", "epsilon_low", "epsilon_high", "beta", "entropy_coef")},
        args=SimpleNamespace(delta=form["delta"], use_bias_correction_kl=False, steps_per_generation=1, gradient_accumulation_steps=1),
        use_vllm=form["use_vllm"],
        vllm_importance_sampling_correction=form["use_vllm"],
        _entropy_bonus_enabled=form["entropy_coef"] > 0,
        max_completion_length=tokens,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        accelerator=SimpleNamespace(num_processes=1, gather=same, gather_for_metrics=same, reduce=same, sync_gradients=False),
        _metrics=defaultdict(lambda: defaultdict(list)),
        # a stand-in for the entropy whose gradient is known: the log-probabilities' square
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_B_T, logprobs_B_T.square(), None),
    )
    batch = {
        "prompt_ids": torch.zeros(attempts, 1).long(),
        "prompt_mask": torch.ones(attempts, 1).long(),
        "completion_ids": torch.zeros(attempts, tokens).long(),
        "completion_mask": mask_B_T,
        "advantages": inputs["advantages_B"],
        "old_per_token_logps": inputs["old_B_T"],
        "ref_per_token_logps": inputs["base_B_T"],
        "importance_sampling_ratio": inputs["ratio_B_T"],
        "num_items_in_batch": mask_B_T.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, batch)
    loss.backward()
    return {"loss": loss.item(), "gradient_B_T": logprobs_B_T.grad.tolist()}


def same(value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return value


if __name__ == "__main__":
    main()
