"""Large bodies are read in turns of the event loop of their own."""

import asyncio

import pytest

from common.resilience.turns import LARGE_BYTES, own_turn


async def test_no_two_large_bodies_are_read_in_one_turn_and_small_ones_wait_for_none() -> None:
    turn, read = 0, list[int]()

    async def one(after: int, size: int = LARGE_BYTES) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        await own_turn(size)
        read.append(turn)

    reading = asyncio.gather(*(one(after) for after in (0, 0, 0, 1, 1, 2, 5)))
    while not reading.done():
        turn += 1
        await asyncio.sleep(0)
    assert sorted(read) == sorted(set(read)) and len(read) == 7
    with pytest.raises(StopIteration):  # it is over at once
        own_turn(1).send(None)


async def test_who_is_cancelled_leaves_its_place() -> None:
    waiting = [asyncio.create_task(own_turn(LARGE_BYTES)) for _ in range(5)]
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    turns = 0
    last = asyncio.create_task(own_turn(LARGE_BYTES))
    while not last.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns <= 3
