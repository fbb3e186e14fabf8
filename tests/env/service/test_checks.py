"""Checks of environments before a task is accepted."""

import pytest

from common.spec import EnvironmentSection
from tests.env.service.desk import Desk


@pytest.mark.parametrize("section", ["weights", "rank_weights"])
async def test_misspelt_weight_is_an_objection(desk: Desk, section: str) -> None:
    environment = EnvironmentSection.model_validate({"name": "reasoning_gym:gcd", section: {"scoer": 1.0}})
    assert "no reward component 'scoer'; did you mean 'score'" in (await desk.objection(environment) or "")


@pytest.mark.parametrize(
    ("name", "options", "objection"),
    [
        ("tests.env.toys:Countdown", {}, None),
        ("tests.env.toys:ComputingCountdown", {"start": 2}, None),
        ("reasoning_gym:gcd", {"min_value": 3}, None),
        ("reasoning_gym:gcd", {"min_valu": 3}, "did you mean 'min_value'"),
        ("reasoning_gym:gdc", {}, "did you mean 'reasoning_gym:gcd'"),
        ("tests.env.toys:Countdown", {"start": -1}, "start is -1, expected 1 or more"),
        ("subprocess:Popen", {"args": ["touch", "/tmp/x"]}, "is not an environment"),
    ],
)
async def test_check_says_whether_the_environment_opens(desk: Desk, name: str, options: dict[str, object], objection: str | None) -> None:
    found = await desk.objection(EnvironmentSection(name=name, options=options))  # pyright: ignore
    assert found is None if objection is None else objection in (found or "")


@pytest.mark.parametrize(
    ("options", "objection"),
    [
        ({"min_value": 3}, None),
        ({"min_valu": 3}, "evaluation.options: environment 'reasoning_gym:gcd' has no option 'min_valu'; did you mean"),
    ],
)
async def test_check_looks_at_the_evaluations_options_too(desk: Desk, options: dict[str, int], objection: str | None) -> None:
    evaluation = EnvironmentSection(name="reasoning_gym:gcd", options=options)  # pyright: ignore
    found = await desk.objection(EnvironmentSection(name="reasoning_gym:gcd"), evaluation)
    assert found is None if objection is None else (found or "").startswith(objection)


async def test_check_looks_at_the_options_of_every_protocol(desk: Desk) -> None:
    environment = EnvironmentSection(name="reasoning_gym:gcd", options={"min_value": 3})
    assert await desk.objection(environment, protocols={"greedy": {"max_value": 9}, "sampled": {"min_value": 4}}) is None


async def test_wrong_option_of_a_protocol_is_named_with_it(desk: Desk) -> None:
    environment = EnvironmentSection(name="reasoning_gym:gcd", options={"min_value": 3})
    found = await desk.objection(environment, protocols={"greedy": {"max_value": 9}, "sampled": {"min_valu": 3}})
    assert (found or "").startswith("evaluation.protocol 'sampled', options: environment 'reasoning_gym:gcd' has no option 'min_valu'")
