"""Messages that follow from outcomes, with their subjects and derived ids. Pure.

Ids name the members and their turn, so a redelivered message yields the same ids. If its rerun groups members differently,
a member's turn may be requested twice; the first score counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common import streams
from common.bus import Outgoing
from common.messages import GroupContext, SampledTurn, SampleTurns, ScoredTrajectory, TokenRecord, TrajectoriesScored, TurnRequest
from common.messages.base import in_parts
from env_svc.calls import Continued, Failed, Opened, Scored

NUMBER_BYTES = 32
"""Maximum size of a number in a header, with its punctuation."""


@dataclass(frozen=True)
class EndedTurn:
    """The last turn of a trajectory, whether it was sampled or not."""

    turn: SampledTurn
    outcome: Scored | Failed
    away_s: float = 0.0
    """Seconds that this service held the turn."""


def first_turns(group: GroupContext, opened: Opened) -> Iterator[Outgoing]:
    """Requests for every member's first turn: one message, or more when the state is very large."""
    requests = [
        TurnRequest(
            member=member,
            turn=0,
            transcript=TokenRecord(),
            messages=opened.messages,
            tools=opened.tools,
            state=opened.state,
            env_ms=0.0 if member else opened.worked_s * 1000,
        )
        for member in range(group.size)
    ]
    yield from _sample(group, requests)


def next_turns(group: GroupContext, asked: Sequence[tuple[SampledTurn, Continued]], away_s: float) -> Iterator[Outgoing]:
    """Requests for the next turns. `away_s`: seconds that this service held these turns."""
    requests = [
        TurnRequest(
            member=turn.member,
            turn=turn.turn + 1,
            transcript=turn.transcript,
            messages=outcome.messages,
            state=outcome.state,
            env_ms=turn.env_ms + outcome.worked_s * 1000,
            away_ms=turn.away_ms + away_s * 1000,
        )
        for turn, outcome in asked
    ]
    yield from _sample(group, requests)


def scores(group: GroupContext, ended: Sequence[EndedTurn]) -> Iterator[Outgoing]:
    """Ended trajectories, each with its reward or the reason of its failure."""
    yield from _scored(group, [_trajectory(one) for one in ended])


def unopened(group: GroupContext, failure: Failed) -> Iterator[Outgoing]:
    """Scores of a group whose prompt could not be opened: every member is void."""
    members = [
        ScoredTrajectory(
            member=member,
            transcript=TokenRecord(),
            reward=0.0,
            turns=0,
            failure=failure.reason,
            env_ms=0 if member else round(failure.worked_s * 1000),
            away_ms=0,
        )
        for member in range(group.size)
    ]
    yield from _scored(group, members)


def _trajectory(ended: EndedTurn) -> ScoredTrajectory:
    turn, outcome = ended.turn, ended.outcome
    failure = outcome.reason if isinstance(outcome, Failed) else None
    return ScoredTrajectory(
        member=turn.member,
        transcript=turn.transcript,
        reward=outcome.reward if isinstance(outcome, Scored) else 0.0,
        components=outcome.components if isinstance(outcome, Scored) else {},
        turns=turn.turn if turn.failure is not None else turn.turn + 1,
        truncated=turn.failure is None and turn.finish == "length",
        failure=failure,
        env_ms=round(turn.env_ms + ended.outcome.worked_s * 1000),
        away_ms=round(turn.away_ms + ended.away_s * 1000),
    )


def _sample(group: GroupContext, requests: Sequence[TurnRequest]) -> Iterator[Outgoing]:
    for part in in_parts(requests, _request_bytes):
        subject = streams.sample(streams.queue(group.pool, group.home), group.task, group.trajectory(part[0].member))
        name = ",".join(f"{request.member}.{request.turn}" for request in part)
        yield Outgoing(subject, SampleTurns(group=group, members=part), f"sample:{group.task}:{group.group}:{name}")


def _scored(group: GroupContext, members: Sequence[ScoredTrajectory]) -> Iterator[Outgoing]:
    ranked_bytes = sum(len(name.encode()) + NUMBER_BYTES for name in group.environment.rank_weights)  # in the header
    for part in in_parts(members, lambda member: len(member.transcript) * 9 + ranked_bytes):
        message = TrajectoriesScored(group=group, members=part)
        subject = streams.scored(group.task, group.trajectory(part[0].member))
        name = ",".join(f"{member.member}.{member.turns}" for member in part)
        # A failure may quote anything; headers are ASCII.
        header = message.settlement().model_dump_json(ensure_ascii=True)
        yield Outgoing(subject, message, f"scored:{group.task}:{group.group}:{name}", {streams.SETTLEMENT_HEADER: header})


def _request_bytes(request: TurnRequest) -> int:
    text = sum(len(message.content) for message in request.messages) + len(str(request.tools))
    return len(request.transcript) * 9 + len(request.state) + 2 * text
