"""The trainer's step against the reference, in every combination of fields; pairs each time, triples in the slow tests."""

from dataclasses import astuple
from pathlib import Path

import pytest

from common.spec.sections import Algorithm, Correction, Overlong
from tests.oracle.comparison import Compared, compared
from tests.oracle.covering import Row, allowed_choices
from tests.oracle.settings import FACTORS, NO_PART_IN_A_STEP, is_allowed, rows, spec_of
from trainer_svc.model.policy import Policy

BOUND = 1e-4
"""Maximum relative error of gradient, adapter's change, loss and gradient norm."""
PARTS = 8


PAIRS = rows(2)


def named(row: Row) -> str:
    return ", ".join(f"{path.partition('.')[2]} {value}" for path, value in row.items() if value != FACTORS[path][0])


def assert_equal(found: Compared, row: Row) -> None:
    assert max(astuple(found)) <= BOUND, f"{found} with {named(row)}"


def test_every_field_is_in_the_tables_or_has_no_part_in_a_step() -> None:
    sections = {"algorithm": Algorithm, "correction": Correction, "overlong": Overlong}
    fields = {f"{section}.{name}" for section, model in sections.items() for name in model.model_fields}
    assert fields == FACTORS.keys() | NO_PART_IN_A_STEP.keys()


@pytest.mark.parametrize("strength", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_table_has_every_combination_that_a_task_may_have(strength: int) -> None:
    places = [tuple((name, FACTORS[name].index(value)) for name, value in row.items()) for row in rows(strength)]
    for choice in allowed_choices(FACTORS, strength, is_allowed):
        assert any(set(choice) <= set(row) for row in places), choice


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_step_equals_the_reference_in_every_pair(policy: Policy, model_folder: Path, tmp_path: Path, number: int) -> None:
    assert_equal(compared(policy, model_folder, tmp_path, spec_of(PAIRS[number]), seed=number), PAIRS[number])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_step_equals_the_reference_in_every_triple(policy: Policy, model_folder: Path, tmp_path: Path, part: int) -> None:
    for number, row in list(enumerate(rows(3)))[part::PARTS]:
        assert_equal(compared(policy, model_folder, tmp_path / str(number), spec_of(row), seed=1000 + number), row)
