"""The task files of examples/environments: each opens its first prompt with its tools, and a reply that is right earns its reward."""

import itertools
import tomllib
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgpack
import pytest

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.calls import Call, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.tool_state import ToolState
from env_svc.execution.workers import Workers
from env_svc.registry import find
from env_svc.sandboxes.monty import MontySandbox
from env_svc.tools.toolbox import Toolbox
from tests.support.env.sandboxes import in_use
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "environments"
CLASSES = {"code": "env_svc.builtin.code:Code", "multi_hop": "env_svc.builtin.multi_hop:MultiHop"}
"""Classes by name, so that the test needs no installed entry points."""


@pytest.fixture
async def executor(workers: Workers) -> AsyncIterator[ToolCallExecutor]:
    toolbox = Toolbox()
    async with in_use(MontySandbox(2)):
        yield ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s=20.0), toolbox)
    await toolbox.close()


@pytest.mark.parametrize("file", ["small_programs.toml", "multi_hop.toml"])
async def test_example_runs(executor: ToolCallExecutor, file: str) -> None:
    task = spec.parse_spec(tomllib.loads((FOLDER / file).read_text()))
    patient = {"time_s": 60.0} if "time_s" in task.environment.options else {}
    update = {"name": CLASSES[task.environment.name], "options": task.environment.options | patient}
    environment = task.environment.model_copy(update=update)

    async def outcome(call: Call) -> Outcome:
        async with aclosing(executor.run(Claimant("a", "task-a"), environment, [call], 30.0, task.limits)) as batches:
            ((_, found),) = list(itertools.chain.from_iterable([batch async for batch in batches]))
        return found

    opened = await outcome(OpenCall(0, task.seed))
    assert isinstance(opened, Opened), opened
    assert len(opened.tools) == 1
    _, state = ToolState.unwrap(opened.state)
    gold = await find(environment.name)(**environment.options).gold(msgpack.unpackb(state))
    scored = await outcome(StepCall(0, opened.state, Reply(gold or "")))
    assert isinstance(scored, Scored)
    assert scored.components["reward"] == 1.0
    assert scored.components["tool_calls"] == 0.0
