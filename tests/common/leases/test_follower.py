"""Orders to executors: who holds lease, compute.lock and memory when; what overtakes what."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from common.accelerators import ExecutorState, NoMemory, StateMismatch, Tier, WorkDone
from common.bus import Bus, Outgoing
from common.errors import Fatal
from common.leases.locks import Locks, holders
from common.leases.reconciler import LeaseReconciler
from common.messages import Lease, LeaseOrder, ProcessLife
from common.messages.lives import life_key
from common.streams import HISTORY_BUCKET, LEASES_BUCKET, lease_order
from tests.support.leases import executables
from tests.support.leases.executables import ACCELERATOR, Paper, answer, answers, begun, followers, identity, means, order
from tests.support.waiting import at_work, eventually

AWAKE, PARKED, COLD, FAULTY = ExecutorState.AWAKE, ExecutorState.PARKED, ExecutorState.COLD, ExecutorState.FAULTY


@asynccontextmanager
async def following(bus: Bus, *those: LeaseReconciler) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for number, one in enumerate(those, 1):
            await stack.enter_async_context(at_work(one.run()))
            await begun(bus, number)
        yield


async def lease(bus: Bus) -> Lease | None:
    return await bus.kv.get(LEASES_BUCKET, ACCELERATOR, Lease)


async def test_executor_computes_with_lease_and_locks_and_parks_without_any(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        assert (await answer(bus, "one", 0)).state is COLD
        await order(bus, "one", 1, wake=True)
        woken = await answer(bus, "one", 1)
        assert (woken.state, woken.from_tier, woken.tier) == (AWAKE, Tier.OFF, Tier.DEVICE) and woken.move_s is not None
        held = await lease(bus)
        assert held is not None and (held.executor, held.epoch) == ("rollout-one", 1)
        assert holders(tmp_path).computing and holders(tmp_path).memory == {"rollout-one": 100}
        paper.done = WorkDone({"t": 7}, busy_s=0.25, pieces=2, score_s=0.125)
        await order(bus, "one", 2, wake=False, tier=Tier.HOST, drain_s=None)
        parked = await answer(bus, "one", 2)
        assert (parked.state, parked.from_tier, parked.tier) == (PARKED, Tier.DEVICE, Tier.HOST)
        assert parked.move_s == 0.125, "as the executable says, without what was waited for"
        assert (parked.served, parked.busy_ms, parked.score_ms, parked.pieces) == ({"t": 7}, 250, 125, 2) and parked.freed_bytes is not None
        assert await lease(bus) is None
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {}
    assert paper.moves == ["wake", "park host None"]


async def test_new_process_reports_why_the_one_before_it_died(bus: Bus, tmp_path: Path) -> None:
    [(follower, _)] = followers(bus, tmp_path, "one")
    me = identity("one")
    life = ProcessLife(service=me.service, replica=me.replica, began_s=1.0).dead("the inference engine's process died", 2.0)
    await bus.kv.put(HISTORY_BUCKET, life_key(me.service, me.replica), life)
    async with following(bus, follower):
        begin = await answer(bus, "one", 0)
        assert (begin.state, begin.failure) == (COLD, "the inference engine's process died")


async def test_paused_executor_keeps_its_memory_and_nothing_else(bus: Bus, tmp_path: Path) -> None:
    [(follower, _)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await order(bus, "one", 2, wake=False, tier=Tier.DEVICE)
        await answer(bus, "one", 2)
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {"rollout-one": 100}
        await order(bus, "one", 3, wake=False, tier=Tier.DISK)
        deeper = await answer(bus, "one", 3)
        assert (deeper.from_tier, deeper.tier, deeper.served) == (Tier.DEVICE, Tier.DISK, {}) and holders(tmp_path).memory == {}


async def test_accelerator_goes_from_one_executor_to_the_next(bus: Bus, tmp_path: Path) -> None:
    (first, one), (second, two) = followers(bus, tmp_path, "one", "two")
    async with following(bus, first, second):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await order(bus, "two", 2, wake=True)  # the next may hear of it first
        await eventually(lambda: second.state is ExecutorState.WAKING)
        one.may_move.clear()
        await order(bus, "one", 2, wake=False)
        await eventually(lambda: len(one.moves) == 2)
        assert two.moves == [] and holders(tmp_path).computing
        one.may_move.set()
        assert (await answer(bus, "two", 2)).state is AWAKE
        held = await lease(bus)
        assert held is not None and (held.executor, held.epoch) == ("rollout-two", 2)
        assert holders(tmp_path).memory == {"rollout-two": 100}


async def test_older_epochs_do_nothing(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 5, wake=True)
        await answer(bus, "one", 5)
        await order(bus, "one", 3, wake=False)
        await order(bus, "one", 6, wake=True)
        assert (await answer(bus, "one", 6)).move_s is None, "it goes on, under another epoch"
        held = await lease(bus)
        assert held is not None and held.epoch == 6
    assert paper.moves == ["wake"]
    assert [one.epoch for one in await answers(bus, "one")] == [0, 5, 6]


async def test_older_order_does_not_overtake_one_that_waits(bus: Bus, tmp_path: Path) -> None:
    (first, _), (second, two) = followers(bus, tmp_path, "one", "two")
    async with following(bus, first, second):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await order(bus, "two", 5, wake=True)
        await eventually(lambda: second.state is ExecutorState.WAKING)
        await order(bus, "two", 3, wake=False)
        await order(bus, "one", 5, wake=False)
        assert (await answer(bus, "two", 5)).state is AWAKE
    assert two.moves == ["wake"]


async def test_new_process_does_nothing_for_orders_from_before_its_start(bus: Bus, tmp_path: Path) -> None:
    await order(bus, "one", 8, wake=True)
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        assert (await answer(bus, "one", 8)).state is COLD
        assert follower.epoch == 8
        await order(bus, "one", 9, wake=True)
        assert (await answer(bus, "one", 9)).state is AWAKE
    assert paper.moves == ["wake"]


async def test_newer_order_overtakes_one_that_waits(bus: Bus, tmp_path: Path) -> None:
    (first, one), (second, two) = followers(bus, tmp_path, "one", "two")
    async with following(bus, first, second):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await order(bus, "two", 2, wake=True)
        await eventually(lambda: second.state is ExecutorState.WAKING)
        await order(bus, "two", 3, wake=False)
        assert (await answer(bus, "two", 3)).state is PARKED
        assert two.moves == [] and [each.epoch for each in await answers(bus, "two")] == [0, 3]
    assert one.moves == ["wake"]


async def test_order_that_comes_while_it_wakes_is_done_next_and_those_between_are_not(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        paper.may_move.clear()
        await order(bus, "one", 1, wake=True)
        await eventually(lambda: paper.moves == ["wake"])
        await order(bus, "one", 2, wake=False, tier=Tier.DISK)
        await order(bus, "one", 3, wake=True)
        await order(bus, "one", 4, wake=False, tier=Tier.HOST)
        await eventually(lambda: follower.epoch == 4)
        paper.may_move.set()
        await answer(bus, "one", 4)
    assert paper.moves == ["wake", "park host 0.0"]
    assert [(each.epoch, each.state) for each in await answers(bus, "one")] == [(0, COLD), (1, AWAKE), (4, PARKED)]


async def test_lease_of_a_holder_that_has_the_lock_no_more_is_taken_over(bus: Bus, tmp_path: Path) -> None:
    await executables.keep_leases(bus)
    killed = Locks(tmp_path, "rollout-killed")
    assert killed.take_compute()
    theirs = Lease(executor="rollout-killed", replica="killed", epoch=1, renewed_s=bus.clock.now_s(), lock=killed.identity)
    await bus.kv.put(LEASES_BUCKET, ACCELERATOR, theirs)
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 2, wake=True)
        await eventually(lambda: follower.state is ExecutorState.WAKING)
        await asyncio.sleep(0.2)  # several attempts, each of which must change nothing
        assert paper.moves == [] and await lease(bus) == theirs, "while its holder has the lock, no other takes it"
        killed.release_compute()  # as the kernel does when its process has died
        await answer(bus, "one", 2)
        held = await lease(bus)
        assert held is not None and (held.executor, held.epoch) == ("rollout-one", 2)


@pytest.mark.parametrize(("epoch", "lock"), [(1, None), (1, "of another host"), (2, "")])
async def test_lease_under_another_lock_or_of_the_same_epoch_is_waited_for_until_it_expires(
    bus: Bus, tmp_path: Path, epoch: int, lock: str | None
) -> None:
    await executables.shorten_leases(bus, 1.0)
    [(follower, paper)] = followers(bus, tmp_path, "one")
    theirs = Locks(tmp_path, "rollout-dead").identity if lock == "" else lock
    async with following(bus, follower):
        began_s = bus.clock.now_s()
        dead = Lease(executor="rollout-dead", replica="dead", epoch=epoch, renewed_s=began_s, lock=theirs)
        await bus.kv.put(LEASES_BUCKET, ACCELERATOR, dead)
        await order(bus, "one", 2, wake=True)
        assert (await answer(bus, "one", 2)).at_s > began_s + 0.5
    assert paper.moves == ["wake"]


async def test_order_for_an_accelerator_that_was_granted_since_is_given_up(bus: Bus, tmp_path: Path) -> None:
    newer = Lease(executor="rollout-other", replica="other", epoch=9, renewed_s=bus.clock.now_s())
    await bus.kv.put(LEASES_BUCKET, ACCELERATOR, newer)
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 2, wake=True)
        given_up = await answer(bus, "one", 2)
    assert given_up.state is COLD and given_up.failure is not None and "rollout-other has the accelerator with epoch 9" in given_up.failure
    assert paper.moves == [] and await lease(bus) == newer


async def test_holder_parks_itself_when_another_process_has_its_lease(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one", renew_s=0.05)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1, lambda one: one.state is AWAKE)
        thief = Lease(executor="rollout-other", replica="other", epoch=1, renewed_s=bus.clock.now_s())
        await bus.kv.put(LEASES_BUCKET, ACCELERATOR, thief)
        parked = await answer(bus, "one", 1, lambda one: one.state is PARKED)
        assert parked.failure is not None and not holders(tmp_path).computing
        assert await lease(bus) == thief
    assert paper.moves == ["wake", "park host 0.0"]


async def test_lease_that_was_lost_with_the_store_is_taken_again(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one", renew_s=0.05)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await bus.kv.remove(LEASES_BUCKET, [ACCELERATOR])
        await eventually(lambda: lease(bus))
    assert paper.moves == ["wake"]


async def test_executor_without_memory_is_faulty_and_holds_nothing(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one")
    paper.failures = [NoMemory("can't allocate memory")]
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        failed = await answer(bus, "one", 1)
        assert (failed.state, failed.failure, failed.lacks_memory) == (FAULTY, "can't allocate memory", True)
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {} and await lease(bus) is None
        await order(bus, "one", 2, wake=True)
        assert (await answer(bus, "one", 2)).state is AWAKE


async def test_wrong_state_is_dropped_and_made_anew(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "one")
    paper.failures = [StateMismatch("the canary differs by 5.9")]
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        failed = await answer(bus, "one", 1)
        assert (failed.state, failed.tier, failed.failure) == (FAULTY, Tier.NONE, "the canary differs by 5.9") and not failed.lacks_memory
        await order(bus, "one", 2, wake=True)
        assert (await answer(bus, "one", 2)).from_tier is Tier.NONE
    assert paper.moves == ["wake", "park none 0.0", "wake"]


async def test_broken_device_ends_the_process_and_says_why(bus: Bus, tmp_path: Path) -> None:
    [(follower, paper)] = followers(bus, tmp_path, "two")
    paper.failures = [Fatal("the device cannot be used any more")]
    ended = asyncio.create_task(follower.run())
    await answer(bus, "two", 0)
    await order(bus, "two", 2, wake=True)
    with pytest.raises(ExceptionGroup) as raised:
        await ended
    assert isinstance(raised.value.exceptions[0], Fatal)
    assert (await answer(bus, "two", 2)).failure == "the device cannot be used any more"
    assert await lease(bus) is None, "the next need not wait for its expiry"
    assert holders(tmp_path).computing, "its death frees the lock, and nothing less"


async def test_executor_waits_for_memory_of_others_and_says_who_has_it(bus: Bus, tmp_path: Path) -> None:
    other = Locks(tmp_path, "trainer-big")
    assert other.take_compute() and other.reserve(80, 150) is None
    other.release_compute()
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        refused = await answer(bus, "one", 1)
        assert refused.state is FAULTY and refused.failure == "100 bytes are needed on the device, of 150; held by trainer-big 80"
        assert paper.moves == [] and not holders(tmp_path).computing
    [(patient, paper)] = followers(bus, tmp_path, "two", memory_wait_s=60.0)
    async with following(bus, patient):
        await answer(bus, "two", 0)
        await order(bus, "two", 2, wake=True)
        await eventually(lambda: patient._room.free_since_s is not None, 60)
        assert paper.moves == []
        other.release_memory()
        assert (await answer(bus, "two", 2)).state is AWAKE


async def test_state_that_is_larger_than_estimated_does_not_stay_above_the_budget(bus: Bus, tmp_path: Path) -> None:
    class Larger(Paper):
        async def wake(self) -> None:
            await super().wake()
            self.device_bytes = 200

    larger = Larger()
    async with following(bus, LeaseReconciler(means(bus, tmp_path, "one", larger))):
        await order(bus, "one", 1, wake=True)
        failed = await answer(bus, "one", 1)
        assert (failed.state, failed.device_bytes) == (FAULTY, 200) and "200 bytes are needed on the device, of 150 for all" in str(
            failed.failure
        )
    assert larger.tier is Tier.NONE and holders(tmp_path).memory == {}


async def test_driver_has_the_last_word_on_a_gpu(bus: Bus, tmp_path: Path) -> None:
    free = 99

    async def driver() -> int | None:
        return free

    [(follower, paper)] = followers(bus, tmp_path, "one", free_bytes=driver)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        refused = await answer(bus, "one", 1)
        assert refused.state is FAULTY and refused.failure == "100 bytes are needed on the device, and its driver says that 99 are free"
        assert paper.moves == []
        free = 100
        await order(bus, "one", 2, wake=True)
        assert (await answer(bus, "one", 2)).state is AWAKE


async def test_order_to_another_executor_is_not_read(bus: Bus, tmp_path: Path) -> None:
    """A message that contradicts its subject, as a forged one."""
    [(follower, paper)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await answer(bus, "one", 0)
        forged = LeaseOrder(accelerator=ACCELERATOR, executor="rollout-two", epoch=1, wake=True)
        await bus.publish(Outgoing(lease_order(ACCELERATOR, identity("one").executor), forged, "forged"))
        await order(bus, "one", 2, wake=False)
        await answer(bus, "one", 2)
    assert paper.moves == []


async def test_ended_holder_leaves_no_lease(bus: Bus, tmp_path: Path) -> None:
    [(follower, _)] = followers(bus, tmp_path, "one")
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
    assert await lease(bus) is None
