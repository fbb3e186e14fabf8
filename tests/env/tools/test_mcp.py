"""Tools of an MCP server that runs as a process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from env_svc.contract import WrongOptions
from env_svc.tools import mcp
from env_svc.tools.mcp import Mcp, servers_of
from env_svc.tools.registry import build
from env_svc.tools.tool import CallError, Tool, ToolUnavailable
from env_svc.tools.toolbox import validated
from tests.support.waiting import eventually

SERVER, ODD = (Path(__file__).with_name(name) for name in ("mcp_server.py", "odd_mcp_server.py"))


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file, with one server that works, one that takes a second to start and one that does not start."""
    path = tmp_path / "servers.toml"
    path.write_text(
        f'[birds]\ncommand = ["{sys.executable}", "{SERVER}"]\nenvironment = {{ NEST = "high" }}\n'
        f'[sleepy]\ncommand = ["{sys.executable}", "{SERVER}"]\n'
        f'environment = {{ STARTS_IN_S = "1", STARTED = "{tmp_path / "started"}" }}\n'
        '[gone]\ncommand = ["/no/such/program"]\n'
        f'[odd]\ncommand = ["{sys.executable}", "{ODD}"]\n'
        f'[looping]\ncommand = ["{sys.executable}", "{ODD}"]\nenvironment = {{ LOOPS = "yes" }}\n'
    )
    monkeypatch.setenv("MARLAAS_ENV_TOOL_SERVERS", str(path))
    monkeypatch.setenv("MARLAAS_NATS_URL", "nats://user:password@localhost")
    monkeypatch.setattr(mcp, "CONNECT_TIMEOUT_S", 200.0)  # a start imports `mcp`, on a machine that is busy
    mcp._servers.cache_clear()
    return path


@pytest.fixture
async def source(servers: Path) -> AsyncIterator[Mcp]:
    source = Mcp("birds", time_s=30.0)
    yield source
    await source.close()
    mcp._servers.cache_clear()


async def by_name(source: Mcp) -> dict[str, Tool]:
    return {tool.name: tool for tool in await source.tools()}


async def test_servers_tools_are_listed_and_called(source: Mcp) -> None:
    tools = await by_name(source)
    assert sorted(tools) == ["call", "die", "doze", "variables"]
    assert tools["call"].description == "The bird's call."
    assert await tools["call"].call({"bird": "owl", "times": 2}) == "hoohoo"
    assert "'bird' is a required property" in (validated(tools["call"]).error_in({}) or "")


async def test_error_of_a_tool_is_an_answer(source: Mcp) -> None:
    with pytest.raises(CallError, match="call"):
        await (await by_name(source))["call"].call({"bird": "cat"})


async def test_server_does_not_see_the_services_variables(source: Mcp) -> None:
    seen = str(await (await by_name(source))["variables"].call({})).split()
    assert "NEST" in seen
    assert not [name for name in seen if name.startswith("MARLAAS")]


async def test_server_that_dies_is_unavailable_and_then_restarted(source: Mcp) -> None:
    tools = await by_name(source)
    with pytest.raises(ToolUnavailable, match="server 'birds'"):
        await tools["die"].call({})
    assert await tools["call"].call({"bird": "owl"}) == "hoo"


async def test_impatient_callers_do_not_keep_a_server_from_starting(servers: Path) -> None:
    calls = 0
    source = Mcp("sleepy")

    async def is_listed() -> bool:
        nonlocal calls
        calls += 1
        try:
            async with asyncio.timeout(0.3 if calls < 10 else 200):
                return len(await source.tools()) > 0
        except TimeoutError:
            return False

    await eventually(is_listed)
    assert calls > 1
    assert (servers.parent / "started").read_text() == "started\n"
    await source.close()


async def test_slow_call_is_answered_while_the_server_lives(source: Mcp) -> None:
    doze = (await by_name(source))["doze"]
    doze._time_s = 0.5  # pyright: ignore
    with pytest.raises((CallError, ToolUnavailable), match=r"took more than 0.5 s|TimeoutError"):
        await doze.call({"seconds": 2.0})


async def test_server_that_does_not_start_is_unavailable(servers: Path) -> None:
    source = Mcp("gone")
    with pytest.raises(ToolUnavailable, match="server 'gone'"):
        await source.tools()
    await source.close()


async def test_some_tools_can_be_chosen(servers: Path) -> None:
    source = Mcp("birds", tools=["call"])
    assert [tool.name for tool in await source.tools()] == ["call"]
    await source.close()
    wrong = Mcp("birds", tools=["cal"])
    with pytest.raises(WrongOptions, match="tool server 'birds' has no tool 'cal'; did you mean 'call'"):
        await wrong.tools()
    await wrong.close()


async def test_tools_of_all_pages_arrive_and_so_does_every_answer(servers: Path) -> None:
    source = Mcp("odd", time_s=30.0)
    tools = await by_name(source)
    assert len(tools) == 13 and validated(tools["any"]).error_in({"value": {"a": 1}}) is None
    client = source._connection._client
    answers = {
        "any": "plain",
        "dangling": "plain",
        "unfit": "plain",
        "unstructured": "plain",
        "structured": '{"a": [1, "é"]}',
        "picture": "(image, image/png)\nplain",
        "sound": "(audio, audio/wav)",
        "link": "(resource file:///n) notes Of May.",
        "text_file": "in it",
        "blob": "(resource a:b, binary)",
        "nothing": "",
    }
    assert {name: await tools[name].call({"value": 1}) for name in answers} == answers
    with pytest.raises(CallError, match="plain"):
        await tools["wrong"].call({})
    assert source._connection._client is client, "no answer drops the connection that all episodes share"
    await source.close()


async def test_pages_that_begin_again_end(servers: Path) -> None:
    source = Mcp("looping", time_s=30.0)
    assert list(await by_name(source)) == ["any", "dangling", "unfit"]
    source._chosen = ["unfit"]
    assert list(await by_name(source)) == ["unfit"]
    await source.close()


def test_task_can_only_name_the_operators_servers(servers: Path) -> None:
    with pytest.raises(WrongOptions, match="no tool server 'bird' on this replica; did you mean 'birds'"):
        build("mcp", {"server": "bird"})
    with pytest.raises(WrongOptions, match="has no option 'command'"):
        build("mcp", {"server": "birds", "command": ["touch", "/tmp/x"]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a]\n", "give either a command or a url"),
        ("[a]\nurl = 'x'\ncommand = ['y']", "give either"),
        ("[a", "Expected"),
        ("[a]\nport = 1", "a.port: no such field"),
    ],
)
def test_wrong_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "servers.toml").write_text(text)
    with pytest.raises(WrongOptions, match=rf"servers.toml is .*: .*{reason}"):
        servers_of(tmp_path / "servers.toml")
