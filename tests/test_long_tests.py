"""The list of long tests is true, and what is not on it is noticed."""

import ast
import multiprocessing
import time

import psutil
import pytest

from tests.long_tests import COMPUTED, LONG_S, REASONS, pytest_runtest_call, unlisted
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


def _compute() -> None:
    until = time.process_time() + 1.0
    while time.process_time() < until:
        pass
    time.sleep(60)


def test_what_a_child_of_an_earlier_test_computed_is_not_this_tests(request: pytest.FixtureRequest) -> None:
    child = multiprocessing.get_context("fork").Process(target=_compute)
    child.start()
    while sum(psutil.Process(child.pid).cpu_times()[:2]) < 0.8:
        assert child.is_alive()
        time.sleep(0.02)
    around = pytest_runtest_call(request.node)
    next(around)
    child.kill()
    child.join()
    with pytest.raises(StopIteration):
        next(around)
    assert dict(request.node.user_properties)[COMPUTED] < 0.5
