"""Tasks with slow environments do not keep others from a pool's capacity."""

import heapq
import time
from collections import Counter
from itertools import count

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.messages.prompts import FIRST_EVALUATION_GROUP as FIRST_GROUP
from common.spec import Protocol, parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load, TaskShare, TenantShare
from scheduler_svc.training.admission import ADMISSION_BATCH_SIZE, admit
from scheduler_svc.training.decisions.admission import GUARANTEED_FRACTION, MinShares, groups_to_admit
from scheduler_svc.training.decisions.evaluation import PlannedGroups
from scheduler_svc.training.decisions.pool_load import PoolTimes
from scheduler_svc.training.queries import evaluations, tasks
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.waiting import eventually

GROUPS = 24
"""Groups that fit into the pool."""
SIZE = 8
CAPACITY = Capacity(GROUPS * SIZE, 10**9)


def share(task: str, tenant: str) -> TaskShare:
    return TaskShare(task, tenant, "tiny", 0, 0.0, 10**9, SIZE, 100.0, 800.0)


def groups_done(group_s: dict[str, float], shares: list[TaskShare], *, for_s: float) -> Counter[str]:
    """Groups that each task finishes in a full pool. `group_s`: duration of a group, by task."""
    tenants = {each.tenant: TenantShare(each.tenant, 1.0, 0.0) for each in shares}
    by_task = {each.task: each for each in shares}
    ends: list[tuple[float, int, str]] = []
    order, done, now_s = count(), Counter[str](), 0.0
    while now_s < for_s:
        in_flight = InFlight()
        for _, _, task in ends:
            in_flight.add(by_task[task].tenant, 1.0, task, Load(SIZE, 800.0))
        for admission in groups_to_admit(shares, tenants, {"tiny": CAPACITY}, {"tiny": in_flight}, limit=10**6).groups:
            by_task[admission.task].charge(admission.charged_tokens)
            tenants[by_task[admission.task].tenant].charge(admission.charged_tokens)
            heapq.heappush(ends, (now_s + group_s[admission.task], next(order), admission.task))
        now_s, _, task = heapq.heappop(ends)
        done[task] += 1
    return done


@pytest.mark.parametrize("tenants", ["two", "one"])
def test_slow_environment_leaves_a_quarter_of_the_capacity_to_a_fast_one(tenants: str) -> None:
    """A quarter is half of its share of one half, for two tenants and for two tasks of one."""
    shares = [share("slow", "x"), share("fast", "y" if tenants == "two" else "x")]
    done = groups_done({"slow": 60.0, "fast": 1.0}, shares, for_s=1800.0)
    held = {task: done[task] * {"slow": 60.0, "fast": 1.0}[task] / 1800.0 / GROUPS for task in done}
    assert held["fast"] == pytest.approx(0.25, abs=0.05)
    assert held["slow"] == pytest.approx(0.75, abs=0.05)


def test_a_fast_task_among_many_slow_ones_has_half_of_its_share() -> None:
    shares = [*(share(f"slow{number}", f"x{number}") for number in range(5)), share("fast", "y")]
    done = groups_done({each.task: 1.0 if each.task == "fast" else 60.0 for each in shares}, shares, for_s=1800.0)
    assert done["fast"] / 1800.0 / GROUPS >= GUARANTEED_FRACTION / 6


def test_tokens_decide_above_the_minimum_shares() -> None:
    """Groups of equal size, one with twice the time and tokens: both get the same tokens."""
    long, short = share("long", "x"), share("short", "y")
    long.group_tokens = 200.0
    done = groups_done({"long": 2.0, "short": 1.0}, [long, short], for_s=600.0)
    assert done["short"] / done["long"] == pytest.approx(2.0, rel=0.05)


def test_shares_are_weighted_and_the_scarcer_resource_counts() -> None:
    in_flight = InFlight()
    in_flight.add("x", 3.0, "a", Load(sequences=30, tokens=10.0))
    in_flight.add("y", 1.0, "b", Load(sequences=1, tokens=20.0))
    guaranteed = MinShares(Capacity(100, 100.0), in_flight, [share("c", "y")], {"y": TenantShare("y", 1.0, 0.0)})
    assert guaranteed.tenant_is_below("x")  # 30 % of the sequences, guaranteed half of three quarters
    assert not guaranteed.tenant_is_below("y")  # 20 % of the tokens, guaranteed half of a quarter
    assert guaranteed.satisfied_tenants() == {"y"}
    assert guaranteed.task_is_below("y", "c")
    assert not guaranteed.task_is_below("y", "b")


def test_a_pool_of_unknown_cache_counts_sequences() -> None:
    assert Load(5, 100.0).share_of(Capacity(10, 0.0)) == 0.5


@pytest.mark.parametrize("pools", [("tiny",), ("tiny", "large")])
@pytest.mark.parametrize("work", ["training", "evaluations"])
@pytest.mark.parametrize("owners", ["a tenant each", "one tenant"])
async def test_task_below_its_min_share_is_found_behind_many_that_are_less_served(
    database: Database, owners: str, work: str, pools: tuple[str, ...]
) -> None:
    """More tasks hold capacity and wait for more than there are candidates by least service."""
    hogs = [f"t{number:02}" for number in range((ADMISSION_BATCH_SIZE + 4) * len(pools))]
    held_in = f"groups WHERE protocol IS {'' if work == 'training' else 'NOT '}NULL AND"
    capacity = {pool: Capacity(4 * len(hogs) / len(pools), 10**9) for pool in pools}
    async with database.transaction() as tx:
        for number, task in enumerate([*hogs, "short"]):
            pool = pools[number % len(pools)]
            raw = spec(name=task, tenant=task if owners == "a tenant each" else "all", pool=pool, steps=100)
            raw["algorithm"] |= {"groups_per_step": 50}
            await tasks.add_task(tx.connection, task, parse_spec(raw), submission="")
            if work == "evaluations":
                await evaluations.add(
                    tx.connection,
                    task,
                    0,
                    None,
                    [
                        PlannedGroups(
                            Protocol(name="main", prompts=50, attempts=2, temperature=1.0),
                            range(FIRST_GROUP, FIRST_GROUP + 50),
                        )
                    ],
                )
                await tx.connection.execute(text("UPDATE tasks SET admitted = 100"))  # the maximum that training may be ahead
        await tx.connection.execute(text("UPDATE tasks SET state = 'running', family = 'toy' WHERE id <> 'short'"))
    await _admit_all(database, capacity)
    async with database.transaction() as tx:
        held = (await tx.connection.execute(text(f"SELECT task, count(*) FROM {held_in} state = 'open' GROUP BY task"))).all()
        assert dict(held) == dict.fromkeys(hogs, 2)  # type: ignore[arg-type]
        await tx.connection.execute(text("UPDATE tasks SET state = 'running', family = 'toy', virtual_time = 1e9 WHERE id = 'short'"))
        await tx.connection.execute(text("UPDATE tenants SET virtual_time = 1e9 WHERE id = 'short'"))
        await tx.connection.execute(text(f"DELETE FROM {held_in} task IN ('t00', 't01') AND number % 50 = 0"))
    await _admit_all(database, capacity)
    async with database.transaction() as tx:
        opened = text(f"SELECT count(*) FROM {held_in} task = 'short' AND state = 'open'")
        assert (await tx.connection.execute(opened)).scalar_one() == 1


async def _admit_all(database: Database, capacity: dict[str, Capacity]) -> None:
    wants_more = True
    while wants_more:
        async with database.transaction() as tx:
            _, wants_more = await admit(tx, dict(capacity), SchedulingPolicy.ASYNCHRONOUS, PoolTimes(time.time()))


async def test_tenant_whose_environment_hangs_keeps_no_other_from_sampling(bus: Bus, database_url: str) -> None:
    """Its groups fill the pool, end at their deadlines and are refunded; by tokens alone it would stay the least served."""
    stages = Stages(withheld=lambda group, member: group.task == "hangs")
    async with running_world(bus, database_url, stages, sequences=8) as world:
        raw = spec(limits={"episode_timeout_s": 5}, steps=50)
        raw["algorithm"] |= {"groups_per_step": 64}
        await world.submit("hangs", raw)
        await eventually(lambda: len(stages.opened) >= 6)
        await world.run("works", spec(tenant="other"), until="step")
        assert await world.rows("SELECT state FROM tasks WHERE id = 'hangs'") == [("running",)]  # it need not fail first
        await world.event("works", "finished", tenant="other")
