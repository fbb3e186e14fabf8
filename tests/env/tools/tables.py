"""An executor of tool calls, and episodes of one environment that it plays."""

import itertools
from contextlib import aclosing
from typing import Any

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.calls import Call, Continued, OpenCall, Opened, Outcome, StepCall
from env_svc.contract import Reply
from env_svc.execution.tool_calls import ToolCallExecutor

TALK, COMPUTING, EQUIPPED, DOOR = (f"tests.env.tools.toy_tools:{name}" for name in ("Talk", "ComputingTalk", "Equipped", "Door"))
PARROT = "tests.env.tools.toy_tools:Parrot"


def environment_of(name: str = TALK, *tools: str | dict[str, Any], **more: Any) -> spec.EnvironmentSection:
    return spec.EnvironmentSection.model_validate({"name": name, "tools": tools, **more})


class Table:
    """Plays one environment's episodes."""

    def __init__(self, executor: ToolCallExecutor) -> None:
        self._executor = executor

    async def play(self, environment: spec.EnvironmentSection, *calls: Call, limits: spec.Limits | None = None) -> list[Outcome]:
        batches = self._executor.run(Claimant("a", "task-a"), environment, calls, 60.0, limits or spec.Limits())
        async with aclosing(batches):
            found = dict(itertools.chain.from_iterable([batch async for batch in batches]))
        return [found[position] for position in range(len(calls))]

    async def opened(self, environment: spec.EnvironmentSection) -> Opened:
        (outcome,) = await self.play(environment, OpenCall(0, 0))
        assert isinstance(outcome, Opened), outcome
        return outcome

    async def say(self, environment: spec.EnvironmentSection, text: str, *, limits: spec.Limits | None = None, **more: Any) -> Outcome:
        """The outcome of an episode's first reply."""
        state = (await self.opened(environment)).state
        (outcome,) = await self.play(environment, StepCall(0, state, Reply(text, more.pop("truncated", False)), **more), limits=limits)
        return outcome


def texts(outcome: Outcome) -> list[str]:
    assert isinstance(outcome, Continued), outcome
    assert {message.role for message in outcome.messages} == {"tool"}
    return [message.content for message in outcome.messages]
