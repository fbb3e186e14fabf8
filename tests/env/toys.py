"""Small environments for the tests, found as `tests.env.toys:<Name>`."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from env_svc.contract import ChatMessage, Continue, Environment, EnvironmentUnavailable, Finish, Opening, Reply, Turn, WrongOptions


def say(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


class Countdown(Environment[dict[str, int]]):
    """Many turns: the policy must count down from a number, one number a turn."""

    def __init__(self, start: int = 3, step_s: float = 0.0) -> None:
        if start < 1:
            raise WrongOptions(f"start is {start}, expected 1 or more")
        self._start = start
        self._step_s = step_s

    async def open(self, index: int, seed: int) -> Opening[dict[str, int]]:
        start = self._start + (index + seed) % 2
        return Opening(say(f"Count down from {start}."), state={"next": start})

    async def step(self, state: dict[str, int], reply: Reply) -> Turn[dict[str, int]]:
        await asyncio.sleep(self._step_s)
        if reply.text.strip() != str(state["next"]):
            return Finish(0.0, {"left": float(state["next"])})
        if state["next"] == 1:
            return Finish(1.0, {"left": 0.0})
        return Continue(say("Go on."), {"next": state["next"] - 1})


class TakesAny(Countdown):
    """Takes any option, and does not say that it checks them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


class ComputingCountdown(Countdown):
    cpu_bound = True


class Lenient(Countdown):
    """Gives something for what was counted so far when the turns are used up."""

    async def conclude(self, state: dict[str, int]) -> Finish:
        return Finish(0.5, {"left": float(state["next"])})


class Obedient(Environment[Any]):
    """Does what the reply says, so that a test can choose how an environment goes wrong."""

    async def open(self, index: int, seed: int) -> Opening[Any]:
        if index == 13:
            raise EnvironmentUnavailable("the dungeon is closed")
        if index == 14:
            raise ZeroDivisionError("bad row")
        return Opening(say("Do it."), state={"row": index})

    async def step(self, state: Any, reply: Reply) -> Turn[Any]:
        word, _, argument = reply.text.partition(" ")
        await act(word, argument)
        return answer(word, argument, state)


async def act(word: str, argument: str) -> None:
    """Side effect before an answer, which may never come."""
    match word:
        case "raise":
            raise RuntimeError(argument)
        case "unavailable":
            raise EnvironmentUnavailable("as requested")
        case "exit":
            raise SystemExit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "sleep":
            await asyncio.sleep(float(argument))
        case "block":
            time.sleep(float(argument))
        case "await-file":
            while not Path(argument).exists():
                await asyncio.sleep(0.01)
        case "die":
            os._exit(7)
        case "spin":
            while True:
                pass
        case _:
            pass


def answer(word: str, argument: str, state: Any) -> Any:
    match word:
        case "reward":
            return Finish(float(argument), {"length": float(len(argument))})
        case "component":
            return Finish(1.0, {"part": float(argument)})
        case "string":
            return Finish("1.0")  # pyright: ignore
        case "touch":
            Path(argument).touch()
            return Finish(1.0)
        case "pid":
            return Finish(float(os.getpid()))
        case "memory":
            return Finish(float(len(bytearray(int(argument)))))
        case "big":
            return Continue(say("more"), b"x" * int(argument))
        case "object":
            return Continue(say("more"), object())
        case "silent":
            return Continue([], state)
        case "nothing":
            return None
        case _:
            return Finish(1.0)


class ComputingObedient(Obedient):
    cpu_bound = True


class WithoutStep(Environment[None]):
    """Not finished: has no step."""

    async def open(self, index: int, seed: int) -> Opening[None]:
        return Opening(say("?"), None)


class Typed(Environment[None]):
    """Options of several types."""

    def __init__(self, sizes: tuple[int, int] = (1, 2), *, words: list[str] | None = None, rate: float = 0.5, required: bool) -> None:
        self.sizes, self.words, self.rate, self.required = sizes, words, rate, required

    async def open(self, index: int, seed: int) -> Opening[None]:
        return Opening(say("?"), None)

    async def step(self, state: None, reply: Reply) -> Turn[None]:
        return Finish(1.0)


not_an_environment = os.system


class OfTheOperator(Countdown):
    """Runs only hosted."""

    operator_options = ("address",)

    def __init__(self, address: str) -> None:
        super().__init__()


class Heavy(Countdown):
    """Its constructor blocks until `gate` exists, and writes a line to `trace` each time."""

    def __init__(self, gate: str, trace: str) -> None:
        super().__init__()
        with Path(trace).open("a") as written:
            written.write("built\n")
        given_up_at = time.monotonic() + 200.0
        while not Path(gate).exists() and time.monotonic() < given_up_at:
            time.sleep(0.01)


class Unbuildable(Countdown):
    """Its constructor fails as its option says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        reason = "the hub is unavailable"
        raise {
            "unavailable": EnvironmentUnavailable(reason),
            "raise": RuntimeError(reason),
            "exit": SystemExit(reason),
            "late": TimeoutError(reason),
        }[how]


class ComputingUnbuildable(Unbuildable):
    cpu_bound = True
