"""State moves under compute.lock alone: of those that are parked, too, and so never beside another's move or slice."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from common.accelerators import ExecutorState, NoMemory, Tier
from common.bus import Bus
from common.leases.locks import Locks, holders
from common.leases.moves import OTHERS_FIRST_S
from common.leases.reconciler import LeaseReconciler
from common.messages import Lease
from common.streams import LEASES_BUCKET
from tests.support.leases.executables import ACCELERATOR, HandClock, Paper, answer, answers, begun, followers, means, order
from tests.support.waiting import at_work, eventually

AWAKE, PARKED, FAULTY, WAKING = ExecutorState.AWAKE, ExecutorState.PARKED, ExecutorState.FAULTY, ExecutorState.WAKING
BUDGET = 250
"""Two of the tests' executors fit, and three do not."""
PARALLEL = 3


@asynccontextmanager
async def following(bus: Bus, *those: LeaseReconciler) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for one in those:
            await stack.enter_async_context(at_work(one.run()))
        await begun(bus, len(those))
        yield


async def wake(bus: Bus, pool: str, epoch: int) -> None:
    await order(bus, pool, epoch, wake=True)
    assert (await answer(bus, pool, epoch)).state is AWAKE


async def park(bus: Bus, pool: str, epoch: int, tier: Tier) -> None:
    await order(bus, pool, epoch, wake=False, tier=tier)
    assert (await answer(bus, pool, epoch)).state is PARKED


async def several_looks() -> None:
    """In which each executor would have moved."""
    await asyncio.sleep(0.25)


async def test_paused_executor_moves_once_the_holder_has_parked_and_under_the_lock(bus: Bus, tmp_path: Path) -> None:
    (first, one), (second, two) = followers(bus, tmp_path, "one", "two", budget_bytes=BUDGET)
    async with following(bus, first, second):
        await wake(bus, "one", 1)
        await park(bus, "one", 2, Tier.DEVICE)
        await wake(bus, "two", 3)
        one.may_move.clear()
        await order(bus, "one", 4, wake=False, tier=Tier.HOST)
        await eventually(lambda: first.epoch == 4)
        await several_looks()
        assert one.moves == ["wake", "park device 0.0"] and first.state is PARKED
        await park(bus, "two", 5, Tier.DEVICE)
        await eventually(lambda: len(one.moves) == 3, 60)
        assert holders(tmp_path).computing, "while it moves"
        await order(bus, "two", 6, wake=True)
        await eventually(lambda: second.state is WAKING)
        await several_looks()
        assert second.state is WAKING and two.moves == ["wake", "park device 0.0"]
        one.may_move.set()
        assert (await answer(bus, "one", 4)).tier is Tier.HOST
        assert (await answer(bus, "two", 6)).state is AWAKE
        assert holders(tmp_path).memory == {"rollout-two": 100}


async def test_next_executor_waits_without_the_lock_until_a_paused_one_has_made_room(bus: Bus, tmp_path: Path) -> None:
    """As a switch is ordered: all orders at once, in any order."""
    (first, one), (second, two), (third, three) = followers(bus, tmp_path, "one", "two", "three", budget_bytes=BUDGET, memory_wait_s=60.0)
    async with following(bus, first, second, third):
        await wake(bus, "one", 1)
        await park(bus, "one", 2, Tier.DEVICE)
        await wake(bus, "two", 3)
        two.may_move.clear()
        await order(bus, "three", 4, wake=True)
        await order(bus, "one", 4, wake=False, tier=Tier.HOST)
        await order(bus, "two", 4, wake=False, tier=Tier.DEVICE)
        await eventually(lambda: len(two.moves) == 2, 60)
        await several_looks()
        assert len(one.moves) == 2 and three.moves == [], "the holder still parks"
        one.may_move.clear()
        two.may_move.set()
        await eventually(lambda: len(one.moves) == 3, 60)
        assert three.moves == []
        three.may_move.clear()
        one.may_move.set()
        await eventually(lambda: three.moves == ["wake"], 60)
        assert holders(tmp_path).memory == {"rollout-two": 100, "rollout-three": 100}, "entered before it moves"
        three.may_move.set()
        assert (await answer(bus, "three", 4)).state is AWAKE


async def test_newer_order_overtakes_a_move_that_waits_for_the_lock(bus: Bus, tmp_path: Path) -> None:
    (first, one), (second, _) = followers(bus, tmp_path, "one", "two", budget_bytes=BUDGET)
    async with following(bus, first, second):
        await wake(bus, "one", 1)
        await park(bus, "one", 2, Tier.DEVICE)
        await wake(bus, "two", 3)
        await order(bus, "one", 4, wake=False, tier=Tier.DISK)
        await eventually(lambda: first.epoch == 4)
        await order(bus, "one", 5, wake=True)
        await eventually(lambda: first.state is WAKING)
        await order(bus, "two", 5, wake=False, tier=Tier.DEVICE)
        assert (await answer(bus, "one", 5)).state is AWAKE
        assert one.moves == ["wake", "park device 0.0", "wake"]
    assert [each.epoch for each in await answers(bus, "one")] == [0, 1, 2, 5]


async def test_executor_that_waits_for_memory_keeps_neither_lock_nor_lease_and_a_newer_lease_ends_its_order(
    bus: Bus, tmp_path: Path
) -> None:
    other = Locks(tmp_path, "trainer-big")
    assert other.take_compute() and other.reserve(80, 150) is None
    other.release_compute()
    [(follower, paper)] = followers(bus, tmp_path, "one", memory_wait_s=60.0)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await eventually(lambda: follower._room.free_since_s is not None, 60)
        assert (
            await bus.kv.keys(LEASES_BUCKET) == set()
            and not holders(tmp_path).computing
            and holders(tmp_path).memory == {"trainer-big": 80}
        )
        newer = Lease(executor="trainer-big", replica="big", epoch=2, renewed_s=bus.clock.now_s(), lock=other.identity)
        await bus.kv.put(LEASES_BUCKET, ACCELERATOR, newer)
        other.release_memory()
        given_up = await answer(bus, "one", 1)
        assert (
            given_up.state is ExecutorState.COLD and given_up.failure is not None and "trainer-big has the accelerator" in given_up.failure
        )
        assert paper.moves == [] and await bus.kv.get(LEASES_BUCKET, ACCELERATOR, Lease) == newer
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {}


async def test_time_in_which_another_computes_is_no_time_without_room(bus: Bus, tmp_path: Path) -> None:
    other = Locks(tmp_path, "rollout-other")
    assert other.take_compute() and other.reserve(80, 150) is None
    other.release_compute()
    clock = HandClock()
    [(follower, paper)] = followers(bus, tmp_path, "one", memory_wait_s=0.8, clock=clock)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await eventually(lambda: follower._room.free_since_s is not None)
        await eventually(other.take_compute)
        await eventually(lambda: follower._room.free_since_s is None)
        clock.pass_s(1.0)
        await several_looks()
        assert follower.state is WAKING
        other.release_compute()
        await eventually(lambda: follower._room.free_since_s is not None)
        clock.pass_s(0.7)
        await several_looks()
        assert follower.state is WAKING and paper.moves == []
        clock.pass_s(0.2)
        refused = await answer(bus, "one", 1)
        assert refused.state is FAULTY and refused.lacks_memory and "held by rollout-other 80" in str(refused.failure)


async def test_room_that_is_gone_once_it_has_the_lock_is_waited_for_without_it(bus: Bus, tmp_path: Path) -> None:
    looks = list[bool]()

    async def free_bytes() -> int:
        """By the driver's word: gone at the first look."""
        looks.append(ground.locks.computes)
        return 50 if len(looks) == 1 else 100

    paper = Paper()
    ground = means(bus, tmp_path, "one", paper, free_bytes=free_bytes, memory_wait_s=60.0)
    async with following(bus, LeaseReconciler(ground)):
        await wake(bus, "one", 1)
    assert looks == [True, True] and paper.moves == ["wake"]


async def test_driver_is_not_asked_while_another_computes(bus: Bus, tmp_path: Path) -> None:
    """Each question starts a program, and a step of the holder lasts for thousands of looks."""
    asked = list[bool]()

    async def free_bytes() -> int:
        asked.append(ground.locks.computes)
        return 100

    other = Locks(tmp_path, "trainer-other")
    assert other.take_compute()
    ground = means(bus, tmp_path, "one", free_bytes=free_bytes)
    follower = LeaseReconciler(ground)
    async with following(bus, follower):
        await order(bus, "one", 1, wake=True)
        await eventually(lambda: follower.state is WAKING)
        await several_looks()
        assert asked == []
        other.release_compute()
        assert (await answer(bus, "one", 1)).state is AWAKE
    assert asked == [True]


async def test_executor_that_had_no_memory_lets_others_move_deeper_before_its_next_attempt(bus: Bus, tmp_path: Path) -> None:
    clock = HandClock()
    (first, one), (second, two) = followers(bus, tmp_path, "one", "two", clock=clock)
    async with following(bus, first, second):
        await wake(bus, "one", 1)
        await park(bus, "one", 2, Tier.HOST)
        two.failures = [NoMemory("the host has none")]
        await order(bus, "two", 3, wake=True)
        assert (await answer(bus, "two", 3)).state is FAULTY
        one.may_move.clear()
        await order(bus, "two", 4, wake=True)
        await eventually(lambda: second.state is WAKING)
        await order(bus, "one", 4, wake=False, tier=Tier.DISK)
        await eventually(lambda: len(one.moves) == 3)
        clock.pass_s(2 * OTHERS_FIRST_S)
        await several_looks()
        assert two.moves == ["wake"]
        one.may_move.set()
        assert (await answer(bus, "one", 4)).tier is Tier.DISK
        await eventually(lambda: second._room.free_since_s == clock())
        assert two.moves == ["wake"]
        clock.pass_s(2 * OTHERS_FIRST_S)
        assert (await answer(bus, "two", 4)).state is AWAKE


class Watched(Paper):
    """Its moves take a while, and note which others move or are awake meanwhile."""

    present: "set[Watched]"

    def __init__(self, chosen: random.Random, present: "set[Watched]", objections: list[str]) -> None:
        super().__init__()
        self._chosen, self.present, self._objections = chosen, present, objections
        self.locks: Locks | None = None

    async def wake(self) -> None:
        await self._alone("wake")
        await super().wake()

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        await self._alone(f"park {tier}")
        seconds = await super().park(tier, drain_s)
        self.present.discard(self)
        return seconds

    async def _alone(self, what: str) -> None:
        self.present.add(self)
        for _ in range(self._chosen.randint(1, 3)):
            if self.present != {self} or self.locks is None or not self.locks.computes:
                has_lock = self.locks is not None and self.locks.computes
                self._objections.append(f"{what} beside {len(self.present) - 1} others; has the lock: {has_lock}")
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(PARALLEL))
async def test_no_two_ever_move_or_compute_at_once_whatever_is_ordered(bus: Bus, tmp_path: Path, seed: int) -> None:
    """Of three executors one or two fit the device; a decision's orders come in any order, and decisions overtake each other."""
    chosen, present, objections = random.Random(seed), set[Watched](), list[str]()
    pools, those, papers = ("one", "two", "three"), list[LeaseReconciler](), dict[str, Watched]()
    for pool in pools:
        paper = papers[pool] = Watched(chosen, present, objections)
        ground = means(bus, tmp_path, pool, paper, budget_bytes=150 if seed == 0 else BUDGET, memory_wait_s=60.0)
        paper.locks = ground.locks
        those.append(LeaseReconciler(ground))
    async with following(bus, *those):
        for epoch in range(1, 41):
            next_ = chosen.choice(pools)
            orders = {pool: chosen.choice((Tier.DEVICE, Tier.HOST, Tier.DISK)) for pool in pools}
            is_whole = epoch % 4 == 0
            if is_whole:  # as the scheduler decides: all others make room
                orders = dict.fromkeys(pools, Tier.HOST)
            for pool in chosen.sample(pools, len(pools)):
                await order(bus, pool, epoch, wake=pool == next_, tier=orders[pool])
            if is_whole:
                assert (await answer(bus, next_, epoch)).state is AWAKE
            else:
                await asyncio.sleep(chosen.uniform(0.0, 0.02))
    assert objections == []
    assert sum(len(paper.moves) for paper in papers.values()) > 20
