"""Large bodies are read in turns of the event loop of their own."""

import asyncio
import math
import time

import pytest

from common.resilience import event_loop
from common.resilience.event_loop import LARGE_BYTES, MAX_WAIT_S, QUIET_S, is_set_within, own_turn


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


async def test_who_is_cancelled_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "QUIET_S", math.inf)  # on a busy machine an empty turn may take long
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


async def test_large_bodies_wait_while_others_have_much_to_do_but_not_for_ever() -> None:
    until_s = time.monotonic() + 0.1

    async def busy() -> None:
        while time.monotonic() < until_s:
            time.sleep(2 * QUIET_S)
            await asyncio.sleep(0)

    other = asyncio.create_task(busy())
    await asyncio.sleep(0)
    await own_turn()
    assert time.monotonic() >= until_s
    until_s, began_s = time.monotonic() + 10, time.monotonic()
    other = asyncio.create_task(busy())
    await asyncio.sleep(0)
    await own_turn()
    other.cancel()
    assert time.monotonic() - began_s >= MAX_WAIT_S
    assert not other.done()


async def test_a_wait_for_an_event_ends_with_it_or_with_its_time() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, None)
    assert await is_set_within(event, 0.0)
