"""Right programs get 1 and wrong ones 0 in every sandbox: a sample of `python -m tests.env.programs`."""

import ast
import sys
from dataclasses import replace

import pytest

from tests.env.programs import __main__ as program
from tests.env.programs.corpus import PAIRS, Program, cells, modules_of, programs, statements_of
from tests.env.programs.mutants import MUTANTS, Case, case_of
from tests.support.env.sandboxes import KINDS, sandbox_of

CUT = 30
RUNS = 4


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Results of a sample of both files' programs, and of pairs."""
    alone, all_of_them = [*cells("statements.txt"), *cells("library.txt")], programs()
    assert len(all_of_them) == len(alone) + PAIRS
    return program.cases_of([*alone[::6], *all_of_them[-PAIRS::30]][:CUT])


@pytest.mark.parametrize("kind", ["landlock", "monty"])
async def test_no_right_program_gets_0_and_no_mutant_1(kind: str, cases: list[Case]) -> None:
    await _check(kind, [replace(case, mutants=case.mutants[:1]) for case in cases])


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", KINDS)
async def test_no_right_program_gets_0_and_none_of_its_mutants_1(kind: str, cases: list[Case]) -> None:
    await _check(kind, cases)


async def _check(kind: str, cases: list[Case]) -> None:
    assert len(cases) == CUT
    mutants = sum(len(case.mutants) for case in cases)
    tally = await program.grade(cases, sandbox_of(kind), RUNS)
    assert tally.misgraded == []
    assert (tally.right + tally.void_programs, tally.wrong + tally.void_mutants) == (CUT, mutants)
    assert tally.right > CUT // 8 if kind == "monty" else tally.void_programs <= (kind == "landlock"), tally


def test_programs_use_every_statement_and_forty_modules() -> None:
    found = programs()
    assert len({program.source for program in found}) == len(found) >= 300
    assert set(ast.stmt.__subclasses__()) == statements_of(found)
    modules = modules_of(found)
    assert len(modules) >= 40
    assert modules <= sys.stdlib_module_names


def test_mutants_return_something_else_and_the_rest_is_refused() -> None:
    case = case_of(Program("sums", "def solve(n):\n    return [sum(range(n)), n * 3 + 1, n > 2, 'a' * n]\n"))
    assert len(set(case.mutants)) == MUTANTS
    assert case.tests[3] == "assert solve(3) == [3, 10, True, 'aaa']"
    for mutant in case.mutants:
        space: dict[str, object] = {}
        exec(mutant, space)
        with pytest.raises((AssertionError, TypeError)):
            exec("\n".join(case.tests), space)
    for source, reason in [
        ("def solve(n):\n    return n", "only 1 mutants are wrong"),
        ("def solve(n):\n    return object", "SyntaxError"),
        ("def solve(n):\n    while True:\n        pass", "TimeoutError"),
        ("import os\ndef solve(n):\n    os._exit(3)", "its process ended"),
    ]:
        with pytest.raises(ValueError, match=reason):
            case_of(Program("none", source))
