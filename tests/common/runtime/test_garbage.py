"""Full collections wait for a moment at rest."""

import asyncio
import gc
from collections.abc import Mapping

from common.runtime.process import MAX_SKIPPED, OLDER, collect_at_rest
from tests.support.waiting import eventually


async def test_everything_is_collected_at_rest_and_now_and_then_anyhow() -> None:
    full, looks, rests_from = list[int](), 0, 2 * (MAX_SKIPPED + 1)

    def count(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(looks)

    def is_at_rest() -> bool:
        nonlocal looks
        looks += 1
        return looks > rests_from

    gc.freeze()  # a collection of all that the tests have imported takes long
    gc.callbacks.append(count)
    collecting = asyncio.create_task(collect_at_rest(is_at_rest, 0.001))
    try:
        await eventually(lambda: len(full) >= 4)
    finally:
        gc.callbacks.remove(count)
        gc.unfreeze()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
    assert full[:4] == [MAX_SKIPPED + 1, rests_from, rests_from + 1, rests_from + 2]
    assert gc.get_threshold()[2] == OLDER
