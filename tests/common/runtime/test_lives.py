"""Lives of processes: an end that was not ordered is known to the next one, with its cause."""

import asyncio
from contextlib import suppress

import pytest

from common.bus import Bus
from common.errors import Fatal
from common.messages import ProcessLife, trouble_of
from common.messages.lives import LIVES, REMEMBERED_S, WORKED_S, life_key
from common.runtime.health import Health
from common.runtime.lives import WITHOUT_A_WORD, living
from common.runtime.settings import Settings
from common.streams import HISTORY_BUCKET
from tests.support.waiting import eventually

KEY = life_key("trainer", "one")
PLAIN = ProcessLife(service="trainer", replica="one", began_s=100.0)


class TrainerLike(Settings):
    service = "TRAINER"
    pool: str = "tiny"


async def kept(bus: Bus) -> ProcessLife:
    found = await bus.kv.get(HISTORY_BUCKET, KEY, ProcessLife)
    assert found is not None
    return found


async def one_life(bus: Bus, error: BaseException | None = None, predecessor: str = "") -> ProcessLife:
    """A process that becomes ready and ends; returns its entry while it lived."""
    health, lived = Health(), PLAIN
    with suppress(Fatal, ValueError, asyncio.CancelledError, ExceptionGroup):
        async with living(TrainerLike(replica="one", predecessor=predecessor), bus, health):
            health.set_ready()
            await eventually(lambda: is_ready(bus))
            lived = await kept(bus)
            if error is not None:
                raise error
    return lived


async def is_ready(bus: Bus) -> bool:
    return (await kept(bus)).ready_s is not None


async def test_death_has_its_cause_and_an_ordered_end_has_none(bus: Bus) -> None:
    lived = await one_life(bus)
    assert (lived.pool, lived.ended, lived.deaths) == ("tiny", None, 0) and lived.start_s is not None and lived.ready_s is not None
    assert (await kept(bus)).ended == ""
    await one_life(bus, asyncio.CancelledError())
    assert (await kept(bus)).ended == "" and (await kept(bus)).deaths == 0
    await one_life(bus, ExceptionGroup("", [ValueError("of another"), Fatal("key 'trainer' may not publish $JS.FC.3")]))
    died = await kept(bus)
    assert (died.ended, died.deaths, died.cause) == (died.cause, 1, "key 'trainer' may not publish $JS.FC.3")
    lived = await one_life(bus, Fatal("key 'trainer' may not publish $JS.FC.77"))
    assert (lived.ended, lived.deaths, lived.died_s, lived.start_s) == (None, 1, died.died_s, pytest.approx(lived.start_s))
    assert (await kept(bus)).deaths == 2, "alike but for a number"
    await one_life(bus, ValueError("no\nroom"))
    assert ((await kept(bus)).deaths, (await kept(bus)).cause) == (1, "ValueError: no room")
    await one_life(bus)
    lived = await one_life(bus)
    assert (lived.deaths, lived.cause) == (0, "")
    assert [*await bus.kv.entries(HISTORY_BUCKET, ProcessLife, LIVES)] == [KEY]


async def test_end_without_a_word_is_a_death_too(bus: Bus) -> None:
    await bus.kv.put(HISTORY_BUCKET, KEY, PLAIN)
    lived = await one_life(bus)
    assert (lived.deaths, lived.cause) == (1, WITHOUT_A_WORD)
    await bus.kv.put(HISTORY_BUCKET, KEY, PLAIN)
    lived = await one_life(bus, predecessor="killed by SIGKILL")
    assert (lived.deaths, lived.cause) == (1, "killed by SIGKILL")


async def test_process_lives_on_where_its_life_cannot_be_kept(bus: Bus) -> None:
    await bus.kv.put(HISTORY_BUCKET, KEY, PLAIN)
    await bus.close()
    async with living(TrainerLike(replica="one"), bus, Health()):
        pass


def faulty(now_s: float, ready_s: float | None = None) -> str | None:
    life = PLAIN.dead("no", 99.0).dead("no", 99.0).dead("no", 99.0).model_copy(update={"ready_s": ready_s})
    trouble = trouble_of(life, now_s, is_alive=True)
    return trouble.state if trouble is not None else None


def test_three_deaths_alike_are_a_fault_until_it_has_worked_for_a_minute() -> None:
    assert faulty(101.0) == "faulty" and faulty(105.0, ready_s=104.0) == "faulty"
    assert faulty(104.0 + WORKED_S, ready_s=104.0) == "recovered"
    assert faulty(99.0 + REMEMBERED_S, ready_s=104.0) is None
    twice = PLAIN.dead("no", 98.0).dead("no", 99.0)
    trouble = trouble_of(twice.model_copy(update={"start_s": 12.0}), 101.0, is_alive=False)
    assert trouble is not None and (trouble.state, trouble.starts_in_s) == ("restarting", 11.0)
    assert trouble.sentence == "one restarts, about 11 s; it died 2 times alike: no"
    assert twice.dead("other", 100.0).deaths == 1 and twice.dead("no", 99.0 + REMEMBERED_S).deaths == 1


def test_replica_that_reports_no_more_is_gone_unless_it_was_ordered_to_end() -> None:
    works = PLAIN.model_copy(update={"ready_s": 101.0})
    assert trouble_of(works, 200.0, is_alive=True) is None
    gone = trouble_of(works, 200.0, is_alive=False)
    assert gone is not None and gone.state == "gone"
    assert trouble_of(works.model_copy(update={"ended": ""}), 200.0, is_alive=False) is None
