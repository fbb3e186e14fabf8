"""Queries on the members of groups: settling them, and reading them for reward shaping."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Boolean, Double, Integer, Text, case, cast, func, not_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import SettledMember
from common.messages.prompts import FIRST_EVALUATION_GROUP
from common.shaping import Attempt
from scheduler_svc.base.sql import GroupKey, Rows, Statement, in_state, keyed, keys
from scheduler_svc.base.states import TrajectoryState, VoidReason
from scheduler_svc.base.tables import trajectories


@dataclass(frozen=True)
class ScoredMember:
    """Outcome of one member, as received from the environment service."""

    task: str
    group: int
    sequence: int
    member: SettledMember
    version: int
    """Sampling version of the group according to the message."""


_COPIED = {
    "prompt_tokens": Integer, "sampled_tokens": Integer, "turns": Integer, "truncated": Boolean, "longest_turn_tokens": Integer,
    "env_ms": Integer, "away_ms": Integer,
}  # fmt: skip
"""Columns copied unchanged from the member's outcome."""
_arrived = Rows(
    "arrived", task=Text, group=Integer, member=Integer, sequence=BigInteger, reward=Double, failure=Text, components=Text, **_COPIED
)
_has_failed = _arrived.c.failure.is_not(None)
_SETTLE = Statement(
    update(trajectories)
    .where(
        trajectories.c.task == _arrived.c.task,
        trajectories.c.group == _arrived.c.group,
        trajectories.c.member == _arrived.c.member,
        trajectories.c.state == TrajectoryState.OPEN,
    )
    .values(
        state=case(
            (_has_failed, TrajectoryState.VOID.value),
            (_arrived.c.group >= FIRST_EVALUATION_GROUP, TrajectoryState.EVALUATED.value),
            else_=TrajectoryState.SCORED.value,
        ),
        void_reason=case((_has_failed, VoidReason.FAILED.value)),
        detail=func.coalesce(_arrived.c.failure, ""),
        reward=case((not_(_has_failed), _arrived.c.reward)),
        sequence=_arrived.c.sequence,
        components=cast(_arrived.c.components, JSONB),
        **{name: _arrived.c[name] for name in _COPIED},
        scored_at=func.now(),
    )
)


async def settle_members(connection: AsyncConnection, outcomes: Sequence[ScoredMember]) -> None:
    """Mark open members as scored, in evaluations as evaluated, or as void if they failed. Only the first message about a member counts."""
    first: dict[tuple[str, int, int], ScoredMember] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.sequence):
        first.setdefault((outcome.task, outcome.group, outcome.member.member), outcome)
    found: list[tuple[object, ...]] = []
    for outcome in first.values():
        member = outcome.member
        components = json.dumps(member.components) if member.components else None
        own = (outcome.task, outcome.group, member.member, outcome.sequence, member.reward, member.failure, components)
        found.append((*own, *(getattr(member, name) for name in _COPIED)))
    await _SETTLE.run(connection, _arrived.of(found))


_ATTEMPTS = Statement(
    select(
        trajectories.c.task,
        trajectories.c.group,
        trajectories.c.reward,
        trajectories.c.sampled_tokens,
        trajectories.c.longest_turn_tokens,
        trajectories.c.components,
    )
    .where(keyed(trajectories.c.task, trajectories.c.group), in_state(trajectories.c.state, TrajectoryState.SCORED))
    .order_by(trajectories.c.task, trajectories.c.group, trajectories.c.member)
)


async def scored_attempts(connection: AsyncConnection, found: Collection[GroupKey]) -> dict[GroupKey, list[Attempt]]:
    """Scored members of the groups `found`, as inputs of reward shaping."""
    attempts: dict[GroupKey, list[Attempt]] = {key: [] for key in found}
    for row in await _ATTEMPTS.run(connection, keys(found)):
        attempts[row.task, row.group].append(Attempt(row.reward, row.sampled_tokens, row.longest_turn_tokens, row.components or {}))
    return attempts
