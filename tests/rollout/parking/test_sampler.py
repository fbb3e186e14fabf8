"""A sampler that is parked takes nothing, gives back what it has not begun, and goes on where it was after a wake."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import JsonValue

from common import streams
from common.accelerators import Function, Load, Tier
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.messages import TokenRecord, TurnRequest
from common.spec import Limits
from rollout_svc import service
from rollout_svc.accelerators import sampler as parking
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.stream import stream
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.request import ServingContext
from rollout_svc.text.chat import NO_ARGUMENTS, Chat
from tests.rollout.oracle import Oracle, peft_name
from tests.rollout.parking.parked_work import SlowBlobs, ids_of, returned, use
from tests.rollout.parking.sleeping import versions
from tests.rollout.stage import Stage, agrees, first_turns, group_of, lasting, performing, status, updated
from tests.support.rollout.replicas import CONTEXT, Replica
from tests.support.rollout.replicas import performing as at_gateway
from tests.support.waiting import eventually, eventually_equals


class SlowChat(Chat):
    """Prompts are tokenized when they may be; no token ends a turn."""

    def __init__(self, chat: Chat, waits_for: int | None = None) -> None:
        """`waits_for`: the only member whose prompt waits; None: all do."""
        super().__init__(chat._tokenizer, [])
        self.may_end = asyncio.Event()
        self.asked = 0
        self._waits_for = waits_for

    async def prompt(self, request: TurnRequest, limits: Limits, arguments: Mapping[str, JsonValue] = NO_ARGUMENTS) -> TokenRecord:
        self.asked += 1
        if self._waits_for in (None, request.member):
            await self.may_end.wait()
        return await super().prompt(request, limits, arguments)


@pytest_asyncio.fixture(loop_scope="session")
async def at_stage(bus: Bus, sleeper: Engine, endless: Chat, held: Adapters) -> AsyncIterator[tuple[Stage, Sampler]]:
    """A replica at work, whose engine sleeps; awake before and after."""
    async with performing(bus, sleeper, endless, held) as stage:
        sampler = Sampler(sleeper, held, stage.rollout, [stage.slots])
        yield stage, sampler
        await sampler.wake()
        await eventually(stage.is_idle)


async def test_parked_replica_takes_nothing_and_answers_after_its_wake(at_stage: tuple[Stage, Sampler]) -> None:
    stage, sampler = at_stage
    await stage.answer(group_of("before"), *first_turns([0]))
    await sampler.park(Tier.HOST, 0)
    group, before = group_of("parked"), returned()
    await stage.ask(group, *first_turns([0, 1]))

    async def waits() -> tuple[int, int]:
        queue = await stage.bus.streams.queue(streams.rollout_samples("tiny"))
        return queue.pending, queue.unacknowledged

    await eventually_equals(waits, (1, 0))
    assert stage.turns(group) == {} and returned() == before
    await sampler.wake()
    await eventually(lambda: len(stage.turns(group)) == 2)


async def test_turns_that_are_frozen_or_drained_are_those_of_an_undisturbed_replica(at_stage: tuple[Stage, Sampler]) -> None:
    """Seeds are the group's, not the task's: groups of three tasks ask for the same turns."""
    stage, sampler = at_stage
    sampler.taken()
    undisturbed = await stage.answer(group_of("undisturbed", max_tokens=200), *first_turns(range(8)))
    for task, drain_s, begun in (("frozen", 0, 8), ("drained", None, 0), ("not-drained", None, 8)):
        group = group_of(task, max_tokens=200)
        await stage.ask(group, *first_turns(range(8)))
        await eventually(lambda: sampler.load.begun == 8)
        parking = asyncio.ensure_future(sampler.park(Tier.DISK, drain_s))
        await asyncio.sleep(0)  # it has begun
        if begun:
            sampler.end_drain()
        await parking
        sampler.end_drain()  # when nothing drains, it does nothing
        assert sampler.load.begun == begun
        await sampler.wake()
        await eventually(stage.is_idle)
        assert ids_of(stage.turns(group)) == ids_of(undisturbed)
    served = sampler.taken()
    assert served.by_task == dict.fromkeys(("undisturbed", "frozen", "drained", "not-drained"), 8 * 200)
    assert served.pieces == 4 * 8


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.DISK])
async def test_adapters_that_arrive_while_parked_are_fetched_and_used_after_the_wake(
    at_stage: tuple[Stage, Sampler], held: Adapters, sleeper: Engine, blobs: Blobs, oracle: Oracle, tmp_path: Path, tier: Tier
) -> None:
    """Until the wake none is loaded: from `device` it is not followed by checks, as nothing was written there."""
    stage, sampler = at_stage
    early, late, unwanted = await versions(blobs, oracle, f"early-{tier}", f"late-{tier}", f"unwanted-{tier}")
    async with held.using(early):
        pass
    await sampler.park(tier, 0)
    using, leaving = asyncio.create_task(use(held, late)), asyncio.create_task(use(held, unwanted))
    folders = [tmp_path / "adapters" / ref.engine_name for ref in (late, unwanted)]
    await eventually(lambda: all(folder.is_dir() for folder in folders))
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not using.done() and not held.is_loaded(late)
    await sampler.wake()
    await using
    kept = {early.engine_name} if tier is Tier.DEVICE else set[str]()  # one that was dropped and that no request uses comes on demand
    assert await sleeper.loaded() == {late.engine_name} | kept
    await eventually(lambda: not folders[1].exists())
    for ref in (early, late):
        group = group_of(ref.task, adapter=ref)
        (turn,) = (await stage.answer(group, *first_turns([0]))).values()
        agrees(oracle, turn, peft_name(ref), 0.9)


async def test_all_versions_that_are_announced_while_parked_are_fetched_then_and_loaded_after_the_wake(
    at_stage: tuple[Stage, Sampler], held: Adapters, sleeper: Engine, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    stage, sampler = at_stage
    *announced, unwanted = await versions(blobs, oracle, "announced-1", "announced-2", "announced-3", "unannounced")
    await sampler.park(Tier.HOST, 0)
    for ref in announced:
        await stage.bus.kv.put(streams.TASKS_BUCKET, ref.task, status(ref.task, "running"))
        await eventually(lambda task=ref.task: stage.rollout._tasks.is_live(task))
        await stage.bus.publish(Outgoing(streams.weight_updated("tiny", ref.task), updated(ref), f"updated:{ref.name}"))
    leaving = asyncio.create_task(use(held, unwanted))
    *folders, unwanted_folder = [tmp_path / "adapters" / ref.engine_name for ref in (*announced, unwanted)]
    await eventually(lambda: all(folder.is_dir() for folder in (*folders, unwanted_folder)))
    leaving.cancel()
    await eventually(lambda: not unwanted_folder.exists())
    assert all(folder.is_dir() for folder in folders), "files that are still wanted stay"
    assert not any(map(held.is_loaded, announced))
    await sampler.wake()
    await eventually_equals(sleeper.loaded, {ref.engine_name for ref in announced})


async def test_turn_whose_prompt_is_being_tokenized_has_begun(bus: Bus, sleeper: Engine, chat: Chat, held: Adapters) -> None:
    slow = SlowChat(chat)
    async with performing(bus, sleeper, slow, held) as stage:
        sampler = Sampler(sleeper, held, stage.rollout, [stage.slots])
        group, before = group_of("tokenized"), returned()
        await stage.ask(group, *first_turns([0, 1]))
        await eventually(lambda: slow.asked == 2)
        assert sampler.load == Load(Function.GENERATE, begun=2), "a holder that has this to do is not idle"
        await sampler.park(Tier.HOST, 0)
        assert sampler.load == Load(begun=2)
        slow.may_end.set()
        await eventually(lambda: sleeper.gate.waiting == 2)
        assert sampler.load == Load(begun=2), "what waits for its wake says so"
        async with asyncio.timeout(60):
            await sampler.park(Tier.DISK, None)
        assert stage.turns(group) == {}
        await sampler.wake()
        await eventually(lambda: len(stage.turns(group)) == 2)
        await eventually(stage.is_idle)
        assert sampler.load.begun == 0 and returned() == before


async def test_drain_waits_for_turns_whose_prompts_are_being_tokenized(bus: Bus, sleeper: Engine, chat: Chat, held: Adapters) -> None:
    slow = SlowChat(chat)
    async with performing(bus, sleeper, slow, held) as stage:
        sampler = Sampler(sleeper, held, stage.rollout, [stage.slots])
        group = group_of("tokenized-drain")
        await stage.ask(group, *first_turns([0, 1]))
        await eventually(lambda: slow.asked == 2)
        parking = asyncio.create_task(sampler.park(Tier.HOST, None))
        await eventually(lambda: stage.slots.are_closed)
        assert not parking.done() and sleeper.gate.is_open
        slow.may_end.set()
        await parking
        assert sampler.load.begun == 0
        await eventually(lambda: len(stage.turns(group)) == 2)
        await sampler.wake()
        await eventually(stage.is_idle)


@pytest.mark.parametrize(("settled_s", "is_tokenized"), [(60.0, True), (0.1, False)])
async def test_park_waits_a_moment_for_prompts(
    bus: Bus, sleeper: Engine, chat: Chat, held: Adapters, monkeypatch: pytest.MonkeyPatch, settled_s: float, is_tokenized: bool
) -> None:
    monkeypatch.setattr(parking, "SETTLED_WITHIN_S", settled_s)
    slow = SlowChat(chat)
    async with performing(bus, sleeper, slow, held) as stage:
        sampler = Sampler(sleeper, held, stage.rollout, [stage.slots])
        group = group_of(f"tokenized-meanwhile-{is_tokenized}")
        await stage.ask(group, *first_turns([0]))
        await eventually(lambda: slow.asked == 1)
        if is_tokenized:
            asyncio.get_running_loop().call_later(0.5, slow.may_end.set)
        await sampler.park(Tier.DEVICE, 0)
        assert (len(stage.rollout.preparing) == 0, sampler.load) == (is_tokenized, Load(begun=1))
        slow.may_end.set()
        await sampler.wake()
        await eventually(lambda: len(stage.turns(group)) == 1)
        await eventually(stage.is_idle)


@pytest.mark.parametrize(("coalescing_s", "settled_s", "unanswered"), [(3.0, 60.0, 0), (300.0, 0.1, 1)])
async def test_park_waits_a_moment_for_answers_of_turns_that_have_ended(
    bus: Bus,
    sleeper: Engine,
    chat: Chat,
    held: Adapters,
    monkeypatch: pytest.MonkeyPatch,
    coalescing_s: float,
    settled_s: float,
    unanswered: int,
) -> None:
    """What is made of them afterwards would take processor time from the next holder. A second member, which began later, is frozen."""
    monkeypatch.setattr(service, "coalescing_window_s", lasting(coalescing_s))
    monkeypatch.setattr(parking, "SETTLED_WITHIN_S", settled_s)
    slow = SlowChat(chat, waits_for=1)
    async with performing(bus, sleeper, slow, held) as stage:
        sampler = Sampler(sleeper, held, stage.rollout, [stage.slots])
        group = group_of(f"answered-{unanswered}", max_tokens=400)
        await stage.ask(group, *first_turns([0, 1]))
        await eventually(lambda: len(stage.rollout.unanswered) == 1)
        slow.may_end.set()
        await eventually(lambda: sleeper.work.inside == 1)
        async with asyncio.timeout(60):
            await sampler.park(Tier.DEVICE, 0)
        assert (len(stage.rollout.unanswered), sleeper.work.inside) == (unanswered, 1)
        await sampler.wake()
        await eventually(lambda: len(stage.turns(group)) == 2)
        await eventually(stage.is_idle)


async def test_served_requests_that_wait_for_a_place_are_work_of_a_parked_sampler(
    bus: Bus, sleeper: Engine, endless: Chat, held: Adapters
) -> None:
    async with performing(bus, sleeper, endless, held) as rollouts, at_gateway(bus) as stage:
        means = ServingContext(endless, held, partial(stream, sleeper), Admission(1, 1), CONTEXT, None, "engine")
        replica = Replica(bus, "parked", means=means)
        stage.replicas.append(replica)
        sampler = Sampler(sleeper, held, rollouts.rollout, [rollouts.slots], replica.serving)
        await sampler.park(Tier.HOST, 0)
        replica.start()
        asked = [asyncio.create_task(stage.answer(stage.request(max_tokens=8))) for _ in range(2)]
        await eventually(lambda: replica.serving.requests == 2 and sleeper.gate.waiting == 1)
        assert replica.serving.preparing == 1
        assert sampler.load == Load(begun=2)
        await sampler.wake()
        assert [len(answer.ids) for answer in await asyncio.gather(*asked)] == [8, 8]
        await eventually(lambda: sampler.load == Load())


async def test_request_whose_adapter_is_not_loaded_yet_is_handed_back(
    bus: Bus, sleeper: Engine, endless: Chat, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    slow = SlowBlobs(bus)
    adapters = Adapters(sleeper, slow, tmp_path / "slow", keep=2, keep_s=60, tolerance=sleeper.canary_tolerance)
    (ref,) = await versions(blobs, oracle, "handed-back")
    async with performing(bus, sleeper, endless, adapters) as stage:
        sampler = Sampler(sleeper, adapters, stage.rollout, [stage.slots])
        group = group_of("handed-back", adapter=ref)
        await stage.ask(group, *first_turns([0]))
        await eventually(lambda: slow.asked == 1)
        assert sampler.load == Load(Function.GENERATE, begun=1), "it is not idle, and nothing is handed back for want of work"
        before = returned()
        await sampler.park(Tier.HOST, 0)
        await eventually(lambda: returned() == before + 1)
        assert len(stage.rollout.preparing) == sleeper.gate.waiting == 0
        assert sampler.load.begun == 0
        slow.may_come.set()
        await sampler.wake()
        await eventually(lambda: len(stage.turns(group)) == 1)
        agrees(oracle, stage.turns(group)[0], peft_name(ref), 0.9)
    await sleeper.unload(ref.engine_name)
