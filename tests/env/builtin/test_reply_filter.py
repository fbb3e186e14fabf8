"""Replies that may reach a scorer that evaluates them."""

import pytest

from env_svc.builtin.reply_filter import UNREADABLE, readable


@pytest.mark.parametrize("reply", ["ABCDA", "['A', 'B']", "1 0\n0 1", "[[1, 0], [0, 1]]", "('A', 'B')", "_ Q\nQ _"])
def test_literals_and_text_like_an_answer_reach_a_scorer_that_evaluates(reply: str) -> None:
    assert readable("string_insertion", reply) == reply


@pytest.mark.parametrize(
    "reply",
    [
        "exit()",
        "__import__('os').system('id')",
        "[open('/etc/passwd').read()]",
        "9**9**9",
        "[0]*10**10",
        "f'{exit()}'",
        "(lambda: 1)()",
        "[0 for c in [self.__class__] for c.__class_getitem__ in [exit] for x in [c[0]]]",
        "oracle_answer",
        "entry['answer']",
        "entry",
        "the answer is 3",
        "A if 1 else B",
        "1 << 9999999999",
    ],
)
def test_code_does_not_reach_a_scorer_that_evaluates(reply: str) -> None:
    assert readable("n_queens", reply) == UNREADABLE


@pytest.mark.parametrize(
    "reply",
    [
        "3*x**2 + C",
        " -x**3/3 + C",
        "exp(2*x)*sin(x)",
        "(72 - 20) * 3 / 2",
        "sqrt(x)",
        "x**(1/2)",
        "x**(-3)",
        "2**x",
        "log(x, )",
        "E**(2*x)",
    ],
)
def test_formulas_reach_sympy(reply: str) -> None:
    assert readable("simple_integration", reply) == reply


@pytest.mark.parametrize(
    "reply",
    [
        "__import__('os').system('id')",
        "x.__class__",
        "exec(x)",
        "open(x)",
        "'a'",
        "[x for x in y]",
        "9**9**9",
        "9**(10**10)",
        "((9**100)**100)**100",
        "9**(100*100*100)",
        "x if y else z",
        "lambda: 0",
        "os_system(1)",
        "5! + __import__('os')",
        "exp(" * 5_000,
        "",
    ],
)
def test_code_and_towers_of_powers_do_not_reach_sympy(reply: str) -> None:
    assert readable("countdown", reply) == UNREADABLE


def test_other_data_sets_see_every_reply() -> None:
    assert readable("gcd", "exit()") == "exit()"
