"""Episodes with a calculator, played by the tiny model: real chat template, engine, environment and tool."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter

import pytest_asyncio

from common.fairness.fair_queue import Claimant
from common.messages import ChatMessage, SampledTurn, TokenRecord, TurnRequest
from common.spec import EnvironmentSection, Limits
from env_svc.calls import Call, Continued, FinalTurn, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.tools.toolbox import Toolbox
from rollout_svc.text.chat import Chat
from tests.rollout.oracle import Oracle
from tests.rollout.stage import Stage, agrees, group_of

CALCULATOR = EnvironmentSection(name="calculator", options={"max_digits": 2})
LIMITS = Limits(max_prompt_tokens=64, max_turns=3, max_reply_tokens=160)
MEMBERS = 32


@dataclass
class MemberEpisode:
    """One member's turns, answers and score."""

    turns: list[SampledTurn] = field(default_factory=list[SampledTurn])
    answers: list[ChatMessage] = field(default_factory=list[ChatMessage])
    """The tool's answer, between the turns."""
    score: Scored | None = None


class EnvironmentSide:
    """Plays the environment's side of an episode."""

    def __init__(self, player: ToolCallExecutor) -> None:
        self._player = player

    async def outcomes(self, calls: Sequence[Call]) -> list[Outcome]:
        batches = self._player.run(Claimant("a", "task"), CALCULATOR, calls, 60.0, LIMITS)
        async with aclosing(batches):
            found = dict(chain.from_iterable([batch async for batch in batches]))
        return [found[position] for position in range(len(calls))]

    async def opened(self) -> Opened:
        (outcome,) = await self.outcomes([OpenCall(0, 5)])
        assert isinstance(outcome, Opened), outcome
        return outcome


@pytest_asyncio.fixture(loop_scope="session")
async def table() -> AsyncIterator[EnvironmentSide]:
    toolbox = Toolbox()
    yield EnvironmentSide(
        ToolCallExecutor(EnvironmentExecutor(Workers(1, [], 2**30), call_timeout_s=60.0), toolbox)
    )  # no worker is started: nothing here computes
    await toolbox.close()


async def play(stage: Stage, table: EnvironmentSide, opened: Opened) -> list[MemberEpisode]:
    """Every member's episode, turn by turn, as the services would play it."""
    group = group_of("calculator", size=MEMBERS, limits=LIMITS, environment=CALCULATOR, max_tokens=24)
    episodes = [MemberEpisode() for _ in range(MEMBERS)]
    requests = [
        TurnRequest(member=member, turn=0, transcript=TokenRecord(), messages=opened.messages, tools=opened.tools, state=opened.state)  # pyright: ignore
        for member in range(MEMBERS)
    ]
    for turn in range(LIMITS.max_turns):
        stage.answers.clear()
        sampled = await stage.answer(group, *requests)
        last = FinalTurn("turns") if turn == LIMITS.max_turns - 1 else None
        steps = [StepCall(0, one.state, Reply(one.reply, one.finish == "length"), last) for one in sampled.values()]
        requests = []
        for one, outcome in zip(sampled.values(), await table.outcomes(steps), strict=True):
            episode = episodes[one.member]
            episode.turns.append(one)
            if isinstance(outcome, Continued):
                episode.answers += outcome.messages
                requests.append(
                    TurnRequest(member=one.member, turn=turn + 1, transcript=one.transcript, messages=outcome.messages, state=outcome.state)
                )
            else:
                assert isinstance(outcome, Scored), outcome
                episode.score = outcome
        if not requests:
            break
    return episodes


def parts(record: TokenRecord) -> list[tuple[bool, list[int]]]:
    """The tokens, cut where the mask changes: (sampled, ids)."""
    ids, mask = record.ids_T().tolist(), record.sampled_T().tolist()
    found: list[tuple[bool, list[int]]] = []
    for sampled, tokens in groupby(zip(mask, ids, strict=True), key=itemgetter(0)):
        found.append((bool(sampled), [token for _, token in tokens]))
    return found


async def test_masks_are_exact_through_the_tools_turns(stage: Stage, table: EnvironmentSide, chat: Chat, oracle: Oracle) -> None:
    opened = await table.opened()
    episodes = await play(stage, table, opened)
    called = [episode for episode in episodes if episode.answers]
    assert len(called) >= MEMBERS // 8, "the base model makes calls part of the time"
    assert any(episode.score == Scored(1.0, {"tool_calls": 1.0, "tool_errors": 0.0, "well_formed": 1.0}) for episode in called)
    prompt = chat._template.render([message.model_dump() for message in opened.messages], opened.tools, "{}")
    for episode in episodes:
        first, *rest = parts(episode.turns[-1].transcript)
        assert first == (False, chat._encode(prompt)), "the template's tokens, none of them the policy's choice"
        replies, between = rest[::2], rest[1::2]
        assert [sampled for sampled, _ in rest] == [True, False] * len(between) + [True]
        assert [chat.text(ids) for _, ids in replies] == [turn.reply for turn in episode.turns]
        for (_, said), (_, ids), answer in zip(replies, between, episode.answers, strict=False):
            end = "" if said[-1] in chat.stop_ids else "<|im_end|>"
            assert ids == chat._encode(f"{end}\n<|im_start|>tool\n{answer.content}<|im_end|>\n<|im_start|>assistant\n")
        for turn, later in zip(episode.turns, episode.turns[1:], strict=False):
            assert later.transcript.ids.startswith(turn.transcript.ids), "nothing is re-encoded"
            assert later.transcript.logprobs.startswith(turn.transcript.logprobs)
            assert later.transcript.sampled.startswith(turn.transcript.sampled)
    for episode in called[:4]:
        agrees(oracle, episode.turns[-1], None, 0.9)
