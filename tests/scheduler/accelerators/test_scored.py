"""Of a trainer's slice, what was scored: as its executor answers, through the leader's booking, to the views."""

import pytest

from common.bus import Bus
from tests.support.scheduler.executors import clean, running_world


async def test_of_a_trainers_time_what_it_scored_is_booked_apart_and_never_more_than_it_was_busy(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "trainer-two")
        await two.wakes_for(1)
        await two.works(t2=40)
        two.busy_ms, two.score_ms = 10**6, 10**6 // 4  # longer than it was awake: its parts keep their proportion
        await one.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE booked_at IS NOT NULL", [(1,)])
        [(function, busy_ms, score_ms, whole)] = await world.rows(
            "SELECT function, busy_ms, score_ms, switch_ms + busy_ms + idle_ms = extract(epoch FROM ended_at - ordered_at) * 1000"
            " FROM slices WHERE booked_at IS NOT NULL"
        )
        assert (function, score_ms, whole) == ("train", busy_ms // 4, True) and busy_ms >= 4
        use = await world.rows(
            "SELECT function, slices, sum(busy_s)::float8 FROM accelerator_use WHERE pool = 'two' GROUP BY 1, 2 ORDER BY 2"
        )
        seconds = {row[0]: (row[1], row[2]) for row in use}
        assert seconds == {
            "score": (0, pytest.approx(score_ms / 1000)), "train": (1, pytest.approx((busy_ms - score_ms) / 1000)),
        }  # fmt: skip
        await clean(world)
