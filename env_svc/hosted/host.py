"""Host process: `python -m env_svc.hosted.host module:attribute` serves one environment over standard input and output.

The service starts it under the environment's interpreter. It ends when standard input closes, even while it computes. Prints of
the environment go to standard error. With `--package FOLDER` the environment is imported from this folder, after the
interpreter's own packages, and an error in it is reported as a frame. With `--proxy SOCKET` the usual environment variables point HTTP
clients to the proxy behind this socket.
"""

import argparse
import asyncio
import os
import signal
import sys
import threading
from typing import Any

from common.caches import LRUCache
from env_svc.calls import BuildFailed, build_safely, failed, perform
from env_svc.errors import WrongOptions
from env_svc.hosted import wire
from env_svc.hosted.forwarder import forward, proxy_variables
from env_svc.registry import AnyEnvironment, construct, declares_options, find, find_in_module

MAX_BUILT = 256


class Host:
    """Runs calls for environments of one class; it builds an object for each name and options."""

    def __init__(self, found: type[AnyEnvironment], output: int) -> None:
        self._found = found
        self._output = output
        self._built: LRUCache[str, AnyEnvironment] = LRUCache(MAX_BUILT)
        self._runners: dict[int, asyncio.Task[None]] = {}

    def receive(self, frame: wire.Frame) -> None:
        """Start the call that a frame contains, or cancel the call that it names."""
        if "cancel" in frame:
            runner = self._runners.get(frame["cancel"])
            if runner is not None:
                runner.cancel()
            return
        number: int = frame["id"]
        self._runners[number] = asyncio.ensure_future(self._answer(number, frame))

    def send(self, frame: wire.Frame) -> None:
        rest = memoryview(wire.pack(frame))
        while rest:
            rest = rest[os.write(self._output, rest) :]

    async def _answer(self, number: int, frame: wire.Frame) -> None:
        try:
            name, options = frame["name"], frame["options"]
            environment = build_safely(name, lambda: self._built.get(f"{name}:{options}", lambda: self._build(name, options)))
            outcome = await perform(environment, name, wire.decode(frame["call"]))
        except BuildFailed as error:
            outcome = error.failure
        except asyncio.CancelledError:
            outcome = failed("cancelled")
        finally:
            del self._runners[number]
        self.send({"id": number, "outcome": wire.encode(outcome)})

    def _build(self, name: str, options: dict[str, Any]) -> AnyEnvironment:
        return construct(self._found, name, options)


async def serve(found: type[AnyEnvironment], output: int) -> None:
    """Answer until standard input ends."""
    host, loop, ended = Host(found, output), asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        while (frame := wire.read_frame(sys.stdin.buffer.read)) is not None:
            loop.call_soon_threadsafe(host.receive, frame)
        if os.getpgrp() == os.getpid():  # as the service starts it; processes of the environment end with it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)  # even while the event loop is busy: its answers have no reader

    host.send(
        {
            "ready": wire.PROTOCOL,
            "cpu_bound": found.cpu_bound,
            "components": list(found.components),
            "arguments": list(found.arguments()),
            "operator_options": list(found.operator_options),
            "declares_options": declares_options(found),
        }
    )
    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


def main() -> None:
    output = os.dup(1)
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("environment")
    parser.add_argument("--package")
    parser.add_argument("--proxy")
    given = parser.parse_args()
    if given.proxy:
        os.environ.update(proxy_variables(forward(given.proxy)))
    if given.package:
        sys.path.append(given.package)
    try:
        found = find_in_module(given.environment) if given.package else find(given.environment)
    except WrongOptions as error:
        if given.package:
            os.write(output, wire.pack({"refused": str(error)[: wire.MAX_REFUSAL_CHARS]}))
        sys.exit(str(error))
    asyncio.run(serve(found, output))


if __name__ == "__main__":
    main()
