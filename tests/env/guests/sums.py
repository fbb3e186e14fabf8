"""A taskset as an author of `verifiers` writes one."""

import time
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: int


class SumConfig(vf.TasksetConfig):
    first: int = 10
    count: int = 5
    reads_what_is_away: bool = False
    endless: bool = False
    varies: bool = False


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def correct(self, task: Any, trace: Any) -> float:
        if trace.last_reply == "break the grader":
            raise ZeroDivisionError("no such sum")
        if trace.last_reply == "break the judge":
            raise vf.ProviderError("the judge's model is unavailable", status_code=503)
        return float(trace.last_reply == str(task.answer))

    @vf.reward(weight=0.5)
    async def parts(self, trace: Any) -> dict[str, float]:
        prompt = trace.messages[-2].content
        return {"short": float(len(trace.last_reply) < 10), "asked": float("What is" in prompt and prompt.endswith("number."))}

    @vf.metric
    async def thoughts(self, trace: Any) -> dict[str, float]:
        thought = trace.assistant_messages[-1].reasoning_content
        return {} if thought is None else {"thought_about": float(thought)}

    @vf.metric
    async def cut_off(self, trace: Any) -> float:
        return float(trace.is_truncated)


class Sums(vf.Taskset[SumTask, SumConfig]):
    @property
    def bounded(self) -> bool:
        return not self.config.endless

    def load(self) -> Iterator[SumTask]:
        if self.config.reads_what_is_away:
            raise ConnectionResetError("the hub is unavailable")
        number = 0
        while self.config.endless or number < self.config.count:
            one = self.config.first + number + (time.time_ns() if self.config.varies else 0)
            yield SumTask(SumData(prompt=f"What is {one} + 1?", system_prompt="Add.", answer=one + 1), self.config.task)
            number += 1
