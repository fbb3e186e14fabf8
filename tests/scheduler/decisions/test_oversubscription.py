"""Oversubscription: more sequences in flight than samplers decode, where environments are slow."""

import pytest

from common.bus import Bus
from scheduler_svc.training.decisions import pool_load
from scheduler_svc.training.decisions.pool_load import ADJUSTMENT_S
from tests.scheduler.decisions.watching import MAX_FACTOR, MIN_FACTOR, Watched
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.waiting import eventually


def test_factor_rises_stepwise_while_samplers_are_idle_and_it_is_used() -> None:
    watched = Watched()
    assert watched.after(ADJUSTMENT_S, sampled=10) == MIN_FACTOR
    assert watched.after(1, sampled=10) == MIN_FACTOR * 1.25
    assert watched.after(3600, sampled=10) == MAX_FACTOR
    assert watched.controller.factor("other") == MIN_FACTOR


def test_unused_factor_is_not_raised() -> None:
    assert Watched().after(3600, sampled=10, used=0.5) == MIN_FACTOR


def test_one_full_moment_keeps_the_factor_and_full_samplers_lower_it() -> None:
    watched = Watched()
    raised = watched.after(60, sampled=10)
    assert raised > MIN_FACTOR
    assert watched.after(100, sampled=80) == raised
    watched.after(1, sampled=100)
    assert watched.after(ADJUSTMENT_S, sampled=10) < raised
    assert watched.after(3600, sampled=100) == MIN_FACTOR


def test_factor_is_not_raised_for_environments_that_cannot_keep_up() -> None:
    assert Watched().after(3600, sampled=10, spent=0.6) == MIN_FACTOR
    watched = Watched()
    assert watched.after(3600, sampled=10) == MAX_FACTOR
    assert watched.after(60, sampled=10, spent=0.6) == MAX_FACTOR
    assert watched.after(1, sampled=10, spent=0.8) == MIN_FACTOR


def test_empty_pool_resets_the_factor() -> None:
    watched = Watched()
    watched.after(3600, sampled=10)
    assert watched.after(1, sampled=0, used=0.0) == MIN_FACTOR


@pytest.mark.parametrize(("share", "min_busy", "max_factor"), [(0.5, 0.6, 1.6), (0.2, 0.75, 5.5), (0.01, 0.07, MAX_FACTOR)])
def test_samplers_become_busy_where_dialogues_spend_a_share_of_their_time_in_them(share: float, min_busy: float, max_factor: float) -> None:
    """The pool is always full; dialogues spend `share` of their time in the samplers."""
    watched, factor = Watched(), MIN_FACTOR
    for _ in range(1000):
        factor = watched.after(1, sampled=min(100.0, share * factor * 100))
    assert min(100.0, share * factor * 100) >= 100 * min_busy
    assert factor <= max_factor


async def test_idle_samplers_are_given_more_until_they_are_full(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_load, "ADJUSTMENT_S", 0.3)
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages, sequences=8) as world:
        raw = spec(steps=50, limits={"episode_timeout_s": 600})
        raw["algorithm"] |= {"groups_per_step": 64}
        world.rollout = world.rollout.model_copy(update={"busy": {"sequences": 8.0}})
        await world.make_room(8)
        await world.submit("slow", raw)
        await eventually(lambda: len(stages.opened) >= 6)  # 8 sequences times 1.5, in groups of two
        assert len(stages.opened) == 6
        world.rollout = world.rollout.model_copy(update={"busy": {"sequences": 1.0}})
        await world.make_room(8)
        await eventually(lambda: len(stages.opened) >= 32)
        assert len(stages.opened) == 32
