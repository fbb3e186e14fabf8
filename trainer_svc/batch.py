"""Trajectories of a TrainBatch, validated against it. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.errors import Reject
from common.messages import BatchGroup, BatchMember, ScoredTrajectory, TokenRecord, TrainBatch, TrajectoriesScored, longest_run
from common.shaping import Attempt


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One attempt. Shapes: arrays (T,) as in TokenRecord."""

    member: int
    ids_T: NDArray[np.int32]
    sampled_T: NDArray[np.uint8]
    sampler_logprobs_T: NDArray[np.float32]
    reward: float
    truncated: bool
    components: Mapping[str, float] = field(default_factory=dict)
    """Reward components by name, for metrics and rank weights."""

    @cached_property
    def sampled_tokens(self) -> int:
        return int(np.count_nonzero(self.sampled_T))

    @cached_property
    def attempt(self) -> Attempt:
        """The trajectory as the input of reward shaping (`common/shaping.py`)."""
        return Attempt(self.reward, self.sampled_tokens, longest_run(self.sampled_T.tobytes()), self.components)


@dataclass(frozen=True, eq=False)
class Group:
    """Attempts at one prompt, ordered by member number."""

    group: int
    staleness: int
    """Number of versions from the policy that sampled the group to the policy that is updated."""
    trajectories: tuple[Trajectory, ...]


def sequences_of(batch: TrainBatch) -> list[int]:
    """Stream sequences of the batch's scored messages, without duplicates."""
    return sorted({member.sequence for group in batch.groups for member in group.members})


def assemble(batch: TrainBatch, messages: Mapping[int, TrajectoriesScored], vocabulary: int) -> list[Group]:
    """The batch's groups and members in numerical order, so that the order of arrival cannot change the step.

    Raises: Reject, naming group and member, if a message contradicts the batch or cannot be trained on.
    """
    groups = sorted(batch.groups, key=lambda group: group.group)
    if len({group.group for group in groups}) != len(groups):
        raise Reject(f"batch of task {batch.task} version {batch.version} names a group twice")
    return [_group(batch, group, messages, vocabulary) for group in groups]


def _group(batch: TrainBatch, group: BatchGroup, messages: Mapping[int, TrajectoriesScored], vocabulary: int) -> Group:
    where = f"task {batch.task} version {batch.version}, group {group.group}"
    members = sorted(group.members, key=lambda member: member.member)
    minimum = 1 if batch.spec.algorithm.advantage == "reinforce_pp" else 2
    if len(members) < minimum or len({member.member for member in members}) != len(members):
        raise Reject(f"{where}: members {[member.member for member in members]}; at least {minimum} different ones are needed")
    if group.version > batch.version:
        raise Reject(f"{where}: sampled by version {group.version}, which is newer than the policy to update")
    return Group(
        group.group,
        batch.version - group.version,
        tuple(_trajectory(f"{where}, member {member.member}", batch, group, member, messages, vocabulary) for member in members),
    )


def _trajectory(
    where: str, batch: TrainBatch, group: BatchGroup, member: BatchMember, messages: Mapping[int, TrajectoriesScored], vocabulary: int
) -> Trajectory:
    message = messages[member.sequence]
    found = (message.group.task, message.group.group, message.group.version)
    expected = (batch.task, group.group, group.version)
    if found != expected:
        raise Reject(f"{where}: message {member.sequence} is about (task, group, version) {found}, expected {expected}")
    scored = next((scored for scored in message.members if scored.member == member.member), None)
    if scored is None:
        raise Reject(f"{where}: message {member.sequence} has members {[scored.member for scored in message.members]} only")
    if scored.failure is not None:
        raise Reject(f"{where}: void ({scored.failure}), so it has no reward to train on")
    if not math.isclose(scored.reward, member.reward, rel_tol=1e-5, abs_tol=1e-6):
        raise Reject(f"{where}: reward {scored.reward} in message {member.sequence}, settled with {member.reward}")
    problem = _problem(scored.transcript, vocabulary)
    if problem:
        raise Reject(f"{where}: {problem}")
    return _loaded(scored)


def _problem(transcript: TokenRecord, vocabulary: int) -> str | None:
    ids_T, sampled_T, logprobs_T = transcript.ids_T(), transcript.sampled_T(), transcript.logprobs_T()
    if len(ids_T) == 0:
        return "has no tokens"
    if ids_T.min() < 0 or ids_T.max() >= vocabulary:
        return f"token ids from {ids_T.min()} to {ids_T.max()}, but the base model knows 0 to {vocabulary - 1}"
    if sampled_T.max() > 1 or sampled_T[0] == 1:
        return "the mask marks the first token as sampled" if sampled_T[0] == 1 else "the mask has values other than 0 and 1"
    if not np.isfinite(logprobs_T).all():
        return "the sampler's logprobs are not all finite"
    return None


def _loaded(scored: ScoredTrajectory) -> Trajectory:
    tokens = scored.transcript
    arrays = tokens.ids_T(), tokens.sampled_T(), tokens.logprobs_T()
    return Trajectory(scored.member, *arrays, scored.reward, scored.truncated, scored.components)
