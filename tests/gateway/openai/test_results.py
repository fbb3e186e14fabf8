"""The result of a job as a file holds one page of its steps at a time."""

import weakref
from typing import Any

from common.messages import AskSteps, StepDurations, StepOf, StepsAnswer, StepTimes, TaskStatus
from gateway_svc.openai.files import result_object, result_parts

PAGES, OF_PAGE = 20, 3


class Paged:
    """A door with pages of steps; knows how many steps that it has given are still held when it is asked again."""

    def __init__(self) -> None:
        self.asked = 0
        self.most_held = 0
        self._given: list[weakref.ref[StepOf]] = []

    async def ask(self, verb: str, request: AskSteps, answer: object, *, tenant: str | None = None) -> StepsAnswer:
        assert tenant is None, "the door's own"
        self.asked += 1
        self.most_held = max(self.most_held, sum(one() is not None for one in self._given))
        steps = [step(request.after + 1 + place) for place in range(OF_PAGE)]
        self._given += map(weakref.ref, steps)
        return StepsAnswer(steps=steps, has_more=self.asked < PAGES)


def step(version: int) -> StepOf:
    fields: dict[str, Any] = {"reward": 0.5, "staleness_mean": 0.0, "staleness_max": 0, "sampled_tokens": 1, "trained_tokens": 1}
    made = StepOf.model_construct(version=version, state="trained", groups=[version], metrics={}, **fields)
    return made.model_copy(update={"times": StepTimes.model_construct(), "durations": StepDurations.model_construct()})


async def test_a_result_is_made_as_it_is_read() -> None:
    door: Any = Paged()
    parts = result_parts(door, "t")
    first = await anext(parts)
    assert (door.asked, first.count(b"\n")) == (1, OF_PAGE)
    rest = [part async for part in parts]
    assert len(rest) == PAGES - 1 and door.most_held <= OF_PAGE
    status = TaskStatus(
        tenant="acme", task="t", name="t", pool="tiny", state="completed", version=60, steps=60, submitted_s=0.0, updated_s=0.0
    )
    counting: Any = Paged()
    assert (await result_object(counting, status)).bytes == sum(map(len, [first, *rest]))
    assert (counting.asked, counting.most_held <= OF_PAGE) == (PAGES, True)
