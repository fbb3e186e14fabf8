"""Tasksets of `verifiers`, in a host process of their own.

Where VERIFIERS_PYTHON names the interpreter of a virtual environment that has verifiers 0.4, they are played by it;
otherwise by a stand-in for the part of it that the adapter meets.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import JsonValue

from common import spec
from common.fairness.fair_queue import Claimant
from common.tool_calls import Thoughts
from env_svc.calls import Call, Continued, Failed, FinalTurn, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.pool import HostPool
from env_svc.tools.toolbox import Toolbox
from tests.env.adapters.unplayable import ONES, PICTURE, UNPLAYABLE
from tests.support.paths import ROOT

GUESTS = Path(__file__).parents[1] / "guests"
REAL = os.environ.get("VERIFIERS_PYTHON")

pytestmark = pytest.mark.asyncio(loop_scope="module")  # processes with the package take seconds to start: all tests share them


def hosted(folder: Path, *, environment: str = "open_taskset:OpenTaskset", **options: JsonValue) -> HostedConfig:
    paths = [ROOT, GUESTS, folder] + ([] if REAL else [GUESTS / "standins"])
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    return HostedConfig(python=REAL or sys.executable, environment=environment, options=options, variables=variables)


@dataclass
class Replicas:
    """Two executors that share nothing; the one `there` holds hardly any episode."""

    here: ToolCallExecutor
    there: ToolCallExecutor


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def replicas(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    folder = tmp_path_factory.mktemp("tasksets")
    for module, (code, _) in UNPLAYABLE.items():
        before, after = (code, "") if code.startswith("class Plain") else ("", code)
        (folder / f"{module}.py").write_text(ONES.format(before=before, after=after))
    for module, prompt in (("promptless", "None"), ("pictures", PICTURE)):
        (folder / f"{module}.py").write_text(ONES.format(before="", after="").replace('"One?"', prompt))
    operated: dict[str, JsonValue] = {"taskset": "sums", "config": {"first": 20}, "adjustable": ["count"]}
    adapter = hosted(folder, environment="env_svc.adapters.verifiers:Taskset", **operated)
    both = [HostPool({"any": hosted(folder), "operated": adapter}), HostPool({"any": hosted(folder, environment="open_taskset:Forgetful")})]
    try:
        await asyncio.gather(*(hosts.start() for hosts in both))
        yield Replicas(*(ToolCallExecutor(EnvironmentExecutor(workers, 60.0, hosts), Toolbox()) for hosts in both))
    finally:
        await asyncio.gather(*(hosts.stop() for hosts in both))


async def play(executor: ToolCallExecutor, calls: list[Call], *, name: str = "any", **options: JsonValue) -> list[Outcome]:
    given = {"taskset": "sums", **options} if name == "any" else options
    found: dict[int, Outcome] = {}
    async for batch in executor.run(Claimant("a", "t"), spec.EnvironmentSection(name=name, options=given), calls, 60.0):
        found.update(batch)
    return [found[position] for position in range(len(calls))]


async def begun(executor: ToolCallExecutor, **options: JsonValue) -> Opened:
    (outcome,) = await play(executor, [OpenCall(0, 1)], **options)
    return opened(outcome)


async def said(executor: ToolCallExecutor, state: bytes, text: str, *, last: FinalTurn | None = None, **options: JsonValue) -> Outcome:
    (outcome,) = await play(executor, [StepCall(0, state, Reply(text), last=last)], **options)
    return outcome


def opened(outcome: Outcome) -> Opened:
    assert isinstance(outcome, Opened), outcome
    return outcome


def asked(outcome: Outcome) -> Continued:
    assert isinstance(outcome, Continued), outcome
    return outcome


def failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def number_in(outcome: Outcome) -> int:
    return int(opened(outcome).messages[1].content.split()[2])


async def test_replies_are_graded_with_the_taskset_s_weights(replicas: Replicas) -> None:
    first = await begun(replicas.here, instruction="Only the number.")
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.messages[0].content == "Add."
    assert first.messages[1].content.endswith("\n\nOnly the number.")
    replies = [Reply(str(number_in(first) + 1)), Reply("I would rather not say."), Reply("7", truncated=True)]
    calls: list[Call] = [StepCall(0, first.state, reply) for reply in replies]
    right, wrong, cut = await play(replicas.here, calls, instruction="Only the number.")
    assert right == Scored(3.0, {"correct": 1.0, "short": 1.0, "asked": 1.0, "cut_off": 0.0})
    assert wrong == Scored(0.5, {"correct": 0.0, "short": 0.0, "asked": 1.0, "cut_off": 0.0})
    assert isinstance(cut, Scored) and cut.components["cut_off"] == 1.0


async def test_thought_is_separated_from_what_is_said_where_the_task_asks(replicas: Replicas) -> None:
    first = await begun(replicas.here)
    thinking = f"<think>\n7\n</think>\n\n{number_in(first) + 1}"
    apart = await said(replicas.here, first.state, thinking, reasoning=True)
    assert isinstance(apart, Scored) and (apart.components["correct"], apart.components["thought_about"]) == (1.0, 7.0)
    marked = Reply(f"7[/t]{number_in(first) + 1}", thoughts=Thoughts("[t]", "[/t]", begins_inside=True))
    (other,) = await play(replicas.here, [StepCall(0, first.state, marked)], reasoning=True)
    assert isinstance(other, Scored) and (other.components["correct"], other.components["thought_about"]) == (1.0, 7.0)
    whole = await said(replicas.here, first.state, thinking)
    assert isinstance(whole, Scored) and whole.components["correct"] == 0.0 and "thought_about" not in whole.components


async def test_an_epoch_visits_every_task_once_in_an_order_that_the_seed_gives(replicas: Replicas) -> None:
    calls: list[Call] = [OpenCall(index, 3) for index in range(10)]
    epochs = await play(replicas.here, calls)
    numbers = [number_in(outcome) for outcome in epochs]
    assert sorted(numbers[:5]) == sorted(numbers[5:]) == [10, 11, 12, 13, 14]
    assert await play(replicas.there, calls) == epochs
    others = [number_in(outcome) for outcome in await play(replicas.here, [OpenCall(index, 4) for index in range(10)])]
    assert others != numbers


async def test_what_breaks_is_void_and_never_reward_0(replicas: Replicas) -> None:
    first = await begun(replicas.here)
    replies = [Reply("break the grader"), Reply("break the judge")]
    bug, away = await play(replicas.here, [StepCall(0, first.state, reply) for reply in replies])
    assert "ZeroDivisionError: no such sum" in failed(bug).reason and not failed(bug).is_infrastructure
    assert "ProviderError: the judge's model is unavailable" in failed(away).reason and failed(away).is_infrastructure
    (unread,) = await play(replicas.here, [OpenCall(0, 0)], config={"reads_what_is_away": True})
    assert "cannot be read: ConnectionResetError: the hub is unavailable" in failed(unread).reason and failed(unread).is_infrastructure


async def test_episode_continues_elsewhere_only_where_the_row_is_the_same_task(replicas: Replicas) -> None:
    varying: dict[str, JsonValue] = {"config": {"varies": True}}
    first = await begun(replicas.here, **varying)
    assert isinstance(await said(replicas.here, first.state, "1", **varying), Scored)
    void = await said(replicas.there, first.state, "1", **varying)
    assert "is another task here than where it was opened" in failed(void).reason


async def test_tasks_set_what_the_operator_lets_them(replicas: Replicas) -> None:
    operated, numbers = "operated", [OpenCall(index, 0) for index in range(6)]
    outcomes = await play(replicas.here, [*numbers[:4]], name=operated, settings={"count": 2})
    assert sorted({number_in(outcome) for outcome in outcomes}) == [20, 21]
    (refused,) = await play(replicas.here, [OpenCall(0, 0)], name=operated, settings={"first": 1})
    assert "taskset 'sums' lets tasks set no 'first'; known: count" in failed(refused).reason
    (wrong,) = await play(replicas.here, [OpenCall(0, 0)], name=operated, settings={"count": "many"})
    assert "taskset 'sums': count: must be a whole number" in failed(wrong).reason
    for option in ("taskset", "config", "environment", "adjustable"):
        (forbidden,) = await play(replicas.here, [OpenCall(0, 0)], name=operated, **{option: "json"})
        assert f"option '{option}' is given by the operator, not by a task" in failed(forbidden).reason
    few = await play(replicas.here, [*numbers], config={"endless": True}, rows=3)
    assert sorted({number_in(outcome) for outcome in few}) == [10, 11, 12]


async def test_service_itself_does_not_run_an_environment_with_options_of_the_operator(workers: Workers) -> None:
    executor = ToolCallExecutor(EnvironmentExecutor(workers, 60.0), Toolbox())
    (refused,) = await play(executor, [OpenCall(0, 0)], name="tests.env.toys:OfTheOperator", address="ws://127.0.0.1:1")
    assert "runs only where MARLAAS_ENV_HOSTS_FILE names it" in failed(refused).reason


@pytest.mark.parametrize("module", UNPLAYABLE)
async def test_taskset_that_cannot_be_played_is_refused_with_the_reason(replicas: Replicas, module: str) -> None:
    (refused,) = await play(replicas.here, [OpenCall(0, 0)], taskset=module)
    assert UNPLAYABLE[module][1] in failed(refused).reason
    assert not failed(refused).is_infrastructure


async def test_taskset_that_is_not_there_is_refused_by_its_name(replicas: Replicas) -> None:
    (missing,) = await play(replicas.here, [OpenCall(0, 0)], taskset="missing")
    assert "taskset 'missing' cannot be loaded" in failed(missing).reason


@pytest.mark.parametrize("module", ["promptless", "pictures"])
async def test_prompt_that_is_not_text_is_void(replicas: Replicas, module: str) -> None:
    (void,) = await play(replicas.here, [OpenCall(0, 0)], taskset=module)
    assert "task 0 has no prompt of text alone" in failed(void).reason


async def test_environment_of_the_taskset_plays_the_user(replicas: Replicas) -> None:
    game: dict[str, JsonValue] = {"taskset": "guessing", "environment": {"prize": 2.0}}
    first = await begun(replicas.here, **game)
    assert [message.content for message in first.messages] == ["From 1 to 9.", "Guess my number.", "5", "Higher."]
    low = asked(await said(replicas.here, first.state, "3", **game))
    assert [(message.role, message.content) for message in low.messages] == [("user", "Higher.")]
    high = asked(await said(replicas.here, low.state, "9", **game))
    assert high.messages[0].content == "Lower."
    won = await said(replicas.here, high.state, "7", **game)
    assert won == Scored(2.0, {"won": 1.0, "guesses": 3.0, "cut_off": 0.0, "stopped": 0.0})
    given_up = await said(replicas.here, high.state, "I give up.", **game)
    assert given_up == Scored(0.0, {"won": 0.0, "guesses": 3.0, "cut_off": 0.0, "stopped": 1.0})


async def test_user_may_speak_first(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="guessing", config={"asks_first": False}, instruction="One digit.")
    assert [message.content for message in first.messages] == ["From 1 to 9.", "Guess!\n\nOne digit."]


async def test_any_replica_plays_the_next_turn_and_twice_is_once(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="guessing")
    low = asked(await said(replicas.there, first.state, "3", taskset="guessing"))
    assert await said(replicas.there, first.state, "3", taskset="guessing") == low
    high = asked(await said(replicas.here, low.state, "9", taskset="guessing"))
    for executor in (replicas.there, replicas.here, replicas.here):
        won = await said(executor, high.state, "7", taskset="guessing")
        assert isinstance(won, Scored) and won.reward == 1.0


async def test_members_of_a_group_play_their_own_episodes_from_one_opening(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="guessing")
    replies = [Reply("7"), Reply("3"), Reply("9")]
    won, low, high = await play(replicas.here, [StepCall(0, first.state, reply) for reply in replies], taskset="guessing")
    assert isinstance(won, Scored)
    assert [asked(one).messages[0].content for one in (low, high)] == ["Higher.", "Lower."]


async def test_more_episodes_than_are_held_are_played_to_their_ends(replicas: Replicas) -> None:
    first = await begun(replicas.there, taskset="guessing")
    states = [first.state] * 8
    for guesses in (range(8, 16), range(16, 24)):  # each its own way
        steps: list[Call] = [StepCall(0, state, Reply(str(guess))) for state, guess in zip(states, guesses, strict=True)]
        turns = [asked(outcome) for outcome in await play(replicas.there, steps, taskset="guessing")]
        assert {turn.messages[0].content for turn in turns} == {"Lower."}
        states = [turn.state for turn in turns]
    ends: list[Call] = [StepCall(0, state, Reply("7")) for state in states]
    for outcome in await play(replicas.there, ends, taskset="guessing"):
        assert isinstance(outcome, Scored) and (outcome.reward, outcome.components["guesses"]) == (1.0, 3.0)


async def test_episode_that_comes_out_otherwise_elsewhere_is_void(replicas: Replicas) -> None:
    vague: dict[str, JsonValue] = {"taskset": "guessing", "config": {"vague": True}}
    first = await begun(replicas.here, **vague)
    low = asked(await said(replicas.here, first.state, "3", **vague))
    void = failed(await said(replicas.there, low.state, "7", **vague))
    assert "replayed, reply 1 was followed by other messages than before: it is not deterministic" in void.reason
    assert void.is_infrastructure
    assert isinstance(await said(replicas.here, low.state, "7", **vague), Scored), "the held episode continues"


async def test_unavailable_user_is_no_reward_0(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="guessing")
    void = failed(await said(replicas.here, first.state, "0", taskset="guessing"))
    assert "ConnectionResetError: the game's server is unavailable" in void.reason and void.is_infrastructure


async def test_episode_that_has_used_up_its_turns_is_graded_as_far_as_it_came(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="guessing")
    over = await said(replicas.here, first.state, "3", last=FinalTurn("turns"), taskset="guessing")
    assert over == Scored(0.0, {"out_of_turns": 1.0, "won": 0.0, "guesses": 1.0, "cut_off": 1.0, "stopped": 0.0})
    won = await said(replicas.here, first.state, "7", last=FinalTurn("turns"), taskset="guessing")
    assert isinstance(won, Scored) and won.reward == 1.0


def called(*calls: tuple[str, str]) -> str:
    return "I look. " + "".join(f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>' for name, arguments in calls)


async def test_tools_of_the_taskset_are_called_and_their_state_is_graded(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="shelves")
    functions = [tool["function"] for tool in first.tools]
    assert [(one["name"], one["description"]) for one in functions if isinstance(one, dict)] == [
        ("find_titles", "Titles that begin with a word."),
        ("shelf_put", "Put a book on the shelf."),
    ]
    both = called(("find_titles", '{"word": "R"}'), ("shelf_put", '{"title": "Rivers"}'))
    found = asked(await said(replicas.here, first.state, both, taskset="shelves"))
    answers = [("tool", "Rivers"), ("tool", "Book 1 of yours, 2 in all.")]
    assert [(message.role, message.content) for message in found.messages] == answers
    two = called(("shelf_put", '{"title": "Dams"}'), ("shelf_put", '{"title": "Maps"}'))
    full = asked(await said(replicas.there, found.state, two, taskset="shelves"))
    assert full.messages[0].content == "Book 2 of yours, 3 in all.", "the calls were replayed elsewhere"
    assert full.messages[1].content.startswith("Error executing tool put")
    scored = await said(replicas.here, full.state, "Done.", taskset="shelves")
    counted = {"tool_calls": 4.0, "tool_errors": 0.0, "calls": 4.0, "answers": 4.0, "known": 2.0}
    assert scored == Scored(3.0, {**counted, "kept": 3.0})


async def test_episodes_share_the_tools_of_a_taskset_and_no_state(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="shelves")
    put = StepCall(0, first.state, Reply(called(("shelf_put", '{"title": "Dams"}'), ("find_titles", '{"word": "D"}'))))
    for outcome in await play(replicas.here, [put, put, put], taskset="shelves"):
        assert [message.content for message in asked(outcome).messages] == ["Book 1 of yours, 2 in all.", "Dams"]


async def test_call_that_is_no_call_is_answered_and_one_that_does_not_fit_too(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="shelves")
    nonsense = asked(await said(replicas.here, first.state, "<tool_call>Dams, please</tool_call>", taskset="shelves"))
    assert "is not JSON" in nonsense.messages[0].content
    wrong = asked(await said(replicas.here, nonsense.state, called(("shelf_put", "{}")), taskset="shelves"))
    assert wrong.messages[0].content.startswith("Error executing tool put")
    scored = await said(replicas.here, wrong.state, "Done.", taskset="shelves")
    assert isinstance(scored, Scored) and (scored.reward, scored.components["tool_errors"]) == (1.0, 1.0)


async def test_unavailable_tool_is_no_reward_0(replicas: Replicas) -> None:
    first = await begun(replicas.here, taskset="shelves")
    void = failed(await said(replicas.here, first.state, called(("find_titles", '{"word": "away"}')), taskset="shelves"))
    assert "tool 'find_titles'" in void.reason and void.is_infrastructure
