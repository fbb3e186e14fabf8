"""Checks of environments before a task is accepted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from common.bus import Bus
from common.messages import SampledTurn, TokenRecord
from common.spec import EnvironmentSection
from env_svc.execution.workers import Workers
from tests.env.service.desk import Desk, at_desk, group_of, service_of, serving


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
    ("given", "has_tools"),
    [
        ({"name": "tests.env.toys:Countdown"}, False),
        ({"name": "tests.env.toys:Countdown", "tools": ["calculator"], "list_tools": False}, True),
        ({"name": "calculator"}, True),
    ],
)
async def test_check_says_whether_the_policy_has_tools(desk: Desk, given: dict[str, Any], has_tools: bool) -> None:
    answer = await desk.checked(EnvironmentSection(**given))
    assert (answer.objection, answer.has_tools) == (None, has_tools)


@pytest.fixture
async def public_desk(bus: Bus, workers: Workers) -> AsyncIterator[Desk]:
    """A replica as an operator runs it for tenants."""
    async with serving(bus, service_of(workers, call_timeout_s=60.0, allowed="installed")), at_desk(bus) as desk:
        yield desk


@pytest.mark.parametrize("kind", ["environment", "tool"])
async def test_name_that_is_not_allowed_is_refused_before_it_is_imported(
    public_desk: Desk, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guest_with_a_mark.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"environment": {"name": "guest_with_a_mark:X"}, "tool": {"name": "reasoning_gym:gcd", "tools": ["guest_with_a_mark:X"]}}
    environment = EnvironmentSection.model_validate(names[kind])
    assert f"{kind} 'guest_with_a_mark:X' is not allowed here" in (await public_desk.objection(environment) or "")
    group = group_of("x:y").model_copy(update={"environment": environment})
    await public_desk.open(group)
    for message, _ in await public_desk.scored(group.task, group.size):
        assert all("is not allowed here" in (member.failure or "") for member in message.members)
    turn = SampledTurn(member=0, turn=0, transcript=TokenRecord(), reply="7", finish="stop", state=b"\x80")
    await public_desk.give(group.model_copy(update={"task": "task-b"}), [turn])
    ((message, _),) = await public_desk.scored("task-b", 1)
    assert "is not allowed here" in (message.members[0].failure or "")
    assert not (tmp_path / "imported").exists()


async def test_module_that_ends_its_process_costs_one_refusal(desk: Desk) -> None:
    assert "cannot be imported: SystemExit" in (await desk.objection(EnvironmentSection(name="lib2to3.__main__:x")) or "")
    group = group_of("Countdown")
    assert len(await desk.opened(group)) == group.size


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


@pytest.mark.parametrize("place", ["task", "evaluation", "protocol"])
async def test_data_set_of_another_tenant_is_refused_wherever_it_is_named(bus: Bus, workers: Workers, place: str) -> None:
    """The operator's own, as the checks here are, may have those that it lists for itself."""
    service = service_of(workers, call_timeout_s=60.0, datasets="globex=open/theirs@1, _operator=open/own@1")
    plain = EnvironmentSection(name="math", options={"file": "word_problems.jsonl"})
    named: dict[str, JsonValue] = {"dataset": "open/theirs"}
    wanted = EnvironmentSection(name="math", options=named)
    async with serving(bus, service), at_desk(bus) as desk:
        found = await {
            "task": lambda: desk.objection(wanted),
            "evaluation": lambda: desk.objection(plain, wanted),
            "protocol": lambda: desk.objection(plain, protocols={"greedy": named}),
        }[place]()
    assert (found or "").endswith("'open/theirs' is not offered here; the operator lists (MARLAAS_ENV_DATASETS): open/own")
