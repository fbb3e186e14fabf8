"""The fields of `algorithm`, `correction` and `overlong` that decide a step, with values between which the step differs."""

from functools import cache
from typing import Any

from common.spec import TaskSpec, parse_spec
from tests.oracle.covering import Row, covering_array

FACTORS: dict[str, tuple[Any, ...]] = {
    "algorithm.group_size": (3, 1),
    "algorithm.groups_per_step": (6, 5),
    "algorithm.max_staleness": (0, 2),
    "algorithm.advantage": ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "maxrl"),
    "algorithm.loss": ("ppo", "gspo", "cispo", "reinforce"),
    "algorithm.clip_low": (0.2, 0.05),
    "algorithm.clip_high": (0.28, 0.1),
    "algorithm.dual_clip": (None, 1.3),
    "algorithm.normalize": ("token", "sequence", "constant"),
    "algorithm.kl_coefficient": (0.0, 0.2),
    "algorithm.kl_estimator": ("k1", "k2", "k3"),
    "algorithm.entropy_coefficient": (0.0, 0.02),
    "algorithm.passes": (1, 2),
    "algorithm.minibatches": (1, 2),
    "correction.proximal": ("sampler", "start"),
    "correction.truncate": (2.0, 1.2),
    "correction.mask_low": (0.0, 0.6),
    "correction.mask_high": (None, 1.7),
    "overlong.rule": ("keep", "mask", "penalize"),
    "overlong.buffer_tokens": (7, 5),
    "overlong.per": ("trajectory", "turn"),
    "overlong.penalty": (1.0, 0.3),
}
NO_PART_IN_A_STEP = {
    "algorithm.max_refills": "the scheduler's, before a step",
    "correction.max_sampler_mismatch": "an alarm: the step is discarded or taken as it is",
}
MAX_TOKENS, TURNS, TEMPERATURE = 7, 3, 0.8


def is_allowed(row: Row) -> bool:
    """Whether a task may combine these values; False only where no other field could mend it."""
    alone = row.get("algorithm.group_size") == 1 and row.get("algorithm.advantage", "reinforce_pp") != "reinforce_pp"
    unbounded = (
        row.get("algorithm.loss") == "reinforce"
        and row.get("algorithm.max_staleness", 0) > 0
        and row.get("correction.proximal", "start") == "sampler"
        and row.get("correction.mask_high", 1.0) is None
    )
    return not alone and not unbounded


@cache
def rows(strength: int) -> list[Row]:
    """Settings in which every combination of `strength` fields occurs."""
    return covering_array(FACTORS, strength, is_allowed)


def spec_of(row: Row, *, learning_rate: float = 1e-3) -> TaskSpec:
    """Task with these fields. Its gradient is not clipped."""
    sections: dict[str, Any] = {"algorithm": {}, "correction": {"max_sampler_mismatch": 1e9}, "overlong": {}}
    for path, value in row.items():
        section, name = path.split(".")
        sections[section][name] = value
    return parse_spec(
        {
            "name": "oracle",
            "tenant": "acme",
            "pool": "tiny",
            "steps": 3,
            "environment": {"name": "synthetic"},
            "sampling": {"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE},
            "limits": {"max_turns": TURNS},
            "lora": {"rank": 4, "alpha": 8},
            "optimizer": {"learning_rate": learning_rate, "clip_norm": 1e6, "eps": 1e-4, "weight_decay": 0.1},
            **sections,
        }
    )
