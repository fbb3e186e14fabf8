"""The list of long tests is true, and what is not on it is noticed."""

import ast

import pytest

from tests.long_tests import COMPUTED, LONG_S, REASONS, unlisted
from tests.support.paths import ROOT


@pytest.mark.parametrize("test", REASONS)
def test_listed_test_exists_and_has_a_reason(test: str) -> None:
    path, _, name = test.partition("::")
    assert REASONS[test]
    assert (ROOT / path).exists()
    if name:
        nodes = ast.walk(ast.parse((ROOT / path).read_text()))
        assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def report(test: str, duration: float, when: str = "call") -> pytest.TestReport:
    made = pytest.TestReport(test, ("", None, ""), {}, "passed", None, when, duration=duration)  # pyright: ignore[reportArgumentType]
    made.user_properties.append((COMPUTED, 1.5))
    return made


def test_only_calls_that_took_long_and_are_not_listed_are_named() -> None:
    listed = next(test for test in REASONS if "::" in test)
    reports = [report("a::b", LONG_S - 0.1), report("a::c[x]", LONG_S + 1), report("a::d", 99, "setup"), report(f"{listed}[x]", 99)]
    reports.append(report("tests/compose/test_compose.py::test_x", 99))
    reports.append(report("tests/marlaas/tenancy/test_keys.py::test_x", 99))
    reports.append(report("a::f", 99))
    reports[-1].keywords["slow"] = 1
    reports.append(report("a::g", 99))
    reports[-1].keywords["acceptance"] = 1
    assert [(one.test, one.took_s, one.computed_s) for one in unlisted([*reports, report("a::e", 60)])] == [
        ("a::e", 60, 1.5),
        ("a::c[x]", LONG_S + 1, 1.5),
    ]
