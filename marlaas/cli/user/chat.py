"""`marlaas chat`: a conversation with a version of a task, in the terminal."""

import asyncio
import os
import re
import sys
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marlaas.cli.session import DEFAULT_DATA, Data, echo, http_key, is_insecure, quiet, tenant_named, tls_files

if TYPE_CHECKING:
    from pydantic import JsonValue

    from marlaas.over_http.chat import Chat
    from marlaas.over_http.door import HttpDoor

Url = Annotated[str, typer.Option("--url", help="A gateway, https://…; empty: that of the stack in --data.", envvar="MARLAAS_URL")]
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
ACCEPTED_S = 10.0
"""Maximum seconds until a gateway knows a newly made key."""
SHOWN = "\n\t"
"""Control characters that are sent to a terminal unchanged."""


def chat(  # noqa: PLR0913 - each is an option with a name of its own
    model: Annotated[str, typer.Argument(help="TASK (its latest version), TASK@best, TASK@7, an alias, or a pool for its base model.")],
    prompt: Annotated[str | None, typer.Argument(help="What to say; default: each line of the input is a turn.")] = None,
    data: Data = DEFAULT_DATA,
    url: Url = "",
    system: Annotated[str | None, typer.Option(help="The system's message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    top_p: Annotated[float | None, typer.Option(max=1)] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    min_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each reply; default: as many as the context has room for.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same for each reply.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a reply; up to four.")] = None,
) -> None:
    """Talk to a version of a task, even while it trains. Replies are printed as they are sampled."""
    given: dict[str, JsonValue] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "max_tokens": max_tokens}
    given |= {"seed": seed, "stop": list(stop) if stop else None}
    settings = {name: value for name, value in given.items() if value is not None}

    if prompt is not None and not prompt.strip():
        raise typer.BadParameter("it is empty; say something, or leave it out to type turns", param_hint="PROMPT")

    where = url or _gateway_of(data)
    named = http_key()
    own = None if named or url else _operators_key(data)

    async def run() -> None:
        from marlaas.over_http.chat import Chat
        from marlaas.over_http.door import entered

        if own:
            await _until_accepted(where, own)
        limits = {"timeout_s": 10.0, "patience_s": 10.0}
        async with entered(where, tenant_named(), key=named or own, insecure=is_insecure(), tls=tls_files(), **limits) as door:
            talk = Chat(
                door.connection,
                door.params(),
                await _version_of(door, model),
                system,
                settings,
                waits=lambda why: echo(f"[{why}]", to=sys.stderr),
            )
            if prompt is not None:
                await _reply(talk, prompt)
                return
            while (line := await asyncio.to_thread(_line)) is not None:
                if line.strip():
                    await _reply(talk, line)

    quiet()
    asyncio.run(run())


async def _version_of(door: "HttpDoor", model: str) -> str:
    """`model`, with the latest version added if it is the id of a task alone."""
    from common.client_api.asking import UnknownHere
    from common.client_api.training.progress import read_status
    from common.spec import TASK_ID_PATTERN

    if re.fullmatch(TASK_ID_PATTERN, model) is None:
        return model
    try:
        return f"{(await read_status(door, model)).task}@latest"
    except UnknownHere:  # a pool or an alias
        return model


def _gateway_of(data: Path) -> str:
    """Address of the stack's gateway. Raises: StackError if no stack runs, or its gateway does not answer."""
    from common.client_api.errors import ClientError
    from marlaas.stack.state_files import DASHBOARD, dashboard_of, running_stack

    if os.environ.get("MARLAAS_NATS_URL"):
        raise ClientError("a chat goes over HTTP: name the gateway with --url https://HOST, or MARLAAS_URL")
    return dashboard_of(running_stack(data)).removesuffix(DASHBOARD)


def _operators_key(data: Path) -> str | None:
    """HTTP key for the gateway of the stack in `data`; None if this user is not its operator."""
    from marlaas.cli.operator.keys import is_operator, with_operator
    from marlaas.tenancy.keys import own_http_key

    return with_operator(data, "", None, own_http_key) if is_operator(data, None) else None


async def _until_accepted(where: str, key: str) -> None:
    """Wait until the gateway accepts a key that PostgreSQL has already stored. Raises: NotPermitted after ACCEPTED_S."""
    from common.client_api.errors import NotPermitted
    from marlaas.over_http.connection import PAUSE, Connection

    began, attempt = time.monotonic(), 0
    async with Connection.open(where, key, tls_files(), ACCEPTED_S) as connection:
        while True:
            try:
                await connection.request("GET", "/v1/key")
                return
            except NotPermitted:
                attempt += 1
                if time.monotonic() - began > ACCEPTED_S:
                    raise
            await asyncio.sleep(PAUSE.pause_s(attempt))


def _line() -> str | None:
    """The next turn; None at the end of the input."""
    if sys.stdin.isatty():
        print("> ", end="", flush=True, file=sys.stderr)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


async def _reply(talk: "Chat", text: str) -> None:
    is_thinking, is_terminal, last = False, sys.stdout.isatty(), "\n"
    async for piece in talk.say(text):
        if piece.thought and is_terminal:  # a program reads only the reply
            print(f"{'' if is_thinking else DIM}{visible(piece.thought)}", end="", flush=True)
            is_thinking = True
        if piece.text:
            if is_thinking:
                print(f"{PLAIN}\n", end="")
                is_thinking = False
            print(visible(piece.text), end="", flush=True)
            last = piece.text[-1]
        if piece.finish == "length":
            echo(f"{PLAIN if is_thinking else ''}\n[cut off: --max-tokens, or the context, is used up]", to=sys.stderr)
    if is_thinking:
        print(PLAIN)
    elif last != "\n":
        print()


def visible(text: str) -> str:
    """A model's text for a terminal: characters that control it, or change the reading order, are shown as codes."""
    return "".join(f"\\u{{{ord(char):x}}}" if _controls(char) else char for char in text)


def _controls(char: str) -> bool:
    is_bidirectional = unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return (unicodedata.category(char) == "Cc" and char not in SHOWN) or is_bidirectional
