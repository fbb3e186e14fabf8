"""OpenEnv servers as environments, and what becomes of an episode when a replica or the server ends.

Where OPENENV_PYTHON names the interpreter of a virtual environment that has openenv 0.10, it serves the game; otherwise
a stand-in that speaks its protocol.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgpack
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import JsonValue

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.adapters.openenv import OpenEnv, OpenEnvState
from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, StepCall, perform
from env_svc.contract import ChatMessage, Continue, EnvironmentUnavailable, Finish, Opening, Reply, ToolCall, WrongOptions
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.pool import HostPool
from marlaas.stack import servers
from tests.support.paths import ROOT
from tests.support.servers import running

GUESTS = Path(__file__).parents[1] / "guests"
REAL = os.environ.get("OPENENV_PYTHON")


@contextmanager
def serving(folder: Path, *, port: int | None = None, sessions: int = 8, kind: str = "plain") -> Iterator[int]:
    """The port of a server of its own."""
    port = servers.lasting_port() if port is None else port
    program = GUESTS / ("openenv_package.py" if REAL else "openenv_standin.py")
    argv = [REAL or sys.executable, str(program), str(port), str(sessions), kind]
    with running(servers.Command("openenv", argv), port, folder / "server.log") as process:
        try:
            yield port
        finally:
            process.kill()  # it would wait for its clients


@asynccontextmanager
async def playing(port: int, **options: object) -> AsyncIterator[OpenEnv]:
    environment = OpenEnv(f"ws://127.0.0.1:{port}", **{"action": "number", "observation": "text", **options})  # pyright: ignore
    try:
        yield environment
    finally:
        await environment.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(tmp_path_factory.mktemp("openenv")) as port:
        yield port


async def said(environment: OpenEnv, state: OpenEnvState, *texts: str) -> Continue[OpenEnvState]:
    """The turn after the last of these replies."""
    turn = Continue[OpenEnvState]((), state)
    for text in texts:
        found = await environment.step(turn.state, Reply(text))
        assert isinstance(found, Continue)
        turn = found
    return turn


async def finished(environment: OpenEnv, opening: Opening[OpenEnvState], *texts: str) -> Finish:
    turn = await said(environment, opening.state, *texts[:-1])
    last = await environment.step(turn.state, Reply(texts[-1]))
    assert isinstance(last, Finish)
    return last


async def test_replies_are_actions_and_rewards_add_up(port: int) -> None:
    async with playing(port, instruction="A number.") as adds, playing(port, reward="last") as last:
        opening = await adds.open(0, 5)
        assert opening.messages[0].content == "Guess a number from 1 to 9.\n\nA number."
        turn = await said(adds, opening.state, "10")
        assert turn.messages[0].content == "Lower."
        assert await finished(adds, opening, "10", "11", "12", "13") == Finish(pytest.approx(0.4), {"actions": 4.0, "malformed": 0.0})
        assert (await finished(last, opening, "10", "11", "12", "13")).reward == 0.1
        assert await adds.conclude(turn.state) == Finish(0.1, {"actions": 1.0, "malformed": 0.0})
        assert await last.conclude(opening.state) == Finish(0.0, {"actions": 0.0, "malformed": 0.0})


async def test_reply_that_is_no_action_is_answered_and_changes_nothing(port: int) -> None:
    async with playing(port) as environment, playing(port, action="", observation="") as whole:
        opening = await environment.open(0, 5)
        wrong = await said(environment, opening.state, "nine")
        assert wrong.messages[0].content.startswith("That is not an action: number: Input should be a valid integer")
        assert wrong.state["malformed"] == 1
        assert (await said(environment, wrong.state, "10")).messages[0].content == "Lower."
        opening = await whole.open(0, 5)
        assert opening.messages[0].content == '{"text": "Guess a number from 1 to 9.", "left": 4}'
        wrong = await said(whole, opening.state, "I guess nine.")
        assert wrong.messages[0].content == "That is not an action: reply with one JSON object and nothing else"
        right = await said(whole, wrong.state, '<think>{"number": 1}</think>\n```json\n{"number": 10}\n```')
        assert right.messages[0].content == '{"text": "Lower.", "left": 3}'


async def test_members_of_a_group_play_their_own_episodes_from_one_opening(port: int) -> None:
    async with playing(port) as environment:
        opening = await environment.open(0, 5)
        assert (await environment.open(0, 5)) == opening
        assert (await environment.open(1, 5)).state["seed"] != opening.state["seed"]
        high = await said(environment, opening.state, "10")
        low = await said(environment, opening.state, "-1")
        assert (high.state["rewards"], low.state["rewards"]) == ([0.1], [0.1])
        assert (await said(environment, high.state, "11")).state["actions"] == [{"number": "10"}, {"number": "11"}]
        assert (await said(environment, low.state, "-2")).state["actions"] == [{"number": "-1"}, {"number": "-2"}]


async def test_step_that_runs_twice_gives_the_same(port: int) -> None:
    async with playing(port) as environment:
        opening = await environment.open(0, 5)
        once = await said(environment, opening.state, "10", "11")
        assert await said(environment, opening.state, "10", "11") == once


async def test_more_episodes_than_the_server_has_room_for_take_turns(tmp_path: Path) -> None:
    with serving(tmp_path, sessions=2) as port:
        async with playing(port, sessions=2) as environment:
            openings = [await environment.open(index, 0) for index in range(6)]
            async with asyncio.TaskGroup() as group:
                turns = [group.create_task(said(environment, opening.state, "10", "11", "12")) for opening in openings]
            assert [turn.result().state["rewards"] for turn in turns] == [[0.1, 0.1, 0.1]] * 6
            async with playing(port) as another:
                with pytest.raises(EnvironmentUnavailable, match="opens no session"):
                    await another.open(0, 0)


async def test_restarted_server_receives_the_episode(tmp_path: Path) -> None:
    port = servers.lasting_port()
    async with playing(port) as environment:
        with serving(tmp_path, port=port):
            opening = await environment.open(0, 5)
            turn = await said(environment, opening.state, "10")
        with pytest.raises(EnvironmentUnavailable, match="no OpenEnv server at"):
            await environment.step(turn.state, Reply("11"))
        with serving(tmp_path, port=port):
            assert (await said(environment, turn.state, "11")).state["seen"][:2] == turn.state["seen"]


async def test_episode_that_comes_out_otherwise_elsewhere_is_void(tmp_path: Path) -> None:
    with serving(tmp_path, kind="vague") as port:
        async with playing(port) as environment, playing(port) as elsewhere:
            opening = await environment.open(0, 5)
            first = await environment.step(opening.state, Reply("10"))
            assert isinstance(first, Continue)
            with pytest.raises(EnvironmentUnavailable, match="replayed, action 1 of the episode gave another observation than before"):
                await elsewhere.step(first.state, Reply("11"))
            outcome = await perform(elsewhere, "game", StepCall(3, msgpack.packb(first.state) or b"", Reply("11")))
            assert isinstance(outcome, Failed) and outcome.is_infrastructure, "void, and never reward 0"
            assert isinstance(await environment.step(first.state, Reply("10")), Continue), "the waiting session resumes the episode"


async def test_environment_that_fails_there_is_no_reward_0(port: int) -> None:
    async with playing(port) as environment:
        opening = await environment.open(0, 5)
        with pytest.raises(RuntimeError, match=r"failed at step \(EXECUTION_ERROR\): division by zero"):
            await environment.step(opening.state, Reply("0"))
        assert isinstance(await environment.step(opening.state, Reply("10")), Continue)


async def test_call_that_is_given_up_does_not_wait_for_the_server() -> None:
    asked: list[str] = []
    left = asyncio.Event()

    async def hang(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        try:
            async for message in socket:
                asked.append(json.loads(message.data)["type"])
                if asked[-1] == "reset":
                    await socket.send_json({"type": "observation", "data": {"observation": {"text": "Wait."}, "done": False}})
        finally:
            left.set()
        return socket

    app = web.Application()
    app.router.add_get("/ws", hang)
    async with TestServer(app) as server, playing(server.port or 0) as environment:
        opening = await environment.open(0, 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await environment.step(opening.state, Reply("10"))
        await left.wait()
        assert asked == ["reset", "step"], "its host would be killed while it waited for an answer to `close`"


@pytest.mark.parametrize("options", [{"server": "10.0.0.7:8000"}, {"sessions": 0}, {"tools": True, "action": "number"}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(WrongOptions):
        OpenEnv(**{"server": "ws://localhost:1", **options})  # pyright: ignore


def hosted(port: int) -> HostedConfig:
    options: dict[str, JsonValue] = {"server": f"ws://127.0.0.1:{port}", "action": "number", "observation": "text"}
    return HostedConfig(
        python=sys.executable, environment="env_svc.adapters.openenv:OpenEnv", options=options, variables={"PYTHONPATH": str(ROOT)}
    )


async def play(executor: EnvironmentExecutor, call: Call, **options: JsonValue) -> Outcome:
    async for batch in executor.run(Claimant("a", "t"), spec.EnvironmentSection(name="game", options=options), [call], 60.0):
        return batch[0][1]
    raise AssertionError


async def test_episode_continues_at_another_replica_when_its_own_dies(workers: Workers, port: int) -> None:
    first, second = (HostPool({"game": hosted(port)}) for _ in range(2))
    try:
        await first.start()
        one, other = EnvironmentExecutor(workers, 60.0, first), EnvironmentExecutor(workers, 60.0, second)
        opened = await play(one, OpenCall(0, 5))
        assert isinstance(opened, Opened)
        asked = await play(one, StepCall(0, opened.state, Reply("10")))
        assert isinstance(asked, Continued) and asked.messages[0].content == "Lower."
        await first.stop()
        continued = await play(other, StepCall(0, asked.state, Reply("11")))
        assert isinstance(continued, Continued)
        there = msgpack.unpackb(continued.state)
        assert (there["actions"], there["rewards"]) == ([{"number": "10"}, {"number": "11"}], [0.1, 0.1])
        over = [await play(other, StepCall(0, continued.state, Reply("12")))]
        assert isinstance(over[0], Continued)
        scored = await play(other, StepCall(0, over[0].state, Reply("13")))
        assert scored == Scored(pytest.approx(0.4), {"actions": 4.0, "malformed": 0.0})  # pyright: ignore
    finally:
        await first.stop()
        await second.stop()


async def test_task_does_not_choose_the_server(workers: Workers, port: int) -> None:
    hosts = HostPool({"game": hosted(port)})
    try:
        refused = await play(EnvironmentExecutor(workers, 60.0, hosts), OpenCall(0, 5), server="ws://169.254.169.254")
        assert isinstance(refused, Failed) and "option 'server' is given by the operator" in refused.reason
    finally:
        await hosts.stop()


async def test_tools_of_the_server_are_called(tmp_path: Path) -> None:
    with serving(tmp_path, kind="tools") as port:
        async with (
            playing(port, action="", observation="", tools=True) as environment,
            playing(port, action="", observation="", tools=True) as elsewhere,
        ):
            opening = await environment.open(0, 5)
            assert opening.messages[0].content == '{"message": "Shout!"}'
            (tool,) = opening.tools
            assert isinstance(tool, dict)
            function = tool["function"]
            assert isinstance(function, dict) and (function["name"], function["description"]) == ("shout", "Say it loudly.")
            calls = (ToolCall("shout", {"text": "hello"}), ToolCall("shout", {"text": "you"}), ToolCall("whisper", {}))
            turn = await environment.step(opening.state, Reply("calls", calls=calls))
            assert isinstance(turn, Continue)
            assert turn.messages[:2] == [ChatMessage(role="tool", content="HELLO"), ChatMessage(role="tool", content="YOU")]
            assert turn.messages[2].content.startswith("Error: ")
            assert isinstance(await elsewhere.step(turn.state, Reply("calls", calls=calls[:1])), Continue)
            assert await environment.step(turn.state, Reply("Done.")) == Finish(0.0, {"actions": 3.0, "malformed": 0.0})
        async with playing(port, action="", observation="metadata.message", tools=True) as environment:
            assert (await environment.open(0, 5)).messages[0].content == "Shout!"
