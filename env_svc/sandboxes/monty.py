"""Sandbox `monty`: an interpreter of a large part of Python, in Rust, without access to anything outside. The door to pydantic-monty.

It runs in worker processes of its own, so a crash costs one worker. A run takes half a millisecond. It has no generators, few modules
and no packages: good for calculators and short programs. `monty_lacks.py` distinguishes a missing feature from a wrong program.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pydantic_monty as monty

from common.errors import Fatal
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes import monty_lacks
from env_svc.sandboxes.output import MAX_ERROR_CHARS, CapturedOutput, OutputLimitExceeded
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox, Stopped

GRACE_S = 1.0
"""Time after a run's limit, which ends it from inside, before its worker is killed."""


class MontySandbox(Sandbox):
    """A pool of interpreters, at most `processes` of them."""

    name = "monty"

    def __init__(self, processes: int | None = None) -> None:
        self._new_pool = lambda: monty.AsyncMonty(
            max_processes=processes, feed_duration_limit_grace=GRACE_S, turn_duration_limit_grace=GRACE_S
        )
        self._pool: monty.AsyncMonty | None = None
        self._starting = asyncio.Lock()

    @property
    def meaning(self) -> str:
        return "an interpreter of a part of Python: attempts whose programs need more are void, and no policy learns from them"

    async def start(self) -> None:
        try:
            await self._start_pool()
        except (OSError, monty.MontyError, RuntimeError) as error:
            raise Fatal(f"the sandbox 'monty' does not start: {error}") from None

    async def run(self, source: str, bounds: Bounds) -> RunResult:
        printed, flooded = CapturedOutput(bounds.output_bytes), asyncio.Event()
        loop = asyncio.get_running_loop()

        def add(_: object, text: str) -> None:
            try:
                printed.add(text.encode())
            except OutputLimitExceeded:  # raised here it would end the run only at its time limit
                loop.call_soon_threadsafe(flooded.set)

        try:
            pool = await self._start_pool()
            async with pool.checkout(limits=_limits(bounds), os_policy={"sleep_system_max": math.inf}) as session:
                # None at the end: any other value, however large, would have to be converted.
                await _cancel_when(flooded, session.feed_run(f"{source}\nNone", print_callback=add))
        except monty.MontyCrashedError as error:
            return RunResult(printed.output, *(("it took too long", "time") if error.timed_out else ("it crashed", "memory")))
        except monty.MontySyntaxError as error:
            return RunResult("", error.display("type-msg")[:MAX_ERROR_CHARS])
        except monty.MontyRuntimeError as error:
            return _run_result(error, printed)
        except (OSError, monty.MontyError, RuntimeError) as error:
            raise SandboxUnavailable(f"monty: {type(error).__name__}: {error}") from error
        return RunResult(printed.output, "it printed too much", "output") if printed.is_too_much else RunResult(printed.output)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.__aexit__(None, None, None)
            self._pool = None

    def unsupported(self, error: str) -> str | None:
        last = error.strip().rpartition("\n")[2]
        return last if monty_lacks.lacks(last) else None

    def differs(self, source: str) -> str | None:
        return monty_lacks.differs(source)

    async def _start_pool(self) -> monty.AsyncMonty:
        async with self._starting:
            if self._pool is None:
                self._pool = await self._new_pool().__aenter__()
            return self._pool


async def _cancel_when(flooded: asyncio.Event, running: Coroutine[Any, Any, Any]) -> None:
    """Await a run, or cancel it once it has printed too much, which ends its worker."""
    run, flood = asyncio.ensure_future(running), asyncio.ensure_future(flooded.wait())
    try:
        await asyncio.wait({run, flood}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
    finally:
        for one in (run, flood):
            one.cancel()
        await asyncio.gather(run, flood, return_exceptions=True)


def _limits(bounds: Bounds) -> monty.ResourceLimits:
    return {"max_feed_duration_secs": bounds.time_s, "max_total_sleep_secs": bounds.time_s, "max_memory": bounds.memory_bytes}


def _run_result(error: monty.MontyRuntimeError, printed: CapturedOutput) -> RunResult:
    text = error.display("type-msg")
    if printed.is_too_much:
        return RunResult(printed.output, "it printed too much", "output")
    stopped: Stopped | None = None
    if text.startswith("TimeoutError") and "limit exceeded" in text:
        stopped = "time"
    elif text.startswith("MemoryError") and ("limit exceeded" in text or "exceeded its memory limit" in text):  # by a value, by all
        stopped = "memory"
    return RunResult(printed.output, error.display("traceback")[-MAX_ERROR_CHARS:], stopped)
