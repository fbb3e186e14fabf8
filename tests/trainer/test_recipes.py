"""Every recipe is a task that its own pools take, and two steps with its settings train a small model."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.pools import objections
from common.spec import parse_spec
from env_svc import datasets
from env_svc.contract import Reply
from env_svc.registry import build
from tests.support.recipes import RECIPES, read_recipe, small, write_data
from tests.support.trainer.groups import make_groups
from tests.trainer.steps import begin, step
from trainer_svc.model.policy import Policy

each_recipe = pytest.mark.parametrize("folder", RECIPES, ids=lambda folder: folder.name)


def test_recipes_are_those_that_the_readme_lists() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)]+)/\)", (RECIPES[0].parent / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [folder.name for folder in RECIPES]


@each_recipe
def test_recipe_is_a_task_that_its_pools_take(folder: Path, tmp_path: Path) -> None:
    recipe = read_recipe(folder, tmp_path)
    assert recipe.pools[recipe.task["pool"]].profile is not None
    assert objections(recipe.spec, recipe.pools) == []
    written = (folder / "README.md").read_text()
    for heading in ("## Sources", "## Expectation (published by others, not measured here)", "## Cost (estimated)"):
        assert heading in written, heading


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipes' files, in the folder that environments of this process read; it is read from the settings once."""
    monkeypatch.setenv("MARLAAS_ENV_DATA", str(tmp_path / "data"))
    write_data(tmp_path / "data")
    datasets._data_folder.cache_clear()
    yield
    datasets._data_folder.cache_clear()


@each_recipe
@pytest.mark.usefixtures("data_folder")
async def test_environment_of_a_recipe_opens_and_grades(folder: Path, tmp_path: Path) -> None:
    spec = read_recipe(folder, tmp_path).spec
    for section in (spec.environment, *(spec.environment_of(one) for one in spec.evaluation.protocols)):
        environment = build(section.name, section.options)
        opening = await environment.open(0, 1)
        answer = await environment.gold(opening.state)
        turn = await environment.step(opening.state, Reply(answer if answer is not None else "8"))
        assert turn.reward in (0.0, 1.0)
        assert answer is None or turn.reward == 1.0


@each_recipe
def test_two_steps_with_the_settings_of_a_recipe_train(folder: Path, tmp_path: Path, policy: Policy) -> None:
    spec = parse_spec(small(read_recipe(folder, tmp_path).spec, "tiny"))
    assert (spec.lora.rank, spec.lora.alpha, spec.optimizer.warmup_steps) == (32, 32.0, 5)
    resident = begin(policy, spec)
    before = resident.optimizer.params.clone()
    for version in range(2):
        # Of an earlier version: the random log-probabilities would differ from the trainer's by more than the profile allows.
        groups = make_groups(version, groups=4, turns=spec.limits.max_turns, staleness=1)
        resident = step(policy, resident, spec, groups).resident
    assert resident.version == 2
    assert bool((resident.optimizer.params != before).any())
