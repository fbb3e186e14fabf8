"""Tool `python`: its answers to the policy's code."""

from collections.abc import AsyncIterator

import pytest

from env_svc.contract import WrongOptions
from env_svc.sandboxes.current import use
from env_svc.tools.python import Python, with_last_value
from env_svc.tools.registry import build
from env_svc.tools.tool import CallError
from tests.support.env.sandboxes import in_use, sandbox_of


@pytest.fixture(params=["monty", "bubblewrap"])
async def python(request: pytest.FixtureRequest) -> AsyncIterator[Python]:
    async with in_use(sandbox_of(request.param)):
        yield Python(time_s=30.0, memory_mib=64)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(1)\nprint('two')", "1\ntwo"),
        ("x = 6\nx * 7", "42"),
        ("import math; math.gcd(12, 18)", "6"),
        ("'größer'", "größer"),
        ("[1, 'a']", "[1, 'a']"),
        ("print('a')\n(1 +\n 2)", "a\n3"),
        ("None", "(nothing was printed)"),
        ("x = 1", "(nothing was printed)"),
        ("for n in range(2):\n    n", "(nothing was printed)"),
        ("", "(nothing was printed)"),
    ],
)
async def test_answer_is_what_is_printed_and_the_last_value(python: Python, code: str, answer: str) -> None:
    assert await python.call({"code": code}) == answer


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("print('before')\n1 / 0", "before\n"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("print(", "SyntaxError"),
        ("x = 'a' * 10**10", "stopped: it used more than 64 MiB"),
        ("while True: print('x' * 1000, flush=True)", "stopped: it printed more than 16384 bytes"),
    ],
)
async def test_code_that_fails_is_answered_with_what_went_wrong(python: Python, code: str, part: str) -> None:
    with pytest.raises(CallError) as caught:
        await python.call({"code": code})
    assert part in str(caught.value)


async def test_code_that_does_not_end_is_answered_with_its_limit(python: Python) -> None:
    hasty = Python(time_s=1.0, memory_mib=64)  # in the sandbox of `python`
    with pytest.raises(CallError, match="stopped: it took more than 1 s"):
        await hasty.call({"code": "while True: pass"})


async def test_nothing_is_kept_between_calls(python: Python) -> None:
    await python.call({"code": "x = 1"})
    with pytest.raises(CallError, match="NameError: name 'x' is not defined"):
        await python.call({"code": "x"})


def test_last_value_is_printed_where_the_code_stands() -> None:
    assert with_last_value("a = 1\nb").startswith("a = 1\n_value = (b)\n")
    assert with_last_value("a = 1") == "a = 1"
    assert with_last_value("a b") == "a b"


@pytest.mark.parametrize(
    ("options", "part"), [({"time_s": 0.0}, "time_s is 0"), ({"memory_mib": 1}, "memory_mib is 1"), ({"tim": 1}, "tim")]
)
def test_wrong_options_are_refused(options: dict[str, float], part: str) -> None:
    use(sandbox_of("monty"))
    with pytest.raises(WrongOptions, match=part):
        build("python", options)  # pyright: ignore
    use(None)


def test_without_a_sandbox_the_tool_is_refused() -> None:
    use(None)
    with pytest.raises(WrongOptions, match="the tool 'python' runs code that a policy wrote, and this process has no sandbox"):
        build("python", {})
