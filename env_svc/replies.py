"""The messages that follow from outcomes. Pure: what goes where, under which derived id.

Ids name the members and their turn, so that a message that is handled twice gives the same ids. Where the second time
groups members otherwise, a member's turn may be asked for twice; the first score counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common import streams
from common.bus import Outgoing
from common.chunking import in_parts
from common.messages import GroupContext, SampledTurn, SampleTurns, ScoredTrajectory, TokenRecord, TrajectoriesScored, TurnRequest
from env_svc.calls import Continued, Failed, Opened, Scored


@dataclass(frozen=True)
class EndedTurn:
    """A turn that was the last of its trajectory, or that was never sampled."""

    turn: SampledTurn
    outcome: Scored | Failed


def first_turns(group: GroupContext, opened: Opened) -> Iterator[Outgoing]:
    """Every member's wish for its first turn: one message, or more when the state is very large."""
    requests = [
        TurnRequest(member=member, turn=0, transcript=TokenRecord(), messages=opened.messages, tools=opened.tools, state=opened.state)
        for member in range(group.size)
    ]
    yield from _sample(group, requests)


def next_turns(group: GroupContext, asked: Sequence[tuple[SampledTurn, Continued]]) -> Iterator[Outgoing]:
    """Wishes for one more turn."""
    requests = [
        TurnRequest(member=turn.member, turn=turn.turn + 1, transcript=turn.transcript, messages=outcome.messages, state=outcome.state)
        for turn, outcome in asked
    ]
    yield from _sample(group, requests)


def scores(group: GroupContext, ended: Sequence[EndedTurn]) -> Iterator[Outgoing]:
    """Trajectories that are over, with their reward or the reason why they have none."""
    yield from _scored(group, [_trajectory(one) for one in ended])


def unopened(group: GroupContext, failure: Failed) -> Iterator[Outgoing]:
    """A group whose prompt could not be opened: every member is void."""
    members = [
        ScoredTrajectory(member=member, transcript=TokenRecord(), reward=0.0, turns=0, failure=failure.reason)
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
    )


def _sample(group: GroupContext, requests: Sequence[TurnRequest]) -> Iterator[Outgoing]:
    for part in in_parts(requests, _request_bytes):
        subject = streams.sample(group.pool, group.task, group.trajectory(part[0].member))
        name = ",".join(f"{request.member}.{request.turn}" for request in part)
        yield Outgoing(subject, SampleTurns(group=group, members=part), f"sample:{group.task}:{group.group}:{name}")


def _scored(group: GroupContext, members: Sequence[ScoredTrajectory]) -> Iterator[Outgoing]:
    for part in in_parts(members, lambda member: len(member.transcript) * 9):
        message = TrajectoriesScored(group=group, members=part)
        subject = streams.scored(group.task, group.trajectory(part[0].member))
        name = ",".join(f"{member.member}.{member.turns}" for member in part)
        # A failure may quote anything; headers are ASCII.
        header = message.settlement().model_dump_json(ensure_ascii=True)
        yield Outgoing(subject, message, f"scored:{group.task}:{group.group}:{name}", {streams.SETTLEMENT_HEADER: header})


def _request_bytes(request: TurnRequest) -> int:
    text = sum(len(message.content) for message in request.messages) + len(str(request.tools))
    return len(request.transcript) * 9 + len(request.state) + 2 * text
