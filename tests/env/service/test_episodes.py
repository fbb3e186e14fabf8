"""Episodes over a real NATS: open → sample → turn → scored, with tools and limits."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.messages import ChatMessage, GroupContext, SampledTurn, SampleTurns, TokenRecord, TurnsSampled
from common.spec import EnvironmentSection, Limits
from common.tool_calls import Thoughts
from env_svc import replies
from env_svc.calls import Opened
from env_svc.execution.workers import Workers
from tests.env.service.desk import Desk, group_of, sampled, service_of
from tests.support.buses import message_on


async def test_opened_group_asks_for_every_members_first_turn_in_one_message(desk: Desk) -> None:
    group = group_of("Countdown", size=5)
    await desk.opened(group)
    (message,) = desk.samples
    assert message.group == group
    assert [(one.member, one.turn, len(one.transcript)) for one in message.members] == [(member, 0, 0) for member in range(5)]
    assert {one.messages[0].content for one in message.members} == {"Count down from 3."}


async def test_turns_of_a_group_with_a_home_go_to_the_queue_there(desk: Desk) -> None:
    """The next turns too: the group that travels with them has it."""
    group = group_of("Countdown", size=2).model_copy(update={"home": "a"})
    await desk.open(group)
    subject = streams.sample("tiny@a", group.task, group.trajectory(0))
    message = (await message_on(desk.bus, streams.PROMPTS, subject)).read(SampleTurns)
    assert message.group == group
    await desk.bus.streams.purge(streams.PROMPTS, subject)
    await desk.give(group, [sampled(message.members[0], "3")])
    assert (await message_on(desk.bus, streams.PROMPTS, subject)).read(SampleTurns).members[0].turn == 1
    assert desk.samples == []


async def test_time_of_workers_is_counted_for_each_attempt_and_travels_with_it(desk: Desk) -> None:
    group = group_of("ComputingCountdown", size=2)
    first, second = await desk.opened(group)
    assert first.env_ms > 0, "the opening's"
    assert second.env_ms == 0
    await desk.give(group, [sampled(first.model_copy(update={"env_ms": 5e6, "away_ms": 7e6}), "3"), sampled(second, "nine")])
    [(_, settlement)] = await desk.scored(group.task, 1)
    assert (settlement.members[0].member, settlement.members[0].env_ms < 1e6) == (1, True)
    third = (await desk.requests(group, 3))[-1]
    assert 5e6 < third.env_ms < 6e6
    assert 7e6 < third.away_ms < 9e6
    await desk.give(group, [sampled(third, "nine")])
    _, (_, settlement) = await desk.scored(group.task, 2)
    assert 5e6 <= settlement.members[0].env_ms < 7e6
    assert 7e6 < settlement.members[0].away_ms < 11e6


async def test_prompt_is_made_of_the_tasks_seed_not_the_groups(desk: Desk) -> None:
    for number, seed in enumerate((7, 8)):
        group = group_of("Countdown", size=1, task=f"task-{number}").model_copy(update={"seed": seed, "task_seed": 1})
        assert (await desk.opened(group))[0].messages[0].content == "Count down from 4."


async def test_episode_of_many_turns_is_played_and_scored(desk: Desk) -> None:
    group = group_of("Countdown", size=2)
    right, wrong = await desk.opened(group)
    await desk.give(group, [sampled(right, "3"), sampled(wrong, "nine")])
    ((message, settlement),) = await desk.scored(group.task, 1)
    assert (message.members[0].member, message.members[0].reward, message.members[0].components) == (1, 0.0, {"left": 3.0})
    assert (settlement.members[0].prompt_tokens, settlement.members[0].sampled_tokens, settlement.members[0].turns) == (2, 4, 1)
    for turn, number in ((1, "2"), (2, "1")):
        right = (await desk.requests(group, 2 + turn))[-1]
        assert (right.member, right.turn, right.messages[0].content) == (0, turn, "Go on.")
        await desk.give(group, [sampled(right, number)])
    last = (await desk.scored(group.task, 2))[-1][0].members[0]
    assert (last.member, last.reward, last.turns, last.failure) == (0, 1.0, 3, None)
    assert len(last.transcript) == 9


async def test_environment_that_computes_is_played_in_workers(desk: Desk) -> None:
    group = group_of("reasoning_gym:gcd", size=2, max_turns=1).model_copy(update={"family": "module"})
    requests = await desk.opened(group)
    from reasoning_gym.factory import create_dataset

    gold = create_dataset("gcd", seed=0, size=2000)[0]["answer"]
    await desk.give(group, [sampled(requests[0], gold), sampled(requests[1], "?", finish="length")])
    members = [member for message, _ in await desk.scored(group.task, 2) for member in message.members]
    assert [(member.reward, member.components, member.truncated) for member in members] == [
        (1.0, {"score": 1.0}, False),
        (0.0, {"score": 0.0}, True),
    ]


async def test_members_ready_together_share_a_message_and_wait_for_no_other(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    group = group_of("Obedient", size=3)
    requests = await desk.opened(group)
    await desk.give(
        group, [sampled(request, reply) for request, reply in zip(requests, ("reward 1", f"await-file {gate}", "reward 2"), strict=True)]
    )
    ((first, _),) = await desk.scored(group.task, 2)
    assert [member.member for member in first.members] == [0, 2]
    gate.touch()
    assert (await desk.scored(group.task, 3))[-1][0].members[0].member == 1


async def test_task_weighs_the_components_of_its_reward(desk: Desk) -> None:
    group = group_of("Countdown", size=2)
    group = group.model_copy(update={"environment": group.environment.model_copy(update={"weights": {"reward": 2.0, "left": -0.25}})})
    requests = await desk.opened(group)
    await desk.give(group, [sampled(requests[0], "no"), sampled(requests[1], "nine")])
    members = [member for message, _ in await desk.scored(group.task, 2) for member in message.members]
    assert [(member.reward, member.components) for member in members] == [(-0.75, {"reward": 0.0, "left": 3.0})] * 2


async def test_out_of_turns_is_concluded(desk: Desk) -> None:
    group = group_of("Countdown", size=1, max_turns=1)
    (request,) = await desk.opened(group)
    await desk.give(group, [sampled(request, "3")])
    ((message, _),) = await desk.scored(group.task, 1)
    assert (message.members[0].reward, message.members[0].components, message.members[0].failure) == (0.0, {"out_of_turns": 1.0}, None)


async def test_large_states_are_spread_over_messages(workers: Workers) -> None:
    service = service_of(workers, call_timeout_s=60.0)
    group = group_of("Obedient", size=64)
    turns = [
        SampledTurn(member=member, turn=0, transcript=TokenRecord(), reply="big 200000", finish="stop", state=b"\x80")
        for member in range(64)
    ]
    subject = streams.turn(group.family, group.task, group.trajectory(0))
    delivery = Delivery(subject, {}, TurnsSampled(group=group, members=turns).encode(), 1, 1)
    out = [message async for message in service.turn(delivery)]
    members = [request.member for one in out if isinstance(one.message, SampleTurns) for request in one.message.members]
    assert sorted(members) == list(range(64))
    assert len(out) == len({one.message_id for one in out}) > 1
    assert all(len(one.message.encode()) < 5 * 2**20 for one in out)


def test_large_schemas_of_tools_are_spread_over_messages() -> None:
    schema: dict[str, JsonValue] = {"type": "function", "function": {"name": "ask", "description": "x" * 130_000}}
    opened = Opened([ChatMessage(role="user", content="Ask.")], [schema], b"\x80")
    out = list(replies.first_turns(group_of("Obedient", size=64), opened))
    members = [request.member for one in out if isinstance(one.message, SampleTurns) for request in one.message.members]
    assert members == list(range(64))
    assert len({one.message_id for one in out}) == len(out)
    assert all(len(one.message.encode()) < 5 * 2**20 for one in out)


def talk(size: int = 1, *tools: str, left_s: float = 500.0, **limits: object) -> GroupContext:
    """A group whose policy talks, with tools, until it is done."""
    environment = EnvironmentSection.model_validate({"name": "tests.env.tools.toy_tools:Talk", "tools": tools})
    allowed = Limits.model_validate({"max_turns": 8, **limits})
    return group_of("Talk", size=size, left_s=left_s).model_copy(update={"environment": environment, "limits": allowed})


async def test_calls_are_answered_between_the_environments_steps(desk: Desk) -> None:
    group = talk(2, "calculator", "tests.env.tools.toy_tools:Parrot")
    first, second = await desk.opened(group)
    assert [tool["function"]["name"] for tool in first.tools] == ["calculator", "parrot"]  # pyright: ignore
    await desk.give(group, [sampled(first, "<calculator>12*7</calculator><parrot>hello</parrot>"), sampled(second, "done")])
    ((message, _),) = await desk.scored(group.task, 1)
    assert (message.members[0].member, message.members[0].components) == (1, {"tool_calls": 0.0, "tool_errors": 0.0, "steps": 1.0})
    asked = (await desk.requests(group, 3))[-1]
    assert [(one.role, one.content) for one in asked.messages] == [("tool", "84"), ("tool", "hello")]
    assert (asked.member, asked.turn, asked.tools) == (0, 1, [])
    await desk.give(group, [sampled(asked, "done")])
    last = (await desk.scored(group.task, 2))[-1][0].members[0]
    assert (last.reward, last.turns, last.components) == (1.0, 2, {"tool_calls": 2.0, "tool_errors": 0.0, "steps": 1.0})
    reply = "<calculator>12*7</calculator><parrot>hello</parrot>"
    assert last.transcript.ids.startswith(asked.transcript.ids)
    assert last.transcript.sampled_T().tolist() == [0, 0] + [1] * len(reply) + [0, 0] + [1] * 4


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_call_rehearsed_in_thoughts_that_the_prompt_opened_is_not_made(desk: Desk, finish: str) -> None:
    group = talk(1, "tests.env.tools.toy_tools:Parrot")
    [request] = await desk.opened(group)
    turn = sampled(request, "Perhaps <parrot>hello</parrot> would do, but first", finish=finish)
    await desk.give(group, [turn.model_copy(update={"thoughts": Thoughts(begins_inside=True)})])
    ((message, _),) = await desk.scored(group.task, 1)
    assert message.members[0].components == {"tool_calls": 0.0, "tool_errors": 0.0, "steps": 1.0}


@pytest.mark.parametrize(
    ("limits", "component"),
    [({"max_turns": 1}, "out_of_turns"), ({"max_episode_tokens": 231}, "out_of_tokens"), ({"max_episode_s": 240}, "out_of_seconds")],
)
@pytest.mark.parametrize(("rule", "reward"), [("score", 0.25), ("zero", 0.0), ("void", None)])
async def test_episode_without_turns_tokens_or_seconds_ends_as_its_task_says(
    desk: Desk, limits: dict[str, object], component: str, rule: str, reward: float | None
) -> None:
    # Admitted 241 s ago; a turn may bring 128 tokens and sample 64 more.
    group = talk(1, "tests.env.tools.toy_tools:Parrot", left_s=559.0, episode_timeout_s=800.0, at_limit=rule, **limits)
    (request,) = await desk.opened(group)
    await desk.give(group, [sampled(request, "<parrot>one more turn, please</parrot>")])
    ((message, _),) = await desk.scored(group.task, 1)
    (member,) = message.members
    if reward is None:
        used = component.removeprefix("out_of_")
        assert member.failure == f"the episode used up its {used}, and limits.at_limit is 'void'"
    else:
        assert (member.failure, member.reward, member.components[component]) == (None, reward, 1.0)


async def test_episode_within_its_limits_continues(desk: Desk) -> None:
    group = talk(1, "tests.env.tools.toy_tools:Parrot", left_s=299.0, max_turns=2, max_episode_tokens=232, max_episode_s=240)
    (request,) = await desk.opened(group)
    await desk.give(group, [sampled(request, "<parrot>one more turn, please</parrot>")])
    assert [message.content for message in (await desk.requests(group, 2))[-1].messages] == ["one more turn, please"]
