"""One tenant's burst waits at the gateway, and nobody behind it."""

import asyncio

import pytest

from common.bus import Bus
from gateway_svc.serving.stream_quota import MAX_SENT, SendWindow
from tests.support.rollout.replicas import performing
from tests.support.waiting import eventually

BURST, SEATS = 60, 4


async def test_request_begins_at_the_next_seat_beside_another_tenants_burst(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=SEATS)
        replica.source.may_go_on.clear()
        burst = [asyncio.create_task(stage.answer(stage.request(20))) for _ in range(BURST)]
        await eventually(lambda: replica.serving.requests == SEATS + MAX_SENT)  # those in the seats have their first token
        other = stage.request(20, tenant="globex", key=None)
        answer = asyncio.create_task(stage.answer(other))
        await eventually(lambda: replica.serving.requests == SEATS + MAX_SENT + 1)
        replica.source.may_go_on.set()
        assert (await answer).last.finish == "length"
        assert other.request in replica.source.begun[SEATS].request_id
        assert not all(one.done() for one in burst)
        answers = await asyncio.gather(*burst)
        assert {answer.last.finish for answer in answers} == {"length"}


async def test_request_whose_turn_does_not_come_in_time_is_overdue_and_never_sent(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=2)
        replica.source.may_begin.clear()
        burst = [asyncio.create_task(stage.answer(stage.request(20))) for _ in range(MAX_SENT)]
        await eventually(lambda: len(replica.source.begun) == 2)
        late = stage.request(20, wait_s=0.3)
        assert (await stage.answer(late)).last.failure == "overdue"
        replica.source.may_begin.set()
        await asyncio.gather(*burst)
        assert not any(late.request in one.request_id for one in replica.source.begun)


async def test_turns_are_fair_by_key_and_bounded() -> None:
    turns, order = SendWindow(max_sent=2), list[str]()
    held = [await turns.begin("p", "acme", "many") for _ in range(2)]

    async def ask(key: str) -> None:
        end = await turns.begin("p", "acme", key)
        order.append(key)
        end()

    asked = [asyncio.create_task(ask(key)) for key in ("many", "many", "many", "one")]
    await asyncio.sleep(0)
    assert turns.waiting == 4
    assert (await asyncio.wait_for(turns.begin("p", "globex", None), 60))() is None  # another tenant has turns of its own
    assert (await asyncio.wait_for(turns.begin("other", "acme", None), 60))() is None
    held[0]()
    held[0]()  # once is enough
    await asyncio.gather(*asked)
    assert order.index("one") <= 1
    held[1]()
    assert turns.waiting == 0
    assert not turns._slots


@pytest.mark.parametrize("is_granted", [False, True])
async def test_cancelled_request_leaves_its_turn_to_the_next(*, is_granted: bool) -> None:
    turns = SendWindow(max_sent=1)
    first = await turns.begin("p", "acme", None)
    waiting = [asyncio.create_task(turns.begin("p", "acme", None)) for _ in range(2)]
    await asyncio.sleep(0)
    if is_granted:
        first()
        waiting[0].cancel()
    else:
        waiting[0].cancel()
        first()
    end = await asyncio.wait_for(waiting[1], 60)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    end()
    assert not turns._slots
