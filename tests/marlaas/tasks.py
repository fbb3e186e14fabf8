"""A small task as a user submits it, and its events' data."""

from pydantic import JsonValue

STEPS = 3
ASKED: dict[str, JsonValue] = {
    "asked": {"environment": "toy", "options": "", "weights": "", "seed": 0, "temperature": 1.0},
    "by_prompt": "",
}
"""What each evaluation's event has besides its numbers."""
SPEC: dict[str, JsonValue] = {
    "name": "gcd",
    "tenant": "acme",
    "pool": "tiny",
    "steps": STEPS,
    "environment": {"name": "toy"},
    "algorithm": {"group_size": 2, "groups_per_step": 2, "max_staleness": 1},
    "keep": {"adapters": "all"},
}


def step_data(version: int) -> dict[str, JsonValue]:
    return {
        "version": version,
        "reward": version / 10,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "sampled_tokens": 100,
        "groups": 2,
        "metrics": {"loss": 0.25},
        "times": {"first_sampled_s": version * 10.0, "batched_s": version * 10.0 + 5, "trained_s": version * 10.0 + 7},
    }
