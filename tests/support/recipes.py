"""Recipes, read as a deployment reads them, and made small for the tiny model."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.pools import Pools, layers_of, read_pools
from common.spec import TaskSpec, complete
from env_svc.datasets import SHIPPED
from tests.support.paths import ROOT

RECIPES = sorted(path.parent for path in (ROOT / "recipes").glob("*/task.toml"))
DATA_FILES = ("gsm8k_train.jsonl", "gsm8k_test.jsonl", "math_train.jsonl", "math_test.jsonl")
"""Files that the recipes expect in MARLAAS_ENV_DATA."""


@dataclass(frozen=True)
class Recipe:
    name: str
    task: dict[str, Any]
    pools: Pools

    @property
    def spec(self) -> TaskSpec:
        return complete(self.task, layers_of(self.task, self.pools))


def read_recipe(folder: Path, scratch: Path) -> Recipe:
    """Its pools file is read from a copy, beside which stands the folder of a base model that is made only on demand."""
    copy = scratch / folder.name
    (copy / "base").mkdir(parents=True)
    shutil.copy(folder / "pools.toml", copy)
    return Recipe(folder.name, tomllib.loads((folder / "task.toml").read_text()), read_pools(copy / "pools.toml"))


def small(spec: TaskSpec, pool: str) -> dict[str, Any]:
    """The task with two small steps of short replies, on another pool; all other values as they are."""
    raw = spec.model_dump(mode="json")
    raw |= {"name": spec.name, "pool": pool, "steps": 2}
    raw["sampling"] |= {"max_tokens": 12}
    raw["limits"] |= {"max_prompt_tokens": 300, "max_reply_tokens": 60, "max_turns": min(2, spec.limits.max_turns)}
    raw["algorithm"] |= {"group_size": 4, "groups_per_step": 4, "max_refills": 2, "minibatches": 1}
    raw["evaluation"] |= {"every": 2 if spec.evaluation.every else 0, "prompts": 4}
    return raw


def write_data(folder: Path) -> None:
    """Files of questions and answers under the names that the recipes expect."""
    folder.mkdir()
    for name in DATA_FILES:
        shutil.copy(SHIPPED / "word_problems.jsonl", folder / name)
