"""Checks of environments before a task is accepted."""

import pytest

from common import streams
from common.bus import Outgoing
from common.messages import (
    CheckEnvironment,
)
from common.spec import EnvironmentSection
from tests.conftest import eventually
from tests.env.service.desk import Desk


@pytest.mark.parametrize("section", ["weights", "rank_weights"])
async def test_misspelt_weight_is_an_objection(desk: Desk, section: str) -> None:
    environment = EnvironmentSection.model_validate({"name": "reasoning_gym:gcd", section: {"scoer": 1.0}})
    check = CheckEnvironment(tenant="acme", task="task-a", family="module", environment=environment, seed=1)
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    assert "no reward component 'scoer'; did you mean 'score'" in (desk.checks[0].objection or "")


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
    environment = EnvironmentSection(name=name, options=options)  # pyright: ignore
    check = CheckEnvironment(tenant="acme", task="task-a", family="module", environment=environment, seed=1)
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    (answer,) = desk.checks
    assert (answer.tenant, answer.task) == ("acme", "task-a")
    assert answer.objection is None if objection is None else objection in (answer.objection or "")


@pytest.mark.parametrize(
    ("options", "objection"),
    [
        ({"min_value": 3}, None),
        ({"min_valu": 3}, "evaluation.options: environment 'reasoning_gym:gcd' has no option 'min_valu'; did you mean"),
    ],
)
async def test_check_looks_at_the_evaluations_options_too(desk: Desk, options: dict[str, int], objection: str | None) -> None:
    check = CheckEnvironment(
        tenant="acme",
        task="task-a",
        family="module",
        environment=EnvironmentSection(name="reasoning_gym:gcd"),
        seed=1,
        evaluation=EnvironmentSection(name="reasoning_gym:gcd", options=options),  # pyright: ignore
    )
    await desk.bus.publish(Outgoing(streams.check("module", "task-a"), check, "check:task-a"))
    await eventually(lambda: desk.checks)
    (answer,) = desk.checks
    assert answer.objection is None if objection is None else (answer.objection or "").startswith(objection)
