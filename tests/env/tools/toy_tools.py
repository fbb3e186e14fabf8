"""Small tools for the tests, found as `tests.env.tools.toy_tools:<Name>`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.tools.tool import Arguments, CallError, Tool, ToolSource, ToolUnavailable


class Parrot(Tool):
    """Follows its text, so that a test can choose how a tool fails."""

    name = "parrot"
    description = "Says what it hears."
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def __init__(self, times: int = 1) -> None:
        if times < 1:
            raise WrongOptions(f"times is {times}, expected 1 or more")
        self._times = times

    async def call(self, arguments: Arguments) -> str:
        word, _, rest = str(arguments["text"]).partition(" ")
        match word:
            case "refuse":
                raise CallError(rest)
            case "away":
                raise ToolUnavailable(rest)
            case "break":
                raise ZeroDivisionError(rest)
            case "sleep":
                await asyncio.sleep(float(rest))
            case "await-file":
                while not Path(rest).exists():
                    await asyncio.sleep(0.01)
            case _:
                pass
        return str(arguments["text"]) * self._times


class Aviary(ToolSource):
    """Two birds."""

    async def tools(self) -> Sequence[Tool]:
        other = Parrot()
        other.name = "magpie"
        return [Parrot(), other]


class Cage(ToolSource):
    """Writes a line to `trace` for each attempt. With `away` it is unavailable; otherwise its bird comes when `gate` exists."""

    def __init__(self, gate: str, trace: str, away: bool = False) -> None:
        self._gate, self._trace, self._away = Path(gate), Path(trace), away

    async def tools(self) -> Sequence[Tool]:
        with self._trace.open("a") as written:
            written.write("tried\n")
        if self._away:
            raise ToolUnavailable("the cage is empty")
        given_up_at = asyncio.get_running_loop().time() + 200.0
        while not self._gate.exists() and asyncio.get_running_loop().time() < given_up_at:
            await asyncio.sleep(0.01)
        return [Parrot()]


class Nameless(Parrot):
    name = "has spaces"


class Schemeless(Parrot):
    parameters = {"type": "objekt"}


class Talk(Environment[dict[str, int]]):
    """Gives 1 for the reply "done"; asks once more for anything else."""

    async def open(self, index: int, seed: int) -> Opening[dict[str, int]]:
        return Opening([ChatMessage(role="user", content="Talk.")], {"steps": 0})

    async def step(self, state: dict[str, int], reply: Reply) -> Turn[dict[str, int]]:
        return Finish(float(reply.text == "done"), {"steps": float(state["steps"] + 1)})

    async def conclude(self, state: dict[str, int]) -> Finish:
        return Finish(0.25)


class ComputingTalk(Talk):
    cpu_bound = True
    tools = ("tests.env.tools.toy_tools:Parrot",)


class Equipped(Talk):
    """Has a tool of its own that is an object."""

    def __init__(self, times: int = 2) -> None:
        self.tools = (Parrot(times),)


KEY: dict[str, object] = {
    "type": "function",
    "function": {"name": "open_door", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}},
}


class Door(Environment[None]):
    """Plays a tool itself, and asks for another by name."""

    async def open(self, index: int, seed: int) -> Opening[None]:
        return Opening([ChatMessage(role="user", content="Open it.")], None, tools=["tests.env.tools.toy_tools:Parrot", KEY])  # pyright: ignore

    async def step(self, state: None, reply: Reply) -> Turn[None]:
        keys = [call.arguments.get("key") for call in reply.calls]
        return Finish(float(keys == ["gold"]))
