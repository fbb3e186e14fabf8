"""Executors that die, fail, hang, fence themselves, or lie to the leader, with real PostgreSQL and NATS."""

import asyncio
from typing import Literal

import pytest

from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Bus, Outgoing
from common.client_api.asking import Door
from common.client_api.deployment import Accelerators
from common.messages import LeaseDone, LeaseOrder
from marlaas.stack import servers
from scheduler_svc.accelerators.acts import LATE_S
from scheduler_svc.accelerators.reports import SILENT_S
from tests.support.proxy import Wire
from tests.support.scheduler.executors import MIB, POOLS, SLICES, TWO_TASKS, Executor, World, a_scheduler, clean, clock_of, running_world
from tests.support.waiting import eventually

# ------------------------------------------------------------------------------------------------------- failing executors


async def first_dies_and_second_wakes(world: World) -> None:
    """The samplers of both pools, of which the second has work."""
    _, two = await world.one_awake()
    await two.has_work(1)
    await world.kill("rollout-one")
    await two.wakes()


async def test_slice_of_an_executor_that_died_ends_and_the_next_is_ordered(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        await first_dies_and_second_wakes(world)
        await world.rows_become(SLICES, [("rollout-one", "first", "died"), ("rollout-two", "first", None)])
        await world.rows_become("SELECT task FROM slice_shares", [("t1",)])  # that it was ordered for
        last = await bus.streams.last(streams.LEASES, streams.lease_order("a", "rollout-one"))
        assert last is not None and not last.read(LeaseOrder).wake  # should it come back, it parks
        found = await clock_of(world, "one")
        assert found is not None and found.parked_since_s is not None
        await clean(world)


async def test_executors_are_not_gone_because_nats_was_silent(
    bus: Bus, nats_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Wire("silent", int(nats_url.rpartition(":")[2])).listening() as wire,
        await Bus.connect(servers.nats_url(wire.port), "behind the wire") as behind,
        running_world(behind, database_url) as world,
    ):
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        await one.wakes_for(3)
        with monkeypatch.context() as hasty:  # only now: a busy machine is silent for longer too
            hasty.setattr("scheduler_svc.accelerators.reports.SILENT_S", 0.6)
            wire.silence()
            await asyncio.sleep(3 * LATE_S)
            wire.speak()
            await world.heard(one, ExecutorState.AWAKE)
        await one.works(t1=3)
        await two.wakes_for(1)
        await world.rows_become(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "ratio", None)])


async def test_executor_that_reports_before_nats_answers_is_not_gone(bus: Bus, database_url: str) -> None:
    """As when NATS was silent until just after the leader found that nothing had arrived for long."""
    async with running_world(bus, database_url) as world:
        await world.one_awake()
        leader = world.leader
        await eventually(lambda: leader._rows.standings["a"].holder is not None)
        seen = leader._snapshot(leader._rows.standings["a"], bus.clock.now_s() + 2 * SILENT_S)
        assert seen.gone is not None and seen.gone is seen.standing.holder
        await leader._acts.record_gone(seen)
        assert await world.rows(SLICES) == [("rollout-one", "first", None)]


async def test_process_that_begins_anew_ends_the_slice_of_its_predecessor(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        [one] = await world.with_two_tasks("rollout-one")
        await one.wakes_for(1)
        await world.kill("rollout-one")
        world.begin(Executor(bus, world.device, "rollout", "one", replica="r2", epoch=one.epoch, ready=1, ready_since_s=1.0))
        await world.executors["rollout-one"].wakes()
        await world.rows_become(SLICES, [("rollout-one", "first", "died"), ("rollout-one", "first", None)])
        await clean(world)


async def test_executor_that_fenced_itself_is_paid_for_what_it_served_and_may_wake_again(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        [one] = await world.with_two_tasks("rollout-one")
        await one.wakes_for(1)
        one.state, one.tier = ExecutorState.PARKED, Tier.HOST
        world.device.free(one.name)
        await one.answer(one.epoch, one.state, Tier.DEVICE, served={"t1": 9}, busy_ms=10**9, failure="its lease was not confirmed")
        await one.wakes()
        await world.rows_become(SLICES, [("rollout-one", "first", "fenced"), ("rollout-one", "first", None)])
        assert await world.rows("SELECT idle_ms, ended FROM slices WHERE booked_at IS NOT NULL") == [(0, "fenced")]
        await clean(world)


async def test_executor_with_a_wrong_state_backs_off_and_delays_nobody(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        one.failure, one.lacks_memory = "canary differs", False
        await one.has_work(1)
        half_minutes = "floor((extract(epoch FROM retry_at - answered_at) + 1) / 30)"  # from when the answer is handled
        pause = f"SELECT fault, faults, {half_minutes} FROM executors WHERE faults > 0"
        await world.rows_become(pause, [("canary differs", 1, 1)])
        await two.wakes_for(1)
        await world.rows_become(SLICES, [("rollout-one", "first", "faulty"), ("rollout-two", "first", None)])
        await world.execute("UPDATE executors SET retry_at = now() WHERE faults > 0")
        await two.works(t2=1)
        await world.rows_become(pause, [("canary differs", 2, 2)])
        one.failure = None
        await world.execute("UPDATE executors SET retry_at = now() WHERE faults > 0")
        await one.wakes()
        await world.rows_become(pause, [])
        await clean(world)


async def test_executor_whose_process_dies_in_each_wake_backs_off_after_two_and_no_task_pays(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS)
        world.device.holder = "one that hangs"
        cause, fault = "the inference engine's process died: head_dim 40", "its process died while it woke"
        faults = "SELECT state, fault, faults, retry_at > now() + interval '1 s' FROM executors WHERE faults > 0"
        await world.executors["rollout-one"].has_work(1)
        await dies_waking(world)
        await world.rows_become(SLICES, [("rollout-one", "first", "died")])  # it is silent
        await world.rows_become(faults, [("faulty", fault, 1, False)])
        begin_anew(world, cause)
        await world.rows_become("SELECT fault FROM executors WHERE faults > 0", [(f"{fault}: {cause}",)])
        await dies_waking(world)
        begin_anew(world, cause)
        await world.rows_become(faults, [("faulty", f"{fault}: {cause}", 2, True)])
        world.device.free("one that hangs")
        await world.executors["rollout-two"].has_work(1)
        await world.executors["rollout-two"].wakes()
        died = ("rollout-one", "first", "died")
        await world.rows_become(SLICES, [died, died, ("rollout-two", "first", None)])
        assert await world.rows("SELECT DISTINCT task FROM slice_shares") == [("",)]
        assert await world.rows("SELECT * FROM ledger WHERE kind = 'accelerator'") == []
        await world.execute("UPDATE executors SET retry_at = now() WHERE faults > 0")
        await world.executors["rollout-two"].works(t2=1)
        await world.executors["rollout-one"].wakes()
        await world.rows_become(faults, [])
        await clean(world)


async def dies_waking(world: World) -> None:
    """The process of the first pool's sampler ends while it wakes."""
    await eventually(lambda: world.executors["rollout-one"].state is ExecutorState.WAKING)
    await world.kill("rollout-one")


def begin_anew(world: World, died_of: str) -> None:
    past = world.executors["rollout-one"]
    replica = f"{past.replica}+"
    world.begin(Executor(world.bus, world.device, "rollout", "one", replica, epoch=past.epoch, ready=1, ready_since_s=1.0, died_of=died_of))


async def test_order_to_wake_lifts_the_pause_after_a_failure(bus: Bus, nats_url: str, database_url: str) -> None:
    """What was wrong may be put right before the pause is over, which is up to an hour."""
    async with running_world(bus, database_url) as world:
        [one] = await world.with_two_tasks("rollout-one")
        one.failure, one.lacks_memory = "its model's folder is gone", False
        await one.has_work(1)
        await world.rows_become("SELECT fault FROM executors WHERE faults > 0", [("its model's folder is gone",)])
        await world.execute("UPDATE executors SET retry_at = now() + interval '1 hour' WHERE faults > 0")
        one.failure = None
        assert await Accelerators(Door(bus, nats_url, None)).order("one", "wake", service="rollout") == ["a/rollout-one"]
        await one.wakes()
        await clean(world)


@pytest.mark.parametrize(("parked", "tier"), [("device", Tier.DEVICE), ("disk", Tier.HOST)])
async def test_executor_that_died_is_ordered_no_deeper_than_its_pool_allows(
    bus: Bus, database_url: str, parked: Literal["device", "disk"], tier: Tier
) -> None:
    pools = {name: pool.model_copy(update={"parked": parked}) for name, pool in POOLS.items()}
    async with running_world(bus, database_url, pools=pools) as world:
        await first_dies_and_second_wakes(world)
        last = await bus.streams.last(streams.LEASES, streams.lease_order("a", "rollout-one"))
        assert last is not None
        order = last.read(LeaseOrder)
        assert (order.wake, order.tier) == (False, tier)


async def test_without_memory_others_are_parked_deeper_for_one_retry(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two, third = (world.executors[name] for name in ("rollout-one", "rollout-two", "trainer-two"))
        for each in (one, two, third):
            each.device_bytes = 100 * MIB
        for each in (two, third):  # both stay on the device
            await each.wakes_for(1)
            await each.works()
        one.failure, one.lacks_memory = "no memory", True
        await one.has_work(1)
        await world.rows_become("SELECT faults, needs_room FROM executors WHERE faults > 0", [(2, False)])
        assert [order.wake for order in one.orders] == [True, True]
        await eventually(lambda: (two.tier, third.tier) == (Tier.HOST, Tier.HOST))


async def test_executor_that_ignores_its_order_loses_its_slice(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_world(bus, database_url) as world:
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        one.is_deaf = True
        with monkeypatch.context() as hasty:
            hasty.setattr("scheduler_svc.accelerators.conditions.IGNORED_S", 1.0)
            await one.has_work(1)
            await world.rows_become("SELECT ended, faults FROM slices s JOIN executors e ON e.id = s.executor", [("died", 1)])
        await two.wakes_for(1)


async def test_executor_that_does_not_fit_delays_nobody_and_its_tasks_know_why(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        one.device_bytes = 1025 * MIB
        await one.answer(one.epoch, one.state, one.tier)
        await one.has_work(1)
        await two.wakes_for(1)
        await two.works(t2=1)
        await world.rows_become("SELECT device_bytes FROM executors WHERE id = 'rollout-one'", [(one.device_bytes,)])
        operator = Accelerators(Door(bus, nats_url, None))
        (said,) = [each.fault for each in await operator.executors("one") if each.executor == "rollout-one"]
        assert said is not None and said.startswith(
            "rollout-one needs 1074790400 bytes (1.00 GiB) on the device, and accelerator 'a' has 1.00"
        )
        assert one.orders == []
        one.device_bytes = 1024 * MIB
        await one.answer(one.epoch, one.state, one.tier)
        await one.wakes()


# --------------------------------------------------------------------------------------------------------------- liars


async def test_executor_that_has_waited_for_the_lock_for_long_keeps_its_slice(
    bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind one that hung until its watchdog ended it: the report that it is awake comes before its answer."""
    async with running_world(bus, database_url) as world:
        one = world.executors["rollout-one"]
        world.device.holder = "one that hangs"
        await one.has_work(1)
        await world.heard(one, ExecutorState.WAKING)
        monkeypatch.setattr("scheduler_svc.accelerators.conditions.IGNORED_S", 1.0)
        await asyncio.sleep(1.5)
        await one.tell(state=ExecutorState.AWAKE, epoch=one.epoch)
        world.device.free("one that hangs")
        await one.wakes()
        await world.rows_become(
            "SELECT ended, awake_at IS NOT NULL, faults FROM slices s JOIN executors e ON e.id = s.executor", [(None, True, 0)]
        )


async def test_executor_that_is_awake_without_a_slice_is_parked_for_the_next(
    bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after PostgreSQL was restored to a time before its slice."""
    monkeypatch.setattr("scheduler_svc.accelerators.snapshot.STRAY_S", 1.0)
    async with running_world(bus, database_url) as world:
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        one.device_bytes = two.device_bytes = 100 * MIB  # neither needs the other's room
        await one.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE awake_at IS NOT NULL", [(1,)])
        world.lead.cancel()
        await asyncio.gather(world.lead, return_exceptions=True)
        await world.execute("DELETE FROM slices", "UPDATE executors SET epoch = 0, state = 'cold', tier = 'none'")
        async with a_scheduler(bus, database_url):
            await one.works()
            await two.wakes_for(1)
            assert [order.wake for order in one.orders] == [True, False]


async def test_lies_change_nothing(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        rows = "SELECT epoch, executor, awake_at, ended_at FROM slices"
        before = await world.rows(rows)
        true = two.done(0, ExecutorState.PARKED, Tier.DEVICE, tier=Tier.HOST)
        lies: list[dict[str, object]] = [
            {"executor": "rollout-one", "pool": "one"},  # on the subject of another
            {"pool": "one"},
            {"busy_ms": -5},
            {"served": {"t2": -5}},
            {"move_s": float("nan")},
            {"state": ExecutorState.AWAKE, "epoch": one.epoch + 1},  # no such order
            {"epoch": one.epoch + 10**9},
            {"state": ExecutorState.WAKING},
            {"at_s": bus.clock.now_s() + 1000},
        ]
        for lie in lies:
            await two.send(true.model_copy(update=lie))
        await world.rows_become("SELECT count(*) FROM dead_letters WHERE stage = 'leases'", [(len(lies),)])
        await one.send(true.model_copy(update={"executor": one.name, "pool": "one", "at_s": 1.0}))  # an older epoch
        await two.send(true.model_copy(update={"state": ExecutorState.AWAKE, "epoch": one.epoch}))  # another's slice
        await two.tell(executor="rollout-one", state=ExecutorState.COLD)
        await two.tell(ready=-1)
        await two.tell(at_s=bus.clock.now_s() + 1000, ready=7)
        await eventually(lambda: any(not order.wake for order in two.orders))  # it says that it is awake, and must park
        assert await world.rows(rows) == before
        await clean(world)


async def test_repeated_and_late_answers_change_nothing(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        await one.works(t1=3)
        await two.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slice_shares", [(1,)])
        last = await bus.streams.last(streams.LEASES, streams.lease_done("a", "rollout-one"))
        assert last is not None
        parked = last.read(LeaseDone)
        rows = (
            "SELECT h.epoch, task, ms, a.epoch, e.state, e.epoch, e.replica FROM slice_shares h "
            "JOIN accelerators a ON a.id = h.accelerator JOIN executors e ON e.id = 'rollout-one'"
        )
        before = await world.rows(rows)
        for number, late in enumerate((parked, parked.model_copy(update={"epoch": parked.epoch - 1, "state": ExecutorState.AWAKE}))):
            await bus.publish(Outgoing(streams.lease_done("a", "rollout-one"), late, f"again-{number}"))
        consumer = streams.SCHEDULER_LEASES
        info = await bus.blobs_context().stream_info(consumer.stream)
        await eventually(lambda: _acknowledged(bus, info.state.last_seq))
        assert await world.rows(rows) == before
        assert await world.rows("SELECT count(*) FROM dead_letters") == [(0,)]


async def _acknowledged(bus: Bus, sequence: int) -> bool:
    return await bus.streams.acknowledged(streams.SCHEDULER_LEASES) >= sequence
