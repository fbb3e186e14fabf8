"""Groups and trajectories of random tokens, as the trainer reads them and as messages."""

from collections.abc import Sequence

import numpy as np

from common.messages import GroupContext, ScoredTrajectory, TokenRecord
from common.spec import EnvironmentSection, TaskSpec, parse_spec
from tests.support.groups import group_context
from tests.support.trainer.models import VOCABULARY
from trainer_svc.batch import Group, Trajectory
from trainer_svc.model.packing import Packed, Sample, pack, rows_of

ENVIRONMENT = EnvironmentSection(name="reasoning_gym:basic_arithmetic")


def make_spec(name: str = "a", **sections: object) -> TaskSpec:
    return parse_spec(
        {"name": name, "tenant": "acme", "pool": "tiny", "steps": 8, "environment": {"name": ENVIRONMENT.name}, **sections}  # pyright: ignore[reportArgumentType]
    )


def make_trajectory(member: int, prompt: list[int], rng: np.random.Generator, *, turns: int = 1, reward: float | None = None) -> Trajectory:
    """Random tokens; with more turns, context tokens follow each reply but the last."""
    ids, sampled = list(prompt), [0] * len(prompt)
    for turn in range(turns):
        reply = rng.integers(0, VOCABULARY, int(rng.integers(2, 9))).tolist()
        ids, sampled = ids + reply, sampled + [1] * len(reply)
        if turn < turns - 1:
            ids, sampled = [*ids, 7, 8, 9], [*sampled, 0, 0, 0]
    sampled_T = np.array(sampled, np.uint8)
    return Trajectory(
        member,
        np.array(ids, np.int32),
        sampled_T,
        np.where(sampled_T == 1, rng.normal(-6.2, 0.2, len(ids)), 0).astype(np.float32),
        float(rng.integers(0, 2)) if reward is None else reward,
        truncated=bool(member % 2),
    )


def make_groups(seed: int, *, groups: int = 3, size: int = 4, turns: int = 1, staleness: int = 0) -> list[Group]:
    rng = np.random.default_rng(seed)
    found = []
    for group in range(groups):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(5, 12))).tolist()
        rewards = [float(member == group % size) for member in range(size)]  # never all equal
        members = tuple(make_trajectory(member, prompt, rng, turns=turns, reward=rewards[member]) for member in range(size))
        found.append(Group(group, staleness, members))
    return found


def pack_alone(groups: Sequence[Sequence[Sample]], *, budget_tokens: int, width: int = 128, shared: bool = True) -> list[Packed]:
    """Micro-batches of one task."""
    return pack([rows_of(groups, budget_tokens=budget_tokens, width=width, shared=shared)], budget_tokens=budget_tokens)


def context_of(task: str, group: Group, *, version: int = 0, tenant: str = "acme") -> GroupContext:
    return group_context(
        task, group.group, tenant=tenant, size=len(group.trajectories), version=version, family="reasoning_gym", environment=ENVIRONMENT
    )


def scored(trajectory: Trajectory, failure: str | None = None) -> ScoredTrajectory:
    transcript = TokenRecord(
        ids=trajectory.ids_T.astype("<i4").tobytes(),
        logprobs=trajectory.sampler_logprobs_T.astype("<f4").tobytes(),
        sampled=trajectory.sampled_T.tobytes(),
    )
    return ScoredTrajectory(
        member=trajectory.member,
        transcript=transcript,
        reward=trajectory.reward,
        components=trajectory.components,
        turns=1,
        truncated=trajectory.truncated,
        failure=failure,
        env_ms=0,
        away_ms=0,
    )
