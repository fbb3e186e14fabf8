"""Grading of untrusted code by unit tests. Pure.

A test is one `assert` of the task's author. Its calls of the requested function run in one sandbox with the policy's code, which
sees nothing of the test but the arguments. The returned values come back as text and are parsed as literals. The assertion then runs
on them in another sandbox, without the policy's code. So that code controls nothing but what its functions return.
"""

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RAISED = "!"
"""Mark of a call that raised, in place of its number."""
MAX_VALUE_CHARS = 20_000
"""Maximum length of one call's result, as text."""


class NotATest(ValueError):
    """A source that is no test; its text says why."""


@dataclass(frozen=True)
class UnitTest:
    """One assertion, and the calls in it, as source."""

    source: str
    calls: tuple[str, ...]


def unit_test(source: str, function: str) -> UnitTest:
    """Raises: NotATest unless `source` is one `assert` with a call of `function`."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotATest(f"{source!r:.80} does not parse: {error}") from None
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise NotATest(f"{source!r:.80} is not one assert statement")
    finder = _CallCollector(function)
    finder.visit(statements[0].test)
    if not finder.found:
        raise NotATest(f"{source!r:.80} does not call {function}")
    return UnitTest(source, tuple(finder.found))


def function_of(sources: Sequence[str]) -> str:
    """The tested function: the first called name that is no builtin. Raises: NotATest."""
    for source in sources:
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
                return node.func.id
    raise NotATest("the tests call no function")


def asking_program(solution: str, setup: str, tests: Sequence[UnitTest], mark: str) -> str:
    """The policy's code, followed by the tests' calls, each of which prints a line with its result."""
    asked = [
        f"try:\n    print('\\n{mark}', {number}, repr({call}))\n"
        f"except Exception as error:\n    print('\\n{mark}', '{RAISED}', type(error).__name__ + ': ' + str(error))"
        for number, call in enumerate(_calls(tests))
    ]
    return "\n".join([setup, solution, *asked])


def returned(output: str, mark: str) -> dict[int, str]:
    """Number of the call → literal, from the output of `asking_program`; other values are omitted."""
    found: dict[int, str] = {}
    for line in output.splitlines():
        first, _, rest = line.partition(" ")
        number, _, value = rest.partition(" ")
        if first == mark and number.isdecimal() and number.isascii() and _is_literal(value):
            found[int(number)] = value
    return found


def raised(output: str, mark: str) -> list[str]:
    """Exceptions of calls, as `Class: text`; only their first lines."""
    lead = f"{mark} {RAISED} "
    return [line.removeprefix(lead)[:MAX_VALUE_CHARS] for line in output.splitlines() if line.startswith(lead)]


def judging_program(setup: str, tests: Sequence[UnitTest], values: Mapping[int, str]) -> str:
    """A program that prints the number of each test that holds. It contains tests and literals, and no code of the policy."""
    lines, first = [setup], 0
    for number, test in enumerate(tests):
        known = {call: values.get(first + place) for place, call in enumerate(test.calls)}
        first += len(test.calls)
        if None not in known.values():
            tree = _LiteralSubstitution({call: str(value) for call, value in known.items()}).visit(ast.parse(test.source))
            judged = ast.unparse(ast.fix_missing_locations(tree))
            lines.append(f"try:\n    {judged}\n    print({number})\nexcept Exception:\n    pass")
    return "\n".join(lines)


def _calls(tests: Sequence[UnitTest]) -> list[str]:
    return [call for test in tests for call in test.calls]


def _is_literal(text: str) -> bool:
    if len(text) > MAX_VALUE_CHARS:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


class _CallCollector(ast.NodeVisitor):
    """Collects the outermost calls of one function, in their order."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.found: list[str] = []

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == self._function:
            self.found.append(ast.unparse(node))
        else:
            self.generic_visit(node)


class _LiteralSubstitution(ast.NodeTransformer):
    """Replaces calls, by their source, with literals."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def visit_Call(self, node: ast.Call) -> ast.AST:
        value = self._values.get(ast.unparse(node))
        return self.generic_visit(node) if value is None else ast.parse(value, mode="eval").body
