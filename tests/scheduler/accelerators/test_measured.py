"""Moves that an operator has measured: an executor is parked in a tier and woken from there at one order, whatever else waits."""

from pathlib import Path

import pytest

from common.accelerators import ExecutorState, Policy, Tier
from common.bus import Bus
from common.client_api.asking import Door
from common.client_api.deployment import Accelerators
from common.client_api.errors import ClientError
from marlaas.cli.operator.calibration import calibrate
from tests.scheduler.accelerators.pool_workers import executors
from tests.support.scheduler.executors import ACCELERATOR, MIB, POOLS, Device, Executor, World, a_scheduler, clean, running_world
from tests.support.waiting import eventually

HELD = "SELECT count(*) FROM executors WHERE held IS NOT NULL OR measured IS NOT NULL"
AWAKE_TWO = "SELECT count(*) FROM slices WHERE executor = 'rollout-two' AND awake_at IS NOT NULL AND ended_at IS NULL"
SHALLOW = {name: pool.model_copy(update={"parked": "device" if name == "two" else "host"}) for name, pool in POOLS.items()}


def operator(bus: Bus, nats_url: str) -> Accelerators:
    return Accelerators(Door(bus, nats_url, None))


async def measures(world: World, accelerators: Accelerators, service: str, tier: Tier) -> None:
    """Order the moves of an executor of the first pool, and wait until they were measured and the order is lifted."""
    [(last,)] = await world.rows("SELECT coalesce(max(id), 0) FROM moves")
    assert await accelerators.order("one", "wake", service="rollout" if service == "rollout" else "trainer", tier=tier) == [
        f"a/{service}-one"
    ]
    await were_measured(world, f"{service}-one", tier, after=last)


async def were_measured(world: World, executor: str, tier: Tier, *, after: object = 0) -> None:
    """It may be moved for others afterwards."""
    own = (
        f"SELECT id, from_tier, to_tier, lead(to_tier) OVER (ORDER BY id) AS next FROM moves WHERE executor = '{executor}' AND id > {after}"
    )
    await world.rows_become(f"SELECT bool_or(from_tier = 'device' AND to_tier = '{tier}' AND next = 'device') FROM ({own}) m", [(True,)])
    await world.rows_become(HELD, [(0,)])


async def known(world: World, count: int) -> None:
    """Until the leader has written the executors of the pools file."""
    await world.rows_become("SELECT count(*) FROM executors", [(count,)])


@pytest.mark.parametrize("policy", Policy)
async def test_nobody_computes_between_a_park_and_the_wake_that_measure_a_tier(
    bus: Bus, nats_url: str, database_url: str, policy: Policy
) -> None:
    accelerators = {"a": ACCELERATOR.model_copy(update={"policy": policy})}
    async with running_world(bus, database_url, accelerators=accelerators) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        one.drain_s = 0.2
        for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK):
            await two.wakes_for(1)
            await world.rows_become(AWAKE_TWO, [(1,)])  # the park before it is recorded, too
            await two.works(t2=7)
            await two.has_work(1)
            before = len(world.device.awake)
            ordered = len(one.orders)
            await measures(world, operator(bus, nats_url), "rollout", tier)
            assert world.device.awake[before : before + 2] == ["rollout-one", "rollout-one"]
            orders = [(order.wake, order.tier, order.drain_s) for order in one.orders[ordered:]][:3]
            assert orders == [(True, Tier.DEVICE, 0.0), (False, tier, 0.0), (True, Tier.DEVICE, 0.0)], "requests are frozen"
        assert await world.rows(
            "SELECT reason, count(*), count(*) FILTER (WHERE ended = 'held') FROM slices WHERE executor = 'rollout-one' GROUP BY 1"
        ) == [("operator", 6, 3)]
        next_ = "(SELECT min(n.epoch) FROM slices n WHERE n.epoch > s.epoch)"
        between = f"SELECT n.ordered_at >= s.parked_at FROM slices s JOIN slices n ON n.epoch = {next_} WHERE s.ended = 'held'"
        assert await world.rows(between) == [(True,)] * 3, "it is parked before anything else is ordered"
        await clean(world)


async def test_what_runs_ends_before_a_park_to_none_and_a_step_before_any(bus: Bus, nats_url: str, database_url: str) -> None:
    deep = {name: pool.model_copy(update={"parked": "none"}) for name, pool in POOLS.items()}
    async with running_world(bus, database_url, pools=deep) as world:
        await known(world, 4)
        for service, tier in (("rollout", Tier.NONE), ("trainer", Tier.HOST)):
            await measures(world, operator(bus, nats_url), service, tier)
            parks = [order for order in world.executors[f"{service}-one"].orders if not order.wake and order.tier is tier]
            assert [order.drain_s for order in parks] == [None]


async def test_answer_or_process_that_is_lost_in_between_is_made_up_for(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        one.drain_s = 0.5
        await operator(bus, nats_url).order("one", "wake", service="rollout", tier=Tier.HOST)
        await eventually(lambda: one.state is ExecutorState.PARKING)
        one.losses = 1
        await were_measured(world, "rollout-one", Tier.HOST)
        await operator(bus, nats_url).order("one", "wake", service="rollout", tier=Tier.DISK)
        await eventually(lambda: one.state is ExecutorState.PARKING)
        await world.kill("rollout-one")
        successor = Executor(bus, world.device, "rollout", "one", replica="r2", epoch=one.epoch)
        world.begin(successor)
        await were_measured(world, "rollout-one", Tier.DISK)
        await clean(world)


async def test_order_for_a_tier_is_refused_where_it_makes_no_sense(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, pools=SHALLOW) as world:
        await known(world, 4)
        accelerators = operator(bus, nats_url)
        with pytest.raises(ClientError, match="tier: pool 'two' may be parked no deeper than 'device', not in 'host'"):
            await accelerators.order("two", "wake", tier=Tier.HOST)
        with pytest.raises(ClientError, match="tier: moves to a tier are measured by the verb 'wake', not by 'drain'"):
            await accelerators.order("two", "drain", tier=Tier.DEVICE)
        assert await world.rows(HELD) == [(0,)]
        assert {one.pool: one.deepest for one in await accelerators.executors()} == {"one": Tier.HOST, "two": Tier.DEVICE}


async def test_calibration_measures_each_move_of_each_executor_and_goes_on_after_a_failure(
    bus: Bus, nats_url: str, database_url: str
) -> None:
    async with running_world(bus, database_url, pools=SHALLOW) as world:
        for executor in world.executors.values():
            executor.device_bytes = 10 * MIB
        world.executors["trainer-one"].failure = "canary differs"
        said, complaints = list[str](), list[str]()
        await known(world, 4)
        assert not await calibrate(operator(bus, nats_url), 1, said.append, complaints.append)
        assert complaints == ["round 1: trainer-one on a: it could not wake: canary differs"]
        assert said[0].startswith("4 executors are parked and woken 6 times. Running tasks wait meanwhile")
        assert [line.partition(": there 0.010 s, back 0.010 s, medians of ")[0] for line in said[2:]] == [
            f"round 1: {name} on a, {tier}" for name, tier in (
                ("rollout-one", "device"), ("rollout-one", "host"), ("rollout-two", "device"), ("trainer-two", "device"),
            )
        ]  # fmt: skip
        costs = "SELECT executor, from_tier, to_tier FROM move_costs WHERE executor <> 'trainer-one' AND from_tier <> 'none' ORDER BY 1, 3"
        measured = [("rollout-one", "device", "device"), ("rollout-one", "device", "host"), ("rollout-one", "host", "device")]
        assert sorted(await world.rows(costs), key=str) == [
            *measured,
            ("rollout-two", "device", "device"),
            ("trainer-two", "device", "device"),
        ]
        assert await world.rows(HELD) == [(0,)], "what could not wake is not ordered for ever"
        await clean(world)


async def test_order_of_an_executor_that_cannot_wake_is_lifted_although_its_sender_is_gone(
    bus: Bus, nats_url: str, database_url: str
) -> None:
    async with running_world(bus, database_url) as world:
        world.executors["trainer-one"].failure = "canary differs"
        await known(world, 4)
        await operator(bus, nats_url).order("one", "wake", service="trainer", tier=Tier.HOST)
        await world.rows_become("SELECT id, fault FROM executors WHERE faults > 0", [("trainer-one", "canary differs")])
        assert await world.rows(HELD) == [(0,)]


async def test_calibration_tries_an_executor_that_failed_before_and_not_one_that_is_paused(
    bus: Bus, nats_url: str, database_url: str
) -> None:
    fault = "UPDATE executors SET fault = 'of old', faults = 1, retry_at = now() + interval '{}' WHERE id = '{}'"
    async with running_world(bus, database_url, pools=SHALLOW) as world:
        await known(world, 4)
        await world.execute(fault.format("-1 hour", "trainer-two"), fault.format("1 hour", "rollout-two"))
        said, complaints = list[str](), list[str]()
        assert not await calibrate(operator(bus, nats_url), 1, said.append, complaints.append)
        assert complaints == ["round 1: rollout-two on a: it could not wake: of old"]
        assert [line.split()[2] for line in said[2:] if "-two" in line] == ["trainer-two"]
        assert await world.rows("SELECT faults FROM executors WHERE id = 'trainer-two'") == [(0,)]
        assert await world.rows(HELD) == [(0,)]


async def test_executors_with_locks_and_leases_do_it_too(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with a_scheduler(bus, database_url) as (scheduler, database, lead), executors(bus, tmp_path / "locks") as workers:
        world = World(bus, database, scheduler, lead, Device(), {})
        await known(world, 4)
        for tier in (Tier.DISK, Tier.DEVICE):
            await measures(world, operator(bus, nats_url), "rollout", tier)
        assert workers["one"].tier is Tier.DEVICE
        await clean(world)
