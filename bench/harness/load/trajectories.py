"""Groups of made-up trajectories: random tokens after a prompt that the group shares; with several turns, answers between the replies."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trainer_svc.batch import Group


@dataclass(frozen=True)
class Lengths:
    """Lengths of made-up trajectories in tokens, named like the options."""

    prompt: int
    new: int
    least: int | None = None
    turns: int = 1
    answer: int = 30


def make_groups(vocabulary: int, seed: int, groups: int, size: int, lengths: Lengths) -> "list[Group]":
    from trainer_svc.batch import Group, Trajectory

    rng = np.random.default_rng(seed)
    least = lengths.new // 3 if lengths.least is None else lengths.least
    made = []
    for group in range(groups):
        asked = rng.integers(0, vocabulary, int(rng.integers(lengths.prompt * 0.85, lengths.prompt * 1.15 + 1)))
        members = []
        for member in range(size):
            parts = [int(rng.integers(least, lengths.new + 1))]
            for _ in range(lengths.turns - 1):
                parts += [int(rng.integers(lengths.answer * 0.85, lengths.answer * 1.15 + 1)), int(rng.integers(least, lengths.new + 1))]
            ids = np.concatenate([asked, rng.integers(0, vocabulary, sum(parts))]).astype(np.int32)
            sampled = np.repeat(np.arange(len(parts) + 1) % 2, [len(asked), *parts]).astype(np.uint8)
            logprobs = np.where(sampled == 1, -np.log(vocabulary), 0).astype(np.float32)
            members.append(Trajectory(member, ids, sampled, logprobs, float(member % 2), truncated=False))
        made.append(Group(group, 1, tuple(members)))  # made-up log-probabilities are stale
    return made
