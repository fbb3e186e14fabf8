"""The calculator: arithmetic, exact where it can be, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from env_svc.tools.calculator import BOUNDS, CalculatorTool
from env_svc.tools.tool import CallError


@pytest.fixture
async def calculator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CalculatorTool]:
    monkeypatch.setattr("env_svc.tools.calculator.BOUNDS", replace(BOUNDS, time_s=60.0))  # a machine may stop a run for seconds
    calculator = CalculatorTool()
    yield calculator
    await calculator.close()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*7", "84"),
        (" 12 * 7 ", "84"),
        ("2 + 3 * 4", "14"),
        ("(1 + 2) * 3", "9"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("2^10", "1024"),
        ("6 × 7 ÷ 2", "21"),
        ("0.1 + 0.2", "0.3"),
        ("123456789 * 987654321", "121932631112635269"),
        ("sqrt(2)", "1.41421356237"),
        ("max(3, abs(-5), 2)", "5"),
        ("(1 +\n 2)", "3"),
        ("3 # plus 4", "3"),
    ],
)
async def test_arithmetic(calculator: CalculatorTool, expression: str, value: str) -> None:
    assert await calculator.call({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("12 *", "'12 *' is not an expression"),
        ("", "is not an expression"),
        ("twelve", "'twelve' is not a number"),
        ("print(1)", "'print' is not a number"),
        ("(1).real", "Attribute is not arithmetic"),
        ("'a' * 10", "Constant is not arithmetic"),
        ("[x for x in (1, 2)]", "is not arithmetic"),
        ("open('/etc/passwd')", "is not"),
        ("9**9**9**9", "too large, or took more than 60 s"),
        ("1)\nimport os\nprint((2", "is not an expression"),
        ("1+" * 400 + "1", "at most 500"),
        ("(" * 300, "is not an expression"),
        ("sqrt", "'sqrt' is not a number"),
        ("max(3)", "TypeError"),
    ],
)
async def test_what_is_not_arithmetic_is_answered(calculator: CalculatorTool, expression: str, complaint: str) -> None:
    with pytest.raises(CallError) as caught:
        await calculator.call({"expression": expression})
    assert complaint in str(caught.value)


async def test_slow_expression_delays_no_other_call(calculator: CalculatorTool) -> None:
    slow = asyncio.ensure_future(calculator.call({"expression": "(9**9999)**999"}))
    assert await calculator.call({"expression": "1 + 1"}) == "2"
    with pytest.raises(CallError, match="too large"):
        await slow
