"""Parsers of replies take linear time, on hostile replies too."""

from collections.abc import Callable

import pytest

from bench import grading
from bench.grading import NOISE_MS, fitted_exponent, hostile
from common.tool_calls import MAX_CALLS, MAX_PARSED_CHARS, find_calls
from env_svc.builtin.reasoning_gym import answer_in

PARSERS: dict[str, Callable[[str], object]] = {one.name: one.read for one in grading.graders(data_sets=("n_queens",))} | {
    "answer tags": answer_in
}
SHORT, LONG = 16 * 1024, 64 * 1024


def test_exponent_is_that_of_the_growth() -> None:
    assert fitted_exponent({1024 * 2**n: 10.0 * 2**n for n in range(9)}) == pytest.approx(1.0)
    assert fitted_exponent({1024 * 2**n: 10.0 * 4**n for n in range(9)}) == pytest.approx(2.0)
    assert fitted_exponent({1024: 0.001, 2048: 0.2}) == 0.0


@pytest.mark.parametrize("parser", PARSERS)
def test_parser_takes_four_times_as_long_for_four_times_the_reply_at_most(parser: str) -> None:
    """Bound on processor time: twice the linear growth; quadratic growth is sixteen times."""
    for text in grading.HOSTILE:
        short, long = (grading.cpu_ms(PARSERS[parser], hostile(text, size)) for size in (SHORT, LONG))
        assert long <= 8 * max(short, NOISE_MS), text


def test_only_the_end_of_a_long_reply_and_so_many_calls_are_read() -> None:
    call = "<search>a</search>"
    assert len(find_calls(call * (MAX_CALLS + 9), grading.TOOLS)) == MAX_CALLS
    assert find_calls(call + " " * MAX_PARSED_CHARS, grading.TOOLS) == []
    assert len(find_calls(" " * MAX_PARSED_CHARS + call, grading.TOOLS)) == 1


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer> 1 </answer> or <answer>2</answer>", "2"),
        ("<answer>1<answer>2</answer>", "1<answer>2"),
        ("<answer>1</answer><answer>2", "1"),
        (" no tag ", "no tag"),
    ],
)
def test_answer_is_what_the_last_closed_tag_holds(reply: str, answer: str) -> None:
    assert answer_in(reply) == answer


def test_program_names_each_grader_and_its_growth(capsys: pytest.CaptureFixture[str]) -> None:
    assert grading.main(["--no-write", "--graders", "tool calls,code", "--sizes", "1024,8192"]) == 0
    printed = capsys.readouterr().out
    assert '"grader": "tool calls"' in printed and '"exponent"' in printed
