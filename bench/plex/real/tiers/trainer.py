"""A trainer that takes orders: `… trainer MODEL NATS_URL FOLDER DEVICE PRECISION LOCKS`.

    fill                    a step of each task                  bytes   [base and states, 0]
    park TIER               [tier, seconds]                      wake    [tier, seconds]
    use                     a step of one task                   sequences END SEED SECONDS
    lock                    whether the accelerator's locks are held by this process now

Of one task each version has a checkpoint, from which it is read where its state was dropped; of the other none has.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench.harness.load.trajectories import Lengths, make_groups
from bench.plex.real.tiers.orders import Play, held_from_now, obey, take_output
from common.accelerators import Tier
from common.bus import Bus, Slots
from common.errors import HandedBack
from common.leases import Locks
from common.pools import Pool
from common.spec import TaskSpec, parse_spec
from trainer_svc.device.memory import return_freed_memory
from trainer_svc.learner import Learner
from trainer_svc.parking import TrainerExecutor
from trainer_svc.service import Trainer
from trainer_svc.state.checkpoint import Origin
from trainer_svc.state.resident import Resident, Residents
from trainer_svc.state.step_recording import vectors_digest

Precision = Literal["float32", "bfloat16"]
STORED, KEPT = "stored", "kept"
VERSIONS = 3
SEEDS = 4
"""Batches that differ."""
TIERS = (*[Tier.DEVICE, Tier.HOST, Tier.DISK] * 4, Tier.NONE)
LENGTHS = Lengths(prompt=16, new=8)


class TrainerOrders:
    def __init__(self, learner: Learner, residents: Residents, executor: TrainerExecutor, folder: Path, locks: Locks) -> None:
        self._learner = learner
        self._residents = residents
        self._executor = executor
        self._folder = folder
        self._locks = locks
        self._digests: dict[str, str] = {}
        self._undisturbed: dict[int, list[str]] = {}
        self._moves = Counter[str]()
        self._handed_back = 0
        self._restored = 0

    async def answer(self, verb: str, given: list[str]) -> object:
        match verb:
            case "fill":
                for task in (STORED, KEPT):
                    await self._step(task, 0, 0)
                return_freed_memory()  # of the steps: it is no state
            case "bytes":
                return [self._learner.needs.weights_bytes + self._residents.size_bytes, 0]
            case "use":
                return await self._step(STORED, 0, 0)
            case "lock":
                return held_from_now(self._locks)
            case "sequences":
                return await self._play(Play.of(given))
            case verb:
                began = time.perf_counter()
                await (self._executor.wake() if verb == "wake" else self._executor.park(Tier(given[0]), 0.0))
                return [self._executor.tier, time.perf_counter() - began]
        return None

    # ------------------------------------------------------------------------------------------------------- sequences

    async def _play(self, play: Play) -> dict[str, Any]:
        self._moves, self._handed_back, self._restored, played, steps, other = Counter[str](), 0, 0, 0, 0, 0
        for batches in range(SEEDS):
            self._undisturbed[batches] = await self._sequence(batches, None)
        for number in play.numbers():
            batches = number % SEEDS
            found = await self._sequence(batches, random.Random(f"{play.seed} {number}"))
            played += 1
            steps += len(found)
            other += sum(one != expected for one, expected in zip(found, self._undisturbed[batches], strict=True))
        return {
            "sequences": played,
            "moves": dict(self._moves),
            "steps": steps,
            "steps_handed_back": self._handed_back,
            "states_read_from_checkpoints": self._restored,
            "steps_with_other_digests": other,
        }

    async def _sequence(self, batches: int, rng: random.Random | None) -> list[str]:
        """Digests of each task's versions; without `rng` nothing moves."""
        found: list[str] = []
        for version in range(VERSIONS):
            for task in (STORED, KEPT):
                if rng is not None and rng.random() < 0.4:
                    await self._cycle(rng)
                found.append(await self._step(task, batches, version, rng))
        return found

    async def _cycle(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            await self._executor.park(rng.choice(TIERS), 0.0)
            self._moves[self._executor.tier] += 1
        await self._executor.wake()

    async def _step(self, task: str, batches: int, version: int, rng: random.Random | None = None) -> str:
        spec = spec_of(task)
        before = await self._state(task, version, spec)
        groups = make_groups(self._learner.vocabulary, 1000 * batches + version, 1, 2, LENGTHS)
        while True:
            training = asyncio.create_task(self._learner.train(before, groups, spec))
            if rng is not None and rng.random() < 0.3:  # it is queued, or computes: then the park waits for it
                await asyncio.sleep(rng.choice((0, 0.002, 0.01)))
                await self._cycle(rng)
            try:
                after = (await training).step.resident
                break
            except HandedBack:
                self._handed_back += 1
        if task == STORED:
            folder = self._folder / f"{task}.{version + 1}"
            adapter = folder.with_suffix(".adapter")
            for path in (folder, adapter):
                for file in path.glob("*"):
                    file.unlink()
            await self._learner.write(after, spec, adapter, (Origin(None, ""), folder))
            after = replace(after, stored_at=after.version)
        self._digests[task] = vectors_digest(after)
        self._residents.keep(after, self._digests[task])
        return self._digests[task]

    async def _state(self, task: str, version: int, spec: TaskSpec) -> Resident:
        if version == 0:
            return await self._learner.begin(task, spec)
        found = self._residents.get(task, self._digests[task])
        if found is None:
            self._restored += 1
            found = await self._learner.restore(self._folder / f"{task}.{version}", task, version, spec)
        return found


def spec_of(task: str) -> TaskSpec:
    spec: dict[str, Any] = {"name": task, "tenant": "bench", "pool": "bench", "steps": 8, "environment": {"name": "none"}}
    spec |= {"lora": {"rank": 32}, "seed": len(task), "correction": {"max_sampler_mismatch": 100}}
    return parse_spec(spec)


@asynccontextmanager
async def opened(model: str, nats_url: str, folder: Path, device: str, precision: Precision, locks: Locks) -> AsyncGenerator[TrainerOrders]:
    async with await Bus.connect(nats_url, "tiers") as bus:
        await bus.declare()
        pool = Pool(model=model, precision=precision, train_tokens=1024, max_rank=32)
        learner = await Learner.start(pool, device=device, threads=1)
        residents, slots = Residents(limit=8), Slots(3)
        executor = TrainerExecutor(Trainer(bus, learner, residents, "bench", slots=3), learner, residents, slots)
        yield TrainerOrders(learner, residents, executor, folder, locks)


async def main() -> None:
    answers = take_output()
    model, nats_url, folder, device, named, locks = sys.argv[1:]
    precision: Precision = "bfloat16" if named == "bfloat16" else "float32"
    async with opened(model, nats_url, Path(folder), device, precision, Locks(Path(locks), "trainer-bench")) as orders:
        await obey(answers, orders.answer)


if __name__ == "__main__":
    asyncio.run(main())
