"""The trainer as an executor of a shared accelerator: what it trains between parks, and what it does not do while it is parked."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import torch
from prometheus_client import REGISTRY
from transformers import AutoModelForCausalLM

from common import streams
from common.accelerators.executors import Function, Load, Parkable, StateMismatch, Tier, WorkDone
from common.bus import Bus, Delivery, Slots
from common.errors import HandedBack
from common.messages import TrainBatch, WeightUpdated
from common.pools import Pool
from common.pools.memory import GIB
from common.runtime.health import Health
from common.runtime.service import Running
from tests.support.trainer.batches import SPECS, announced, batch_of, call, groups_of, send, steps_alone, store, update_in
from tests.support.trainer.groups import make_spec
from tests.support.waiting import at_work, eventually, eventually_equals
from tests.trainer.steps import begin
from trainer_svc.__main__ import _trainer
from trainer_svc.learner import Learner
from trainer_svc.model.memory import MemoryNeeds
from trainer_svc.parking import TrainerExecutor
from trainer_svc.service import Trainer
from trainer_svc.settings import TrainerSettings
from trainer_svc.state.resident import Residents

STEPS = 6


@pytest.fixture
async def own_learner(folder: Path) -> AsyncIterator[Learner]:
    """One that can load its base model again."""
    learner = await Learner.start(Pool(model=str(folder), train_tokens=1024), device="cpu", threads=1)
    yield learner
    learner._thread.shutdown()


class Parked:
    """A trainer with its executor and slots."""

    def __init__(self, bus: Bus, learner: Learner, *, limit: int = 8, checkpoint_every: int = 1, slots: int = 3) -> None:
        self.residents = Residents(limit)
        self.trainer = Trainer(bus, learner, self.residents, "tiny", checkpoint_every=checkpoint_every, slots=slots)
        self.slots = Slots(slots)
        self.executor = TrainerExecutor(self.trainer, learner, self.residents, self.slots)
        self.bus = bus

    def serving(self):
        return at_work(self.bus.consume(streams.trainer_batches("tiny"), self.trainer.handle, self.slots))


async def trained(bus: Bus, trainer: Trainer, between: Callable[[int], Awaitable[None]]) -> list[WeightUpdated]:
    """Announcements of all tasks' steps on recorded batches; `between` is awaited before each round of steps."""
    found, last = list[WeightUpdated](), dict[str, WeightUpdated]()
    for version in range(STEPS):
        await between(version)
        for task in SPECS:
            named = await store(bus, task, groups_of(task, version), version)
            before = last[task].checkpoint if task in last else None
            last[task] = update_in(await call(trainer, batch_of(task, version, named, before)))
            found.append(last[task])
    return found


@pytest.mark.parametrize(("limit", "checkpoint_every"), [(8, 3), (1, 1)])
async def test_adapters_trained_between_parks_are_those_trained_without_bit_for_bit(
    bus: Bus, learner: Learner, own_learner: Learner, limit: int, checkpoint_every: int
) -> None:
    """Every tier, also with states that no checkpoint holds, and with those that another task's took the place of."""
    parked = Parked(bus, own_learner, limit=limit, checkpoint_every=checkpoint_every)
    tiers = (Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.HOST, Tier.NONE, Tier.DISK)
    recomputed = REGISTRY.get_sample_value("marlaas_trainer_recomputed_total")

    async def nothing(_: int) -> None:
        pass

    async def cycle(version: int) -> None:
        await parked.executor.park(tiers[version], 0.0)
        assert parked.executor.tier is tiers[version]
        await parked.executor.wake()
        assert parked.executor.tier is Tier.DEVICE

    alone = Trainer(bus, learner, Residents(8), "tiny", checkpoint_every=checkpoint_every)
    expected, found = await trained(bus, alone, nothing), await trained(bus, parked.trainer, cycle)
    assert [update.adapter.blob.sha256 for update in found] == [update.adapter.blob.sha256 for update in expected]
    if checkpoint_every == 1:  # otherwise a version after a state that was read from its checkpoint is stored whole
        assert [update.checkpoint.sha256 for update in found] == [update.checkpoint.sha256 for update in expected]
    assert REGISTRY.get_sample_value("marlaas_trainer_recomputed_total") == recomputed


async def test_states_of_tasks_are_no_more_than_the_budget_leaves_so_that_the_trainer_wakes_again(
    bus: Bus, folder: Path, tmp_path: Path
) -> None:
    """On a CPU states that are parked in host memory count, too: they would come back."""
    pool = Pool(model=str(folder), train_tokens=1024, max_rank=16)
    (tmp_path / "pools.toml").write_text(f'[tiny]\nmodel = "{folder}"\n')
    settings = TrainerSettings(pool="tiny", pools_file=tmp_path / "pools.toml", device="cpu", resident_gib=1.0)
    needs = MemoryNeeds.of_folder(pool, on_cpu=True)
    budget = needs.awake_bytes([pool.max_rank]) + 2 * 2**20
    made = await _trainer(Running(settings, bus, Health()), pool, budget, ())
    executor = TrainerExecutor(made.trainer, made.learner, made.residents, Slots(1))
    await executor.wake()
    states = [begin(made.learner.policy, make_spec(f"task-{number}", lora={"rank": 16})) for number in range(6)]
    assert sum(one.size_bytes for one in states) > budget - needs.awake_bytes([16]) > states[0].size_bytes
    for one in states:
        made.residents.keep(one, "1")
        assert executor.device_bytes <= budget
    assert len(made.residents) >= 1
    await executor.park(Tier.HOST, 0.0)
    assert executor.device_bytes <= budget


async def test_parked_trainer_takes_no_batch_and_the_next_wake_does(bus: Bus, own_learner: Learner) -> None:
    parked = Parked(bus, own_learner)
    async with parked.serving():
        await parked.executor.park(Tier.NONE, None)
        assert parked.slots.free == 0
        await send(bus, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))
        await call_while_parked(bus, parked)
        assert await bus.streams.backlog(streams.WEIGHTS) == 0
        woken_s = time.monotonic()
        await parked.executor.wake()
        assert parked.slots.free == 3
        update = await announced(bus, "a", 1)
    assert parked.trainer.gate.behind == 0
    assert update.metrics["wait_s"] < time.monotonic() - woken_s
    assert parked.executor.taken().pieces == 1


async def test_executor_says_that_it_scores_while_it_does_and_how_long_it_did(bus: Bus, own_learner: Learner) -> None:
    """Its steps are scored under the base model, and under the policy that they start from."""
    parked, seen = Parked(bus, own_learner), set[Function | None]()
    spec = SPECS["a"].model_copy(update={"algorithm": SPECS["a"].algorithm.model_copy(update={"passes": 2, "kl_coefficient": 0.1})})
    last: WeightUpdated | None = None
    for version in range(20):
        named = await store(bus, "a", groups_of("a", version), version)
        batch = batch_of("a", version, named, last.checkpoint if last else None, spec)
        step = asyncio.ensure_future(call(parked.trainer, batch))
        while not step.done():
            seen.add(parked.executor.load.running)
            await asyncio.sleep(0)
        last = update_in(await step)
        done = parked.executor.taken()
        assert 0 < done.score_s < done.busy_s
        assert done.score_s == pytest.approx(last.metrics["score_s"], rel=0.2, abs=0.02)
        if seen >= {Function.SCORE, Function.TRAIN}:
            break
    assert seen == {None, Function.SCORE, Function.TRAIN}


async def call_while_parked(bus: Bus, parked: Parked) -> None:
    """A batch that had been requested before waits with its message alone, and is handed back once another trainer lives."""
    batch = batch_of("b", 0, await store(bus, "b", groups_of("b", 0), 0), None)
    waiting = asyncio.ensure_future(call(parked.trainer, batch))
    await eventually(lambda: parked.trainer.gate.waiting == 1)
    assert parked.trainer.busy()["steps"] == 1
    parked.trainer.gate.note_others(have=True)
    with pytest.raises(HandedBack, match="the trainer is parked"):
        await waiting
    parked.trainer.gate.note_others(have=False)


async def test_step_in_progress_ends_and_queued_ones_are_handed_back(bus: Bus, own_learner: Learner) -> None:
    """A is computing when the order comes, B and C are read and queued: after the wake all have the versions of training alone."""
    learner = own_learner
    parked, begun, goes_on = Parked(bus, learner), threading.Event(), threading.Event()
    specs = SPECS | {"c": make_spec("c", seed=3)}

    def busy() -> None:
        with learner.meter.computing({"a": 1}, pieces=1):
            begun.set()
            goes_on.wait(60)

    batches = dict[str, TrainBatch]()
    for task, spec in specs.items():
        first = update_in(await call(parked.trainer, batch_of(task, 0, await store(bus, task, groups_of(task, 0), 0), None, spec)))
        batches[task] = batch_of(task, 1, await store(bus, task, groups_of(task, 1), 1), first.checkpoint, spec)
    assert parked.executor.taken().pieces == 3
    async with parked.serving():
        learner._thread.submit(busy)
        for batch in batches.values():
            await send(bus, batch)
        await eventually(lambda: len(learner._queue) == 3 and begun.is_set(), 60)
        load = parked.executor.load
        assert (load.running, load.begun, load.preparing) == (Function.TRAIN, 1, 2)
        parking = asyncio.ensure_future(parked.executor.park(Tier.HOST, 0.0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(parking), 0.2)
        assert parked.executor.tier is Tier.DEVICE
        goes_on.set()
        await parking
        assert (parked.executor.tier, parked.executor.load) == (Tier.HOST, Load(messages=0))
        assert parked.executor.taken().pieces == 1
        await eventually(lambda: parked.trainer.gate.waiting == 3)
        assert learner.waiting == parked.trainer.gate.behind == 0
        assert await bus.streams.backlog(streams.WEIGHTS) == 0
        await parked.executor.wake()
        updates = {task: await announced(bus, task, 2) for task in specs}
        await eventually_equals(lambda: bus.streams.backlog(streams.BATCHES), 0)
    assert await bus.streams.backlog(streams.FAILED) == 0
    alone = Trainer(bus, Learner(learner.policy, learner._thread, budget_tokens=1024), Residents(8), "tiny")
    await bus.streams.purge(streams.WEIGHTS, "weight-updated.>")
    for task, batch in batches.items():
        assert updates[task].adapter.blob.sha256 == update_in(await call(alone, batch)).adapter.blob.sha256


async def test_parking_waits_until_the_last_step_is_announced(bus: Bus, own_learner: Learner) -> None:
    """The batch is behind the gate from its reading until its handler has ended: all of it is work of the slice."""
    parked = Parked(bus, own_learner)
    batch = batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)
    handling = parked.trainer.handle(Delivery(streams.batch("tiny", "a"), {}, batch.encode(), 1, 1))
    assert update_in([await anext(aiter(handling))]).version == 1
    parking = asyncio.ensure_future(parked.executor.park(Tier.DEVICE, None))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(parking), 0.2)
    assert parked.executor.load.begun == 1
    assert [out async for out in handling] == []
    await parking
    assert parked.executor.load == Load(messages=0)


async def test_parking_waits_for_samples_and_not_for_long(bus: Bus, own_learner: Learner) -> None:
    parked, stored = Parked(bus, own_learner), asyncio.Event()
    storing = asyncio.create_task(stored.wait())
    parked.trainer.samples._running.add(storing)  # as `keep` does
    parking = asyncio.ensure_future(parked.executor.park(Tier.DEVICE, 0.0))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(parking), 0.1)
    assert not await parked.trainer.samples.flush(0.01)
    assert not storing.done(), "it goes on when nothing waits for it any more"
    stored.set()
    await parking


@pytest.mark.parametrize("tier", [Tier.DISK, Tier.NONE])
async def test_exchanged_base_model_computes_nothing_until_the_right_one_is_back(
    bus: Bus, own_learner: Learner, folder: Path, tier: Tier, tmp_path: Path
) -> None:
    """A fine-tuned one, say: every shape is right. In the tier `none` even the object that remembers the canary is new."""
    parked = Parked(bus, own_learner)
    async with parked.serving():
        await parked.executor.park(tier, None)
        original = folder.rename(tmp_path / "original")
        model = AutoModelForCausalLM.from_pretrained(original)
        with torch.no_grad():
            model.model.layers[2].mlp.down_proj.weight[:, 3] += 0.01
        model.save_pretrained(folder)
        with pytest.raises(StateMismatch, match=r"its canary differs by .* nats, at most 0 are allowed; no step was computed"):
            await parked.executor.wake()
        assert (parked.executor.tier, parked.slots.free) == (tier, 0)
        await send(bus, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))
        with pytest.raises(HandedBack):
            await own_learner.begin("a", SPECS["a"])
        assert parked.executor.taken() == WorkDone()
        shutil.rmtree(folder)
        with pytest.raises(
            StateMismatch, match=f"^the folder of model '{folder}' of the pools file is gone: {folder}; put it back, or correct"
        ):
            await parked.executor.wake()
        original.rename(folder)
        await parked.executor.wake()
        assert (await announced(bus, "a", 1)).version == 1


async def test_trainer_that_starts_cold_knows_what_it_needs_and_loads_at_its_first_wake(bus: Bus, model_folder: Path) -> None:
    pool = Pool(model=str(model_folder), train_tokens=1024)
    learner = await Learner.start(pool, device="cpu", threads=1, budget=GIB)
    parked = Parked(bus, learner)
    executor: Parkable = parked.executor
    assert (executor.tier, parked.slots.free) == (Tier.NONE, 0)
    needed = executor.device_bytes
    await executor.wake()
    assert (executor.tier, parked.slots.free) == (Tier.DEVICE, 3)
    assert needed == pytest.approx(executor.device_bytes, rel=0.01)
    assert executor.host_bytes == learner.policy.weights_bytes
    update = update_in(await call(parked.trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    assert update.adapter.canary == steps_alone(learner.policy, "a", 1)[0].canary
    resident = parked.residents.get("a", update.checkpoint.sha256)
    assert resident is not None
    assert executor.host_bytes == learner.policy.weights_bytes + resident.size_bytes


async def test_learner_that_was_given_its_model_is_not_closed(learner: Learner) -> None:
    other = Learner(learner.policy, learner._thread, budget_tokens=1024)
    with pytest.raises(ValueError, match="cannot wake from tier 'none'"):
        await other.park(Tier.NONE)
    with pytest.raises(HandedBack):
        await other.train(begin(learner.policy, SPECS["a"]), groups_of("a", 0), SPECS["a"])
    await other.wake()
    await other.train(begin(learner.policy, SPECS["a"]), groups_of("a", 0), SPECS["a"])


async def test_state_of_the_next_batch_is_fetched_while_the_present_one_is_computed(bus: Bus, learner: Learner) -> None:
    """A's state was evicted. It is restored from its checkpoint while the learner's thread is busy."""
    parked = Parked(bus, learner)
    first = update_in(await call(parked.trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    parked.residents.forget("a")
    restored, goes_on = REGISTRY.get_sample_value("marlaas_trainer_restored_total") or 0, threading.Event()
    learner._thread.submit(goes_on.wait, 60)
    batch = batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), first.checkpoint)
    training = asyncio.ensure_future(call(parked.trainer, batch))
    await eventually(lambda: learner.waiting == 1)
    assert REGISTRY.get_sample_value("marlaas_trainer_restored_total") == restored + 1
    goes_on.set()
    assert update_in(await training).version == 2


async def test_thread_that_computes_and_its_workers_are_on_the_cores_that_were_given(model_folder: Path) -> None:
    core, threads = max(os.sched_getaffinity(0)), torch.get_num_threads()
    present = Path("/proc/self/task")
    before = set(present.iterdir())
    learner = await Learner.start(Pool(model=str(model_folder)), device="cpu", threads=2, budget=2**30, cores=(core,))

    def compute() -> None:
        torch.set_num_threads(2)
        torch.ones(1 << 22).exp()

    try:
        await learner.in_thread(compute)
        computing = {int(path.name) for path in set(present.iterdir()) - before}
        assert len(computing) > 1, "OpenMP has started a worker"
        assert all(os.sched_getaffinity(thread) == {core} for thread in computing)
        assert os.sched_getaffinity(0) != {core} or os.cpu_count() == 1
    finally:
        torch.set_num_threads(threads)
        learner._thread.shutdown()
