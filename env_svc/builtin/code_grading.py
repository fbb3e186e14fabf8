"""Grading of untrusted code by unit tests. Pure.

A test is one `assert` of the task's author. Its calls of the requested function run in one sandbox with the policy's code, which
sees nothing of the test but the arguments. The returned values come back as text that can only build values of builtin and standard
types. The assertion then runs on them in another sandbox, without the policy's code. So the policy's code
controls nothing but what its functions return.
"""

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

RAISED = "!"
"""Printed in place of the number of a call or assertion that raised an exception."""
MAX_VALUE_CHARS = 20_000
"""Maximum length of one call's result, as text."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Exceptions that Python's parser raises for a source that it cannot read."""
VALUES = {
    **dict.fromkeys(("bytearray", "frozenset", "iter", "range", "set"), ""),
    **{name: f"from collections import {name}" for name in ("Counter", "OrderedDict", "deque")},
    "Decimal": "from decimal import Decimal",
    "Fraction": "from fractions import Fraction",
    "datetime": "import datetime",
    "dict_items": "dict_items = lambda items: dict(items).items()",
    "dict_keys": "dict_keys = lambda keys: dict.fromkeys(keys).keys()",
    "dict_values": "dict_values = lambda values: dict(enumerate(values)).values()",
    "inf": "inf = float('inf')",
    "nan": "nan = float('nan')",
}
"""Name that the text of a value may contain → statement that defines it."""
WRITER = """
def _writer(bool=bool, bytes=bytes, complex=complex, dict=dict, float=float, frozenset=frozenset, hasattr=hasattr, int=int,
            isinstance=isinstance, list=list, range=range, repr=repr, set=set, str=str, tuple=tuple, type=type, zip=zip):
    def written(value):
        name = type(value).__name__
        if isinstance(value, dict):
            pairs = '{' + ', '.join([written(key) + ': ' + written(one) for key, one in dict(value).items()]) + '}'
            return name + '(' + pairs + ')' if name in ('Counter', 'OrderedDict') else pairs
        is_own = name in ('deque', 'dict_items', 'dict_keys', 'dict_values')
        most = 1000 if hasattr(value, '__next__') else 10000
        if is_own or isinstance(value, (list, tuple, set, frozenset)) or most == 1000:
            items = '[' + ', '.join([written(one) for _, one in zip(range(most), value)]) + ']'
            if isinstance(value, list):
                return items
            if isinstance(value, tuple):
                return '(' + items[1:-1] + (',)' if len(items) > 2 else ')')
            kind = 'set' if isinstance(value, set) else 'frozenset' if isinstance(value, frozenset) else 'iter'
            return (name if is_own else kind) + '(' + items + ')'
        for kind in (bool, int, float, complex, bytes):
            if isinstance(value, kind):
                return repr(kind(value))
        return repr(''.join(value) if isinstance(value, str) else value)
    return written
_written, _print, _str = _writer(), print, str
"""
"""Source of the function `_written`, which converts a value to text; an instance of a subclass becomes one of the builtin type. It
binds the builtins before the policy's code can replace them. If that code manipulates `_written`, it only returns another value."""


class NotATest(ValueError):
    """A source that is not a valid test; its text is the reason."""


@dataclass(frozen=True)
class UnitTest:
    """One assertion, and the calls in it, as source."""

    source: str
    calls: tuple[str, ...]


def unit_test(source: str, function: str) -> UnitTest:
    """Raises: NotATest unless `source` is one `assert` with a call of `function`."""
    try:
        statements = ast.parse(source).body
    except UNREADABLE as error:
        raise NotATest(f"{source!r:.80} does not parse: {error}") from None
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise NotATest(f"{source!r:.80} is not one assert statement")
    finder = _CallCollector(function)
    finder.visit(statements[0].test)
    if not finder.found:
        raise NotATest(f"{source!r:.80} does not call {function}")
    return UnitTest(source, tuple(finder.found))


def function_of(sources: Sequence[str], reference: str = "") -> str:
    """Name of the tested function: the first name called in the tests that `reference`, the author's solution, defines.

    If it defines none of them: the first called name that is no builtin. Raises: NotATest.
    """
    nodes = [node for source in sources for node in ast.walk(_tree(source))]
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    defined = _bound(reference, ast.FunctionDef, ast.Assign)
    found = [name for name in called if name in defined] or [name for name in called if not hasattr(builtins, name)]
    if not found:
        raise NotATest("the tests call no function, or one that Python has and no solution defines")
    return found[0]


def defines(source: str, function: str) -> bool:
    """Whether a program defines a function."""
    return function in _bound(source)


def asking_program(solution: str, setup: str, tests: Sequence[UnitTest], mark: str) -> str:
    """A program: the policy's code, the setup, and the tests' calls, each of which prints a line with its result."""
    first, rest = _after_future(solution)
    asked = [
        f"try:\n    _print('\\n{mark}', {number}, _written({call}))\n"
        f"except Exception as error:\n    _print('\\n{mark}', '{RAISED}', type(error).__name__ + ': ' + _str(error))"
        for number, call in enumerate(call for test in tests for call in test.calls)
    ]
    return "\n".join([first + WRITER + rest, setup, *asked])


def returned(output: str, mark: str) -> dict[int, str]:
    """Number of the call → expression that builds its value, from the output of `asking_program`; other values are omitted."""
    found: dict[int, str] = {}
    for line in output.splitlines():
        first, _, rest = line.partition(" ")
        number, _, value = rest.partition(" ")
        if first == mark and number.isdecimal() and number.isascii() and len(value) <= MAX_VALUE_CHARS and _is_value(value):
            found[int(number)] = value.strip()
    return found


def raised(output: str, mark: str) -> list[str]:
    """Exceptions of calls and assertions, as `Class: text`; only their first lines."""
    lead = f"{mark} {RAISED} "
    return [line.removeprefix(lead)[:MAX_VALUE_CHARS] for line in output.splitlines() if line.startswith(lead)]


def judging_program(setup: str, tests: Sequence[UnitTest], values: Mapping[int, str], mark: str, reference: str = "") -> str:
    """A program that prints `mark` and the number of each test that holds.

    It contains the tests and values, but no code of the policy. `reference`: the author's solution, included if a test or the setup uses
    a name that it defines.
    """
    numbers, judged = count(), list[str]()
    tree = _tree(setup)
    for number, test in enumerate(tests):
        substitution = _Substitution({call: next(numbers) for call in test.calls})
        assertion = substitution.visit(ast.parse(test.source))
        if all(call in values for call in substitution.numbers.values()):
            tree.body += assertion.body
            given = [f"{_name(call)} = {values[call]}" for call in substitution.numbers.values()]
            lines = "\n    ".join([*given, *ast.unparse(assertion).split("\n"), f"print({mark!r}, {number})"])
            raised = f"print({mark!r}, '{RAISED}', type(error).__name__ + ': ' + str(error))"
            judged.append(f"try:\n    {lines}\nexcept AssertionError:\n    pass\nexcept Exception as error:\n    {raised}")
    names = {node.id for value in values.values() for node in ast.walk(_tree(value)) if isinstance(node, ast.Name)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needed = reference if _bound(reference) & used else ""
    first, rest = _after_future(needed)
    return "\n".join([first, *(VALUES[name] for name in sorted(names)), rest, setup, *judged])


def _name(call: int) -> str:
    return f"_value{call}"


def _tree(source: str) -> ast.Module:
    """The parsed source; empty if it does not parse."""
    try:
        return ast.parse(source)
    except UNREADABLE:
        return ast.Module(body=[], type_ignores=[])


def _bound(source: str, *kinds: type[ast.stmt]) -> set[str]:
    """Names bound by a program's top-level statements of these kinds; all kinds by default."""
    statements = [node for node in _tree(source).body if isinstance(node, kinds or ast.stmt)]
    aliases = [one for node in statements if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names]
    targets = [one for node in statements if isinstance(node, ast.Assign) for one in node.targets]
    named = {node.name for node in statements if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return {
        *named,
        *(one.asname or one.name.partition(".")[0] for one in aliases),
        *(one.id for one in targets if isinstance(one, ast.Name)),
    }


def _after_future(source: str) -> tuple[str, str]:
    """Split a program after its imports from `__future__`: only a docstring may stand before such imports."""
    imports = [node for node in _tree(source).body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    lines = source.encode(errors="replace").splitlines(keepends=True)  # of bytes: at the ends that Python's parser counts
    at = cast("int", imports[-1].end_lineno) if imports else 0
    return b"".join(lines[:at]).decode(), b"".join(lines[at:]).decode()


def _is_value(text: str) -> bool:
    try:
        return _builds_value(ast.parse(text.strip(), mode="eval").body)
    except UNREADABLE:
        return False


def _builds_value(node: ast.expr) -> bool:
    """Whether an expression consists only of literals and calls of VALUES."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in ("nan", "inf")
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return all(map(_builds_value, parts))
        case ast.Dict(keys=keys, values=parts):
            return all(key is not None and _builds_value(key) for key in keys) and all(map(_builds_value, parts))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=part):
            return _builds_value(part)
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):  # complex numbers
            return _builds_value(left) and _builds_value(right)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            return name in VALUES and all(map(_builds_value, parts))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime"), attr="date" | "datetime" | "time" | "timedelta"), args=parts):
            return all(map(_builds_value, [*parts, *(keyword.value for keyword in node.keywords)]))
        case _:
            return False


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


class _Substitution(ast.NodeTransformer):
    """Replaces calls, by their source, with the names of their values."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        number = self.numbers.get(ast.unparse(node))
        return self.generic_visit(node) if number is None else ast.Name(_name(number), ast.Load())
