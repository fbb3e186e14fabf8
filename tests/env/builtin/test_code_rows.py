"""Rows as MBPP has them: each is solved by its own solution, and what such values allow earns no policy a reward."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from env_svc.builtin.code import Code
from env_svc.contract import Finish, Reply, Unsupported
from tests.support.env.sandboxes import CPYTHON, in_use, sandbox_of

ROWS: dict[str, dict[str, Any]] = {
    "a function called max": {"test_list": ["assert max(3, 5) == 8"], "code": "def max(a, b): return a + b"},
    "a function called sum": {
        "test_list": ["assert sum([1, 2]) == -3 and abs(-3) == 3", "assert sum([]) == 0"],
        "code": "def sum(numbers):\n    total = 0\n    for number in numbers:\n        total -= number\n    return total",
    },
    "a name imported by the solution is no function of it": {
        "test_list": ["assert Counter(letters('aab')) == {'a': 2, 'b': 1}"],
        "test_setup_code": "from collections import Counter",
        "code": "from collections import Counter\ndef letters(word): return list(word)",
    },
    "set-up with a class of the solution": {
        "test_setup_code": "root = Leaf(3)",
        "test_list": ["assert depth(root) == 1", "assert depth(Leaf(4)) == 1 and root.value == 3"],
        "code": "class Leaf:\n    def __init__(self, value):\n        self.value = value\ndef depth(leaf):\n    return 1",
    },
    "a module that the solution imports": {
        "test_list": ["assert larger(2) == math.factorial(4)"],
        "code": "import math\ndef larger(n): return math.factorial(n + 2)",
    },
    "imports of tests": {
        "test_list": ["assert math.isclose(third(), 1 / 3)"],
        "test_imports": ["import math"],
        "code": "def third(): return 0.333333333333",
    },
    "annotations of the future": {
        "test_setup_code": "import math",
        "test_list": ["assert same(4) == math.sqrt(16)"],
        "code": '"""A solution."""\nfrom __future__ import annotations\r\ndef same(n: Missing) -> Missing:\r\n    return n',
    },
    "a Counter": {
        "test_list": ["assert count('aab') == {'a': 2, 'b': 1}", "assert count('aab') == Counter(a=2, b=1)"],
        "code": "from collections import Counter\ndef count(word): return Counter(word)",
    },
    "a defaultdict": {
        "test_list": ["assert grouped([1, 2, 3]) == {1: [1, 3], 0: [2]}"],
        "code": "from collections import defaultdict\ndef grouped(numbers):\n    found = defaultdict(list)\n"
        "    for number in numbers:\n        found[number % 2].append(number)\n    return found",
    },
    "a Counter in a list in a tuple": {
        "test_list": ["assert nested('aa') == ([{'a': 2}], 1)"],
        "code": "from collections import Counter\ndef nested(word): return [Counter(word)], 1",
    },
    "a deque": {
        "test_list": ["assert list(last([1, 2, 3])) == [2, 3]", "assert last([1, 2]) != [1, 2]"],
        "code": "from collections import deque\ndef last(numbers): return deque(numbers[-2:])",
    },
    "a named tuple": {
        "test_list": ["assert point(1, 2) == (1, 2)"],
        "code": "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef point(x, y): return Point(x, y)",
    },
    "a frozen set": {"test_list": ["assert kinds('aab') == {'a', 'b'}"], "code": "def kinds(word): return frozenset(word)"},
    "views": {
        "test_list": ["assert sorted(ages({'a': 2, 'b': 2})) == [2, 2]", "assert len(ages({'a': 1})) == 1", "assert ages({'a': 1}) != [1]"],
        "code": "def ages(people): return people.values()",
    },
    "a range": {"test_list": ["assert first(3) == range(3)", "assert list(first(2)) == [0, 1]"], "code": "def first(n): return range(n)"},
    "infinite and no number": {
        "test_list": ["assert f(1) == float('inf')", "assert f(0) != f(0)"],
        "code": "def f(n): return float('inf') if n else float('nan')",
    },
    "a date": {
        "test_list": ["assert day(3) == datetime.date(2026, 1, 3)"],
        "code": "import datetime\ndef day(n): return datetime.date(2026, 1, n)",
    },
    "builtins by other names": {
        "test_list": ["assert total({'a': [1, 2]}) == {'a': 3}"],
        "code": "def total(given):\n    return {key: sum(value) for key, value in given.items()}\n"
        "dict = list = print = str = type = repr = None",
    },
}  # fmt: skip
CPYTHON_ROWS: dict[str, dict[str, Any]] = {
    "an iterator": {
        "test_list": ["assert list(odd(6)) == [1, 3, 5]", "assert odd(2) != [1]"],
        "code": "def odd(n):\n    yield from range(1, n, 2)",
    },
    "an endless iterator": {
        "test_list": ["assert next(odd()) == 1"],
        "code": "def odd():\n    n = 1\n    while True:\n        yield n\n        n += 2",
    },
    "a class in an order": {
        "test_list": ["assert by(['b', 'a']) == OrderedDict([('b', 0), ('a', 1)])", "assert by(['b', 'a']) != OrderedDict(a=1, b=0)"],
        "test_setup_code": "from collections import OrderedDict",
        "code": "from collections import OrderedDict\ndef by(names): return OrderedDict((name, at) for at, name in enumerate(names))",
    },
    "fractions": {
        "test_list": ["assert half(3) == Fraction(3, 2) == 1.5"],
        "code": "from fractions import Fraction\ndef half(n): return Fraction(n, 2)",
    },
    "numbers and texts with names": {
        "test_list": ["assert named(1) == (1, 'red', [2])"],
        "code": "import enum\nclass One(enum.IntEnum):\n    ONE = 1\nclass Colour(str, enum.Enum):\n    RED = 'red'\n"
        "class Own(list):\n    pass\ndef named(n): return One(n), Colour.RED, Own([2])",
    },
    "a module that monty lacks a part of": {
        "test_list": ["assert size(()) == sys.getsizeof(())"],
        "code": "import sys\ndef size(value): return sys.getsizeof(value)",
    },
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
async def test_rows_as_in_mbpp_are_solved_by_their_own_solutions(row: str, rows_in: Callable[..., str]) -> None:
    async with in_use(sandbox_of("monty")):
        await solved(Code(file=rows_in({"text": "t", **ROWS[row]})))


async def test_rows_as_in_mbpp_are_solved_in_cpython(rows_in: Callable[..., str]) -> None:
    async with in_use(sandbox_of(CPYTHON)):
        await solved(Code(file=rows_in(*({"text": name, **row} for name, row in (ROWS | CPYTHON_ROWS).items()))), len(ROWS | CPYTHON_ROWS))


async def solved(code: Code, rows: int = 1) -> None:
    async def one(index: int) -> None:
        opening = await code.open(index, 0)
        gold = await code.gold(opening.state)
        assert gold is not None and str(opening.state["setup"]) in opening.messages[0].content
        assert await code.step(opening.state, Reply(gold)) == Finish(1.0, {"passed": 1.0, "parsed": 1.0}), opening.state

    await asyncio.gather(*map(one, range(rows)))


@pytest.mark.parametrize("row", CPYTHON_ROWS)
async def test_solution_that_monty_cannot_run_or_judge_is_void(row: str, rows_in: Callable[..., str]) -> None:
    async with in_use(sandbox_of("monty")):
        code = Code(file=rows_in({"text": "t", **CPYTHON_ROWS[row]}))
        opening = await code.open(0, 0)
        with pytest.raises(Unsupported):
            await code.step(opening.state, Reply(str(await code.gold(opening.state))))


FORGED = {
    "a value that is equal to all": "class All(dict):\n    def __eq__(self, other): return True\n"
    "    def __repr__(self): return \"Counter({'a': 2})\"\n"
    "def count(word): return All()",
    "a type by its name": "class Counter(dict):\n    __eq__ = lambda *_: True\ndef count(word): return Counter()",
    "a class that poses": "class Sly:\n    __class__ = property(lambda self: dict)\n    def __eq__(self, other): return True\n"
    "    def keys(self): return []\ndef count(word): return Sly()",
    "another writer": "def _writer(): return lambda value: 'mark'\n_written = lambda value: \"__import__('os')\"\n"
    "def count(word): return 1",
    "a call of no value": "class Evil:\n    def __repr__(self): return \"Counter(exec('1'))\"\ndef count(word): return Evil()",
    "an attribute": "class Evil:\n    def __repr__(self): return \"datetime.sys.exit(0)\"\ndef count(word): return Evil()",
    "a name of the test": "class Evil:\n    def __repr__(self): return \"EXPECTED\"\ndef count(word): return Evil()",
    "a name of another value": "class Evil:\n    def __repr__(self): return \"_value0\"\ndef count(word): return Evil()",
    "deep signs": "class Evil:\n    def __repr__(self): return '-' * 15000 + '1'\ndef count(word): return Evil()",
    "deep lists": "value = []\nfor _ in range(150): value = [value]\ndef count(word): return value",
    "a list in itself": "value = []\nvalue.append(value)\ndef count(word): return value",
    "a new line": "class Evil:\n    def __repr__(self): return '1\\r_value0 = EXPECTED'\ndef count(word): return Evil()",
    "a set-up of its own": "EXPECTED = {}\nCounter = dict\ndef count(word): return {}",
    "no more Python": "import builtins\nfor name in ('isinstance', 'repr', 'print'):\n"
    "    setattr(builtins, name, lambda *_: \"{'a': 2}\")\n"
    "def count(word): return 1",
}  # fmt: skip
FORGED_TESTS = ["assert count('aa') == EXPECTED", "assert count('b') == {'b': 1}"]


async def test_no_value_without_a_literal_form_can_be_forged() -> None:
    async with in_use(sandbox_of(CPYTHON)):
        for name, source in FORGED.items():
            state = {"tests": FORGED_TESTS, "setup": "EXPECTED = {'a': 2}", "solution": "EXPECTED = None\ndef count(word): return 0"}
            turn = await Code().step(state, Reply(source))  # pyright: ignore
            assert isinstance(turn, Finish) and turn.components["passed"] == 0.0, name


async def test_lines_of_the_authors_solution_are_no_marks() -> None:
    state = {"tests": ["assert f(1) == ONE"], "setup": "", "solution": "ONE = 1\nprint('0')\ndef f(n): return 1"}
    async with in_use(sandbox_of("monty")):
        turn = await Code().step(state, Reply("def f(n): return 2"))  # pyright: ignore
    assert isinstance(turn, Finish) and turn.reward == 0.0
