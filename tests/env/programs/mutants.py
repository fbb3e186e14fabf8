"""Wrong mutants of a right program, and tests that expose them: both run in CPython, here and without a sandbox.

A mutant differs from its program in one place of the syntax tree. One that returns the same for all arguments, or takes long, is
discarded. One that raises is used where too few return something else.
"""

import ast
import contextlib
import copy
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.env.programs.corpus import Program

ARGUMENTS = (0, 1, 2, 3, 7)
MUTANTS = 5
MAX_DURATION_S = 1.0
"""Seconds for a program with all arguments."""
MAX_ALL_S = 200.0
"""Seconds for a program and all of its mutants."""
OTHER_OPERATOR: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Input of `code`: a right program, tests that it passes, and mutants that each fail a test."""

    title: str
    source: str
    tests: tuple[str, ...]
    mutants: tuple[str, ...]


def case_of(program: Program) -> Case:
    """Raises: ValueError when it raises, takes long, returns no literal, or has fewer than five mutants that are wrong."""
    return _in_a_process(_case_of, program)


def _case_of(program: Program) -> Case:
    values = results(program.source, signal.ITIMER_PROF)
    if isinstance(values, Exception):
        raise ValueError(f"{program.title}: {type(values).__name__}: {values}")
    tests = [f"assert solve({n}) == {value}" for n, value in zip(ARGUMENTS, values, strict=True)]
    wrong: list[str] = []
    raising: list[str] = []
    for mutant in mutants(program.source, random.Random(program.title)):
        found = results(mutant)
        if isinstance(found, TimeoutError):
            continue
        if isinstance(found, Exception):
            raising.append(mutant)
        elif not same(found, values) and mutant not in wrong:
            wrong.append(mutant)
        if len(wrong) == MUTANTS:
            break
    wrong += raising[: MUTANTS - len(wrong)]
    if len(wrong) < MUTANTS:
        raise ValueError(f"{program.title}: only {len(wrong)} mutants are wrong")
    return Case(program.title, program.source, tuple(tests), tuple(wrong))


def results(source: str, timer: int = signal.ITIMER_REAL) -> list[str] | Exception:
    """Results of `solve` for each of ARGUMENTS, as literals; or its exception, TimeoutError when it takes long.

    Runs it here, as the module `__main__`. `timer`: of a right program its computing time, since a machine may stop it for seconds.
    """
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with alarm(timer, MAX_DURATION_S), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(source, "program", "exec"), module.__dict__)  # the programs of this folder
            found = [repr(module.solve(n)) for n in ARGUMENTS]
        for value in found:
            ast.literal_eval(value)
    except Exception as error:
        return error
    except SystemExit as end:
        return ValueError(f"exit status {end.code}")
    return found


def same(some: Sequence[str], others: Sequence[str]) -> bool:
    """Equality in the tests' sense: 1 is True, and -0.0 is 0."""
    return [ast.literal_eval(one) for one in some] == [ast.literal_eval(one) for one in others]


def mutants(source: str, dice: random.Random) -> Iterator[str]:
    """All mutants, shuffled."""
    tree = ast.parse(source)
    places = [(number, change) for number, node in enumerate(ast.walk(tree)) for change in changes(node)]
    for number, change in dice.sample(places, len(places)):
        changed = copy.deepcopy(tree)
        change(next(node for place, node in enumerate(ast.walk(changed)) if place == number))
        yield ast.unparse(ast.fix_missing_locations(changed))


def changes(node: ast.AST) -> list[Callable[[Any], None]]:
    """Mutations of one node."""
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in OTHER_OPERATOR:
            return [lambda it: setattr(it, "op", OTHER_OPERATOR[type(it.op)]())]
        case ast.Compare() if type(node.ops[0]) in OTHER_OPERATOR:
            return [lambda it: setattr(it, "ops", [OTHER_OPERATOR[type(it.ops[0])](), *it.ops[1:]])]
        case ast.Constant(value=bool()):
            return [lambda it: setattr(it, "value", not it.value)]
        case ast.Constant(value=int() | float()):
            return [lambda it: setattr(it, "value", it.value + 1)]
        case ast.Constant(value=str()):
            return [lambda it: setattr(it, "value", it.value + "x")]
        case ast.Constant(value=bytes()):
            return [lambda it: setattr(it, "value", it.value + b"x")]
        case ast.List(ctx=ast.Load()) | ast.Tuple(ctx=ast.Load()) if node.elts:
            return [lambda it: setattr(it, "elts", it.elts[:-1]), lambda it: setattr(it, "elts", it.elts[1:])]
        case ast.Expr(value=ast.Call()):
            return [lambda it: setattr(it, "value", ast.Constant(None))]
        case ast.If() | ast.IfExp() | ast.While():
            return [lambda it: setattr(it, "test", ast.UnaryOp(ast.Not(), it.test))]
        case ast.Return() if node.value is not None:
            return [lambda it: setattr(it, "value", ast.Tuple([it.value], ast.Load()))]
        case ast.Call() if len(node.args) > 1:
            return [lambda it: setattr(it, "args", it.args[::-1])]
        case _:
            return []


@contextlib.contextmanager
def alarm(timer: int, seconds: float) -> Generator[None]:
    """Raises: TimeoutError in the block when it takes more than `seconds`."""

    def ring(*_: object) -> None:
        raise TimeoutError

    number = {signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_PROF: signal.SIGPROF}[timer]
    before = signal.signal(number, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


def _in_a_process(work: Callable[[Program], Case], program: Program) -> Case:
    """Run in its own process: programs change the interpreter that runs them, and mutants more."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def run() -> None:
        os.setsid()
        with tempfile.TemporaryDirectory() as folder:  # for what a mutant writes
            os.chdir(folder)
            try:
                sending.send(work(program))
            except ValueError as error:
                sending.send(error)
            os.chdir("/")
        os._exit(0)  # without waiting for threads and processes that a mutant left

    process = context.Process(target=run)
    process.start()
    sending.close()
    try:
        if not receiving.poll(MAX_ALL_S):
            raise ValueError(f"{program.title}: its mutants take more than {MAX_ALL_S:.0f} s")
        found = receiving.recv()
    except EOFError:
        raise ValueError(f"{program.title}: its process ended") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    if isinstance(found, ValueError):
        raise found
    return found
