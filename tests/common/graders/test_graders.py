"""Graders as they are given: what is read, what is refused by name, templates and formulas."""

import math
from typing import Any

import pytest

from common.graders import MAX_RENDERED, Formula, MissingField, MissingOutput, Sample, TooLong, WrongGrader, read_grader, rendered
from common.graders.templates import MAX_PLACES, check_template
from tests.support.graders import CHECK, MULTI, NEAR


@pytest.mark.parametrize("grader", [CHECK, NEAR, MULTI, {"type": "python", "name": "p", "source": "def grade(sample, item):\n  return 1"}])
def test_a_grader_is_read(grader: dict[str, Any]) -> None:
    assert read_grader(grader).name == grader["name"]


def test_one_grader_alone_has_its_own_name_in_a_formula() -> None:
    multi = read_grader(MULTI | {"graders": CHECK, "calculate_output": "1 - exact"})
    assert multi.formula.value({"exact": 1.0}) == 0.0  # pyright: ignore


@pytest.mark.parametrize(
    ("grader", "field", "reason"),
    [
        ({"type": "score_model", "name": "s"}, "type", "'score_model' is not supported"),
        ({"type": "label_model", "name": "s"}, "type", "'label_model' is not supported"),
        (MULTI | {"graders": {"a": {"type": "score_model"}}}, "graders.a.type", "not supported"),
        (CHECK | {"operation": "re"}, "operation", "'eq', 'ne', 'like' or 'ilike'"),
        (CHECK | {"more": 1}, "more", "no such field"),
        (CHECK | {"input": "{{item}}"}, "input", "is no place"),
        (CHECK | {"input": "{{sample.output_tools}}"}, "input", "output_text and output_json"),
        (CHECK | {"input": "{{item.__class__.x()}}"}, "input", "is no place"),
        (NEAR | {"evaluation_metric": "cosine"}, "evaluation_metric", "'cosine' is not supported; there is fuzzy_match"),
        (NEAR | {"evaluation_metric": "best"}, "evaluation_metric", "there is no such; there is fuzzy_match"),
        ({"type": "python", "name": "p", "source": "def f(: pass"}, "source", "it is no Python"),
        ({"type": "python", "name": "p", "source": "x = 1"}, "source", "defines no function grade"),
        (MULTI | {"calculate_output": "exact + other"}, "calculate_output", "names 'other'"),
        (MULTI | {"graders": {"a b": CHECK}}, "graders", "its key 'a b' must be a name"),
        ({"type": "none"}, "", "type must be one of 'string_check', 'text_similarity', 'python', 'multi', not 'none'"),
        ([], "", "must be an object of fields, not a list"),
    ],
)
def test_what_is_wrong_is_named(grader: Any, field: str, reason: str) -> None:
    with pytest.raises(WrongGrader) as caught:
        read_grader(grader)
    assert caught.value.field.startswith(field) and reason in caught.value.reason, caught.value


def test_places_are_filled() -> None:
    item = {"a": {"b": [1, {"c": "x"}]}, "n": 2.5, "t": "ä"}
    sample = Sample('{"k": [10, 20]}')
    text = "{{ item.t }} {{item.a.b[1].c}} {{item.n}} {{item.a}} {{sample.output_json.k[1]}} {{sample.output_text}}"
    assert rendered(text, item, sample) == 'ä x 2.5 {"b": [1, {"c": "x"}]} 20 {"k": [10, 20]}'
    assert rendered("{{item.t}}", {"t": "{{item.n}}"}, sample) == "{{item.n}}", "what was filled in is not filled again"
    with pytest.raises(MissingField, match=r"item\.z"):
        rendered("{{item.z}}", item, sample)
    for reply in ("no JSON", "{}", "[" * 100_000):
        with pytest.raises(MissingOutput):
            rendered("{{sample.output_json.k[1]}}", item, Sample(reply))
    with pytest.raises(ValueError, match="at most"):
        check_template("x" * 20_001)


def test_a_text_of_a_template_is_bounded() -> None:
    check_template("{{item.t}}" * MAX_PLACES)
    with pytest.raises(WrongGrader, match=f"at most {MAX_PLACES} places") as caught:
        read_grader(CHECK | {"reference": "{{item.t}}" * (MAX_PLACES + 1)})
    assert caught.value.field == "reference"
    half = "x" * (MAX_RENDERED // 2)
    assert len(rendered("{{item.t}}{{ item.t }}", {"t": half}, Sample(""))) == MAX_RENDERED
    with pytest.raises(TooLong):
        rendered("{{item.t}}{{item.t}}.", {"t": half}, Sample(""))
    with pytest.raises(MissingField):
        rendered("{{item.t}}{{item.t}}{{item.t}}{{item.u}}", {"t": half}, Sample(""))


@pytest.mark.parametrize(
    ("text", "value"),
    [("a + 2 * b", 7.0), ("2 ^ b", 8.0), ("-min(a, b, 2)", -1.0), ("max(a, b) / 2", 1.5), ("floor(2.7) + ceil(2.1)", 5.0),
     ("sqrt(abs(0 - 16)) + log(exp(1))", 5.0)],
)  # fmt: skip
def test_formulas(text: str, value: float) -> None:
    assert math.isclose(Formula(text, frozenset("ab")).value({"a": 1.0, "b": 3.0}), value)


@pytest.mark.parametrize(
    "text",
    ["", "__import__('os').system('true')", "a.real", "a if b else 1", "[a]", "'a'", "True", "a == b", "lambda: 1", "min()", "sqrt(a, b)",
     "min(a, key=b)", "a; b", "(" * 300 + "a" + ")" * 300, "a" + " + a" * 200, "c", "eval(a)", "a @ b", "9" * 1001],
)  # fmt: skip
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Formula(text, frozenset("ab"))


def test_powers_of_formulas_are_of_floats() -> None:
    with pytest.raises((ArithmeticError, ValueError)):
        Formula("9 ^ 9 ^ 9 ^ 9", frozenset()).value({})
