"""Environments of the tests of hosts, as a module of the interpreter that plays them: `conftest.py` copies this file there."""

import asyncio
import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import tabulate

from env_svc.contract import ChatMessage, Continue, Environment, EnvironmentUnavailable, Finish, Opening, Reply, Turn

State = dict[str, Any]

time.sleep(float(os.environ.get("GUEST_IMPORTS_FOR_S", 0)))


class Guest(Environment[State]):
    components = ("length",)

    def __init__(self, greeting: str = "Hello", *, secret: str = "") -> None:
        self.greeting, self.secret = greeting, secret
        if greeting == "away":
            raise EnvironmentUnavailable("the hub is unavailable")
        if greeting == "broken":
            raise RuntimeError("oops")

    async def open(self, index: int, seed: int) -> Opening[State]:
        print("what an environment prints goes to the log")
        said = f"{self.greeting} {index} {sys.prefix} {tabulate.__version__} {sorted(n for n in os.environ if n.startswith('MARLAAS'))}"
        return Opening([ChatMessage(role="user", content=said)], {"pid": os.getpid(), "row": index})

    async def step(self, state: State, reply: Reply) -> Turn[State]:
        word, _, argument = reply.text.partition(" ")
        if word == "die":
            os._exit(7)
        if word == "sleep":
            await asyncio.sleep(float(argument))
        if word == "block":
            time.sleep(float(argument))
        if word in ("fork", "leave") and os.fork() == 0:  # and so with the host's output open
            if word == "leave":
                os.setsid()
            time.sleep(float(argument))
            os._exit(0)
        if word == "raise":
            raise RuntimeError(argument)
        if word == "read":
            raise RuntimeError(Path(argument).expanduser().read_text())
        if word == "unavailable":
            raise EnvironmentUnavailable(argument)
        return Finish(float(os.getpid()), {"length": float(len(reply.text))})


class ComputingGuest(Guest):
    cpu_bound = True


class Loose(Guest):
    def __init__(self, **options: str) -> None:
        super().__init__(**options)


class Many(Guest):
    def __init__(self, which: str) -> None:
        super().__init__(which)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        return ("one", "two")


class Intruder(Environment[State]):
    """Runs each reply as code, and answers with what it prints or raises."""

    async def open(self, index: int, seed: int) -> Opening[State]:
        return Opening([ChatMessage(role="user", content="?")], {})

    async def step(self, state: State, reply: Reply) -> Turn[State]:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(reply.text, "reply", "exec"), {})
        except BaseException as error:
            printed.write(f"{type(error).__name__}: {error}")
        return Continue([ChatMessage(role="user", content=printed.getvalue()[-2000:] or "nothing")], state)


class ComputingIntruder(Intruder):
    cpu_bound = True
