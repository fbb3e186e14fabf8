"""Code graded by unit tests: what counts as right, and that no reward can be had by cheating."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgpack
import pytest

from common.messages import UNSUPPORTED
from env_svc.builtin.code import Code, written
from env_svc.builtin.code_grading import NotATest, asking_program, function_of, judging_program, returned, unit_test
from env_svc.calls import Failed, StepCall, perform
from env_svc.contract import Finish, Reply, Unsupported, WrongOptions
from env_svc.datasets import SHIPPED
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes.current import use
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox
from tests.support.env.sandboxes import KINDS, in_use, sandbox_of

TESTS = ["assert scaled([1, 2]) == [4711, 9422]", "assert scaled([]) == [] and len(scaled([3])) == 1", "assert scaled([0]) != [1]"]
RIGHT = "def scaled(numbers):\n    return [4711 * n for n in numbers]"
STATE = {"tests": TESTS, "setup": "", "solution": RIGHT}


@pytest.fixture(params=KINDS)
async def code(request: pytest.FixtureRequest) -> AsyncIterator[Code]:
    async with in_use(sandbox_of(request.param, warm=2)):
        yield Code(time_s=60.0)


async def graded(code: Code, source: str, tests: list[str] | None = None) -> Finish:
    turn = await code.step({**STATE, "tests": tests or TESTS}, Reply(source))  # pyright: ignore
    assert isinstance(turn, Finish)
    return turn


async def test_right_code_passes_all_tests_and_wrong_code_some(code: Code) -> None:
    assert await graded(code, f"I think:\n```python\n{RIGHT}\n```") == Finish(1.0, {"passed": 1.0, "parsed": 1.0})
    assert await graded(code, RIGHT) == Finish(1.0, {"passed": 1.0, "parsed": 1.0})
    wrong = await graded(code, "def scaled(numbers):\n    return numbers")
    assert (wrong.reward, wrong.components["passed"]) == (0.0, pytest.approx(2 / 3))
    assert await graded(code, "def scaled(numbers) return 1") == Finish(0.0, {"passed": 0.0, "parsed": 0.0})
    assert (await graded(Code(time_s=0.5), "def scaled(numbers):\n    while True:\n        pass")).reward == 0.0
    assert (await graded(code, "def other(numbers):\n    return 1")).reward == 0.0


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def scaled(numbers):\n    yield 1", "does not yet support yield"),
        ("import heapq\ndef scaled(numbers):\n    return [4711 * n for n in numbers]", "No module named 'heapq'"),
        ("def scaled(numbers):\n    import heapq\n    return [4711 * n for n in numbers]", "No module named 'heapq'"),
        ("def scaled(numbers):\n    return list(memoryview(b''))", "name 'memoryview' is not defined"),
        (
            "class A:\n    def __ne__(self, other):\n        return False\ndef scaled(numbers):\n    return A() != 1",
            "'__ne__' is not honoured",
        ),
        ("def scaled(numbers):\n    return next(4711 * n for n in numbers)", "'list' object is not an iterator"),
        ("def scaled(numbers):\n    found = (4711 * n for n in numbers)\n    return [*found, *found]", "a generator expression is a list"),
        ("def scaled(numbers):\n    return scaled.__doc__.x", "'function' object has no attribute '__doc__'"),
        ("import collections.abc\ndef scaled(numbers):\n    return numbers", "'collections' is not a package"),
    ],
    ids=[
        "statement",
        "module",
        "module in the function",
        "builtin",
        "special method",
        "iterator",
        "generator expression",
        "special attribute",
        "package",
    ],
)
async def test_program_that_monty_cannot_run_is_void_and_not_wrong(source: str, missing: str) -> None:
    async with in_use(sandbox_of("monty")):
        outcome = await perform(Code(), "code", StepCall(7, msgpack.packb(STATE) or b"", Reply(source)))
    assert isinstance(outcome, Failed) and not outcome.is_infrastructure
    assert outcome.reason.startswith(f"{UNSUPPORTED} (row 7): the sandbox 'monty' cannot run this program")
    assert missing in outcome.reason and "MARLAAS_ENV_SANDBOX=bubblewrap, docker or confined" in outcome.reason


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module\ndef scaled(numbers):\n    return 1",
        "def scaled(numbers):\n    return undefined_name",
        "def scaled(numbers):\n    return numbers.no_such_method()",
        "def scaled(numbers):\n    raise NotImplementedError('later')",
        "def scaled(numbers) return 1",
    ],
)
async def test_program_that_is_wrong_in_any_python_is_wrong_in_monty(source: str) -> None:
    async with in_use(sandbox_of("monty")):
        assert (await graded(Code(), source)).reward == 0.0


async def test_values_of_many_kinds_are_compared(code: Code) -> None:
    tests = [
        "assert same((1, 'a', None, True)) == (1, 'a', None, True)",
        "assert same({'a': [1.5, -2]}) == {'a': [1.5, -2]}",
        "assert same({1, 2}) == {2, 1}",
        "assert sorted(same([3, 1])) == [1, 3]",
        "assert abs(same(0.1) + same(0.2) - 0.3) < 1e-9",
        "assert same('it\\'s\\n\"x\" größer') == 'it\\'s\\n\"x\" größer'",
        "assert not same(False)",
    ]
    assert await graded(code, "def same(value):\n    return value", tests) == Finish(1.0, {"passed": 1.0, "parsed": 1.0})


class Dying(Sandbox):
    """One that runs `healthy` programs and then nothing more."""

    def __init__(self, sandbox: Sandbox, healthy: int) -> None:
        self._sandbox, self._left = sandbox, healthy

    async def start(self) -> None:
        await self._sandbox.start()

    async def run(self, source: str, bounds: Bounds) -> RunResult:
        self._left -= 1
        if self._left < 0:
            raise SandboxUnavailable("its daemon is gone")
        return await self._sandbox.run(source, bounds)

    @property
    def meaning(self) -> str:
        return self._sandbox.meaning

    async def close(self) -> None:
        await self._sandbox.close()


@pytest.mark.parametrize("healthy", [0, 1], ids=["while the code runs", "while it is judged"])
async def test_sandbox_that_dies_while_it_grades_is_no_reward_0(healthy: int) -> None:
    async with in_use(Dying(sandbox_of("monty"), healthy)):
        outcome = await perform(Code(), "code", StepCall(7, msgpack.packb(STATE) or b"", Reply(RIGHT)))
    assert outcome == Failed("environment 'code' is unavailable (row 7): its daemon is gone", is_infrastructure=True)


ALWAYS_EQUAL = """
class Anything(list):
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    def __len__(self): return 1
    def __repr__(self): return 'Anything()'
def scaled(numbers):
    return Anything()
"""
EVIL = """
class Evil:
    def __repr__(self):
        return '__import__("os")._exit(0)'
def scaled(numbers):
    return Evil()
"""
CHEATS = {
    "exit": "import sys\nsys.exit(0)",
    "raise exit": "raise SystemExit(0)",
    "hard exit": "import os\nos._exit(0)",
    "exit when called": "import os\ndef scaled(numbers):\n    os._exit(0)",
    "numbers of tests": "print('0\\n1\\n2')\ndef scaled(numbers):\n    print('0\\n1\\n2')",
    "pass marks": "print('OK')\nprint('3 passed')\nprint('ALL TESTS PASSED')\nscaled = print",
    "guessed marks": "def scaled(numbers):\n    for mark in ('\\n', 'mark', ''):\n        print(mark, 0, '[4711]')\n    return True",
    "always equal": ALWAYS_EQUAL,
    "equal by builtins": "import builtins\nbuiltins.list.__eq__ = lambda a, b: True\ndef scaled(numbers):\n    return numbers",
    "no assertion errors": "import builtins\nbuiltins.AssertionError = None\nAssertionError = None\ndef scaled(numbers):\n    return 0",
    "no repr": "repr = lambda value: '[4711, 9422]'\ndef scaled(numbers):\n    return 0",
    "not a literal": "def scaled(numbers):\n    return scaled",
    "code as value": EVIL,
    "at exit": "import atexit\natexit.register(print, '0\\n1\\n2')\ndef scaled(numbers):\n    return 0",
    "grader patched": "import env_svc.builtin.code_grading as grader\ngrader.unit_test = None\ndef scaled(numbers):\n    return 0",
    "frames": "import sys\nsys._getframe(0).f_globals['passed'] = 3\ndef scaled(numbers):\n    return sys._getframe(1).f_globals",
    "quotes": "'''\ndef scaled(numbers):\n    return 0",
    "comment": "def scaled(numbers):\n    return 0\n#",
    "backslash": "def scaled(numbers): return 0\\",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_reward_cannot_be_forged(code: Code, cheat: str) -> None:
    try:
        turn = await graded(code, CHEATS[cheat])
    except Unsupported:  # void, and no policy learns from what is void
        assert code._sandbox.name == "monty"
    else:
        assert turn.reward == 0.0


READ_THE_TESTS = """
import sys
found = []
def look(text):
    if '9422' in str(text):
        found.append(str(text))
for reader in (
    lambda: open(__file__).read(), lambda: open('main.py').read(), lambda: open('/proc/self/cmdline').read(),
    lambda: open('/proc/self/environ').read(), lambda: open('/proc/1/cmdline').read(), lambda: sys.stdin.read(),
    lambda: sys.argv, lambda: sys.orig_argv, lambda: sys._getframe(0).f_back.f_locals, lambda: sys._getframe(0).f_code.co_consts,
    lambda: sys._getframe(1).f_code.co_consts, lambda: __import__('gc').get_objects(), lambda: globals(),
):
    try:
        look(reader())
    except BaseException:
        pass
def scaled(numbers):
    return found
"""


async def test_expected_values_cannot_be_read(code: Code) -> None:
    """A value that the code finds would come back: `scaled` returns it. Of 9422, the source itself holds one."""
    source = READ_THE_TESTS.replace("'9422'", "str(9000 + 422)")
    turn = await graded(code, source, ["assert len(scaled([])) > 0", "assert scaled([1, 2]) == [4711, 9422]"])
    assert turn.components["passed"] == 0.0


async def test_shipped_problems_are_solved_by_their_solutions(code: Code) -> None:
    is_quick = "Monty" in type(code._sandbox).__name__
    for index in range(len((SHIPPED / "small_programs.jsonl").read_text().splitlines()) if is_quick else 3):
        opening = await code.open(index, 0)
        gold = await code.gold(opening.state)
        assert gold is not None
        turn = await code.step(opening.state, Reply(gold))
        assert turn == Finish(1.0, {"passed": 1.0, "parsed": 1.0}), opening.state


def test_code_is_the_last_block() -> None:
    assert written("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```\n", "f") == "y = 2\n"
    assert written("```py\nz = 3", "f") == "z = 3"
    assert written("w = 4", "f") == "w = 4"


DOUBLE = "def double(n):\n    return 2 * n\n"
IN_A_LIST = "".join(f"   {line}\n" for line in f"```python\n{DOUBLE}```".splitlines())


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{DOUBLE}```",
        f"```python\n{DOUBLE}",
        f"```Python3 title=double.py\n{DOUBLE}```\nDone.",
        f"Here it is: ```py\n{DOUBLE}```",
        f"```python\n{DOUBLE.rstrip()}```\nIt doubles.",
        f"~~~python\n{DOUBLE}~~~",
        f"````python\n{DOUBLE}````",
        f"```\r\n{DOUBLE}```\r\nDone.",
        f"1. So:\n{IN_A_LIST}2. Done.",
        f"```bash\npip install nothing\n```\nThen:\n```python\n{DOUBLE}```",
        f"```python\nwrong =\n```\nNo:\n```python\n{DOUBLE}```",
        f"```python\n{DOUBLE}```\nIt prints:\n```\n4\n```",
        f"```python\n{DOUBLE}```\n```python\n```",
        f"```python\n{DOUBLE}```\n```python\n{DOUBLE}```",
        f"```python\n{DOUBLE}    # as in ```double```, twice\n```",
        f"<think>```python\ndef double(n):\n    return n\n```</think>\n```python\n{DOUBLE}```",
        DOUBLE,
    ],
)
async def test_right_code_is_found_in_any_dress(reply: str) -> None:
    async with in_use(sandbox_of("monty")):
        assert (await graded(Code(time_s=60.0), reply, ["assert double(4) == 8"])).reward == 1.0


def test_prompt_shows_the_first_test_alone(tmp_path: Path) -> None:
    use(sandbox_of("monty"))
    import asyncio

    opening = asyncio.run(Code(shown=1).open(0, 0))
    shown = [test for test in opening.state["tests"] if test in opening.messages[0].content]
    assert shown == opening.state["tests"][:1]
    use(None)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("f(1) == 2", "is not one assert statement"),
        ("assert f(1) == 2; assert f(2) == 3", "is not one assert statement"),
        ("assert g(1) == 2", "does not call f"),
        ("assert f(1 ==", "does not parse"),
    ],
)
def test_what_is_no_test_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(NotATest, match=complaint):
        unit_test(source, "f")


def test_function_is_the_one_that_python_does_not_have_or_that_the_solution_defines() -> None:
    assert function_of(["assert sorted(list(double([1]))) == [2]"]) == "double"
    assert function_of(["assert abs(max(3, 5)) == 8"], "def max(a, b): return a + b") == "max"
    assert function_of(["assert set(pairs([1])) == set()"], "pairs = lambda numbers: numbers") == "pairs"
    with pytest.raises(NotATest, match="the tests call no function"):
        function_of(["assert len([1]) == 1"])


def test_policys_code_and_expected_values_are_never_in_one_program() -> None:
    tests = [unit_test(test, "scaled") for test in TESTS]
    asking = asking_program(RIGHT, "import math", tests, "mark")
    judging = judging_program("import math", tests, {0: "[1]", 1: "[]", 2: "[7]", 3: "[0]"}, "mark", RIGHT)
    assert RIGHT in asking and "9422" not in asking
    assert "def" not in judging and "_value0 = [1]\n    assert _value0 == [4711, 9422]" in judging and "scaled" not in judging
    assert "[4711, 9422]" not in judging_program("", tests, {1: "[]"}, "mark"), "a test without all its values is not judged"


def test_only_values_come_back() -> None:
    lines = ["mark 0 [1, 2]", "mark 1 __import__('os')", "mark 2 nan", "other 3 1", "mark x 1", f"mark 4 {'9' * 30_000}", "mark 5 set()"]
    more = [
        "[one for one in (1,)]",
        "_value0",
        "{**{}}",
        "range(*[9])",
        "set(key=1)",
        "datetime.sys",
        "datetime.date(exec('1'))",
        "lambda: 1",
    ]
    lines += [f"mark {number} {text}" for number, text in enumerate(more, 6)]
    assert returned("\n".join(lines), "mark") == {0: "[1, 2]", 2: "nan", 5: "set()"}


async def test_row_without_tests_is_named(rows_in: Callable[..., str]) -> None:
    use(sandbox_of("monty"))
    for tests in ["assert True"], ["assert sum([1]) == 1"]:
        with pytest.raises(WrongOptions, match="environment 'code': row 0: the tests call no function"):
            Code(file=rows_in({"text": "?", "test_list": tests}))
    use(None)


async def test_sandbox_is_needed() -> None:
    use(None)
    with pytest.raises(WrongOptions, match="the environment 'code' runs code that a policy wrote"):
        Code()


def test_sandbox_protocol_is_all_that_is_used() -> None:
    assert {"start", "run", "close"} <= Sandbox.__abstractmethods__
