"""Every recipe through the whole stack, with the tiny model in the place of its own: two steps, and all other settings as they are."""

import json
import shutil
from pathlib import Path

import pytest

from marlaas.client import Client
from marlaas.stack import control as stacks
from tests.support.paths import ROOT
from tests.support.recipes import RECIPES, read_recipe, small, write_data

pytestmark = pytest.mark.acceptance
TINY = ROOT / "models" / "tiny"
THINKING_OFF = "{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif -%}"


def pools_file(folder: Path) -> Path:
    """A pool with the tiny model, whose template has the argument that some recipes give."""
    shutil.copytree(TINY, folder / "model")
    template = folder / "model" / "chat_template.jinja"
    template.write_text(template.read_text().rstrip() + THINKING_OFF)
    pool = {"model": "model", "context_tokens": 512, "max_rank": 32, "kv_cache_gib": 0.25}
    path = folder / "pools.toml"
    path.write_text("[tiny]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in pool.items()))
    return path


@pytest.mark.timeout(900)
async def test_two_steps_of_every_recipe_through_the_whole_stack(data: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    plan = stacks.make_plan(data, pools_file(tmp_path), settings={"MARLAAS_ENV_DATA": str(tmp_path / "data")})
    stack = stacks.wait_until_ready(stacks.start(plan, end_with_parent=True), lambda stack: None)
    async with Client.connect(stack.nats_url, creds=stack.operator_key) as client:
        tasks = [await client.submit(small(read_recipe(folder, tmp_path).spec, "tiny")) for folder in RECIPES]
        ended = {task: await client.wait(task) for task in tasks}
    assert {task: (status.state, status.version, status.reason) for task, status in ended.items()} == dict.fromkeys(
        tasks, ("finished", 2, "")
    )
