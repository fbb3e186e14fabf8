"""Tasks that trained on other groups than undisturbed: those in flight were void, as a store was older, and others took their place."""

import asyncio
import json
import os
import sys

from bench.plex.real.faults.scene import Scene
from marlaas.cli.session import operator_key
from marlaas.stack.state_files import read_plan

REFILLED = "SELECT count(*)::int FROM groups WHERE task = %s AND state = 'void'"
POOL = "SELECT pool FROM tasks WHERE id = %s"


async def equals_its_replay(scene: Scene, task: str) -> bool:
    """Whether groups of the task were refilled, and each of its steps, replayed from its recorded batch, has the recorded digests."""
    if not (await scene.rows(REFILLED, task))[0][0]:
        return False
    pool = (await scene.rows(POOL, task))[0][0]
    plan = read_plan(scene.data)
    trainer = next(one for one in plan.services if one.name == f"trainer-{pool}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainer_svc.replay", task, "--json", env={**os.environ, **trainer.env, **operator_key(plan)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, failed = (text.decode() for text in await process.communicate())
    steps = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    why = failed if process.returncode else ""
    print(f"  replayed {task}: {sum(one['equal'] for one in steps)} of {len(steps)} steps are equal {why}", flush=True)
    return process.returncode == 0 and bool(steps) and all(one["equal"] for one in steps)
