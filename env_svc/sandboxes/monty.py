"""Sandbox `monty`: an interpreter of a large part of Python, in Rust, without access to anything outside. The door to pydantic-monty.

It runs in worker processes of its own, so a crash costs one worker. A run takes half a millisecond. It has no generators, few modules
and no packages: good for calculators and short programs. `lacks` distinguishes a missing feature from a wrong program."""

import ast
import asyncio
import builtins
import importlib
import math
import re
import sys
import types
from collections.abc import Coroutine, Iterator
from typing import Any

import pydantic_monty as monty

from common.errors import Fatal
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes.sandbox import MAX_ERROR_CHARS, Bounds, CapturedOutput, OutputLimitExceeded, RunResult, Sandbox, Stopped

GRACE_S = 1.0
"""Seconds between a run's time limit, enforced inside, and the kill of its worker."""


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
        return last if lacks(last) else None

    def differs(self, source: str) -> str | None:
        return differs(source)

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


MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'(; '[\w.]+' is not a package)?")
MODULE_ATTRIBUTE = re.compile(r"AttributeError: module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
IMPORTED = re.compile(r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'.*")
ATTRIBUTE = re.compile(r"AttributeError: (?:type object )?'(?P<type>[\w.]+)' (?:object )?has no attribute '(?P<name>\w+)'")
NAME = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
SYNTAX = ("NotImplementedError", "SyntaxError", "TypeError", "RuntimeError", "ValueError")
SYNTAX_WORDS = ("not yet support", "not supported", "not implemented", "internal error in monty")
UNLIKE_CPYTHON = (
    re.compile(r"TypeError: 'list' object is not an iterator"),  # what a generator expression is here
    re.compile(r"TypeError: cannot convert '\w+' object to bytes"),  # of iterables of numbers
)
_HONOURED_NAMES = """
    init post_init repr str eq hash call getitem setitem contains iter next enter exit neg pos invert abs int float index round
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul
    and rand or ror xor rxor lshift rlshift rshift rrshift
"""
HONOURED = {f"__{name}__" for name in _HONOURED_NAMES.split()}
"""Special methods that monty calls as CPython does; it ignores the others without an error."""


def lacks(error: str) -> bool:
    """Whether an error's last line names a feature that CPython has and monty lacks."""
    return any(is_lacking(error) for is_lacking in (_syntax, _module, _module_attribute, _attribute, _name, _other))


def differs(source: str) -> str | None:
    """The part of a program that monty runs differently without an error; None if none is known, or it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next(_differences(tree), None)


def _differences(tree: ast.AST) -> Iterator[str]:
    consumed = {id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield from (f"line {one.lineno}: '{name}' is not honoured" for one in node.body for name in _special(one))
            case ast.GeneratorExp() if id(node) not in consumed:
                yield f"line {node.lineno}: a generator expression is a list"
            case ast.ExceptHandler(type=ast.Name(id="AssertionError"), name=str()):
                yield f"line {node.lineno}: the text of a failed assertion is another"
            case _:
                pass


def _special(statement: ast.stmt) -> list[str]:
    """Special names that a class's statement defines, and monty ignores."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            names = [name]
        case ast.Assign(targets=targets):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            names = []
    return [name for name in names if _is_special(name) and name not in HONOURED]


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _syntax(error: str) -> bool:
    kind, _, text = error.partition(": ")
    return kind in SYNTAX and any(words in text.lower() for words in SYNTAX_WORDS)


def _module(error: str) -> bool:
    found = MODULE.fullmatch(error)
    return found is not None and found["module"].partition(".")[0] in sys.stdlib_module_names


def _module_attribute(error: str) -> bool:
    found = MODULE_ATTRIBUTE.fullmatch(error) or IMPORTED.fullmatch(error)
    if found is None or found["module"].partition(".")[0] not in sys.stdlib_module_names:
        return False
    return hasattr(importlib.import_module(found["module"]), found["name"])


def _attribute(error: str) -> bool:
    """Whether CPython has the missing attribute. For special names and for classes of the standard library this is assumed."""
    found = ATTRIBUTE.fullmatch(error)
    if found is None:
        return False
    module, _, name = found["type"].rpartition(".")
    if _is_special(found["name"]) or (module and module.partition(".")[0] in sys.stdlib_module_names):
        return True
    known = types.FunctionType if name == "function" else getattr(builtins, name, None)
    return hasattr(known, found["name"])


def _name(error: str) -> bool:
    found = NAME.fullmatch(error)
    return found is not None and hasattr(builtins, found["name"])


def _other(error: str) -> bool:
    return any(unlike.fullmatch(error) for unlike in UNLIKE_CPYTHON)
