"""A learner with residents in a process of its own, whose memory is measured from outside.

It takes orders from its standard input, a line each, and answers each with a line of JSON: a tier to park in, `wake`, `step`, `bytes`,
`limit MIB` (data beyond what it has now; `none` lifts it), `cycles N TIER`.
"""

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.harness.measures.memory import own_bytes
from common.accelerators.executors import NoMemory, Tier
from common.pools import Pool
from tests.support.trainer.groups import make_groups, make_spec
from trainer_svc.learner import Learner
from trainer_svc.state.resident import Residents
from trainer_svc.state.step_recording import vectors_digest

MIB = 2**20


@dataclass(frozen=True)
class Parkable:
    """The running process, seen from outside."""

    process: "subprocess.Popen[str]"

    def order(self, line: str) -> Any:
        orders, answers = self.process.stdin, self.process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(f"{line}\n")
        orders.flush()
        answer = answers.readline()
        assert answer, f"it died of '{line}'"
        return json.loads(answer)

    def private_bytes(self) -> int:
        return own_bytes(self.process.pid)


@contextmanager
def parkable(model: Path, precision: str = "float32") -> Generator[Parkable]:
    argv = [sys.executable, "-m", "tests.trainer.parkable_process", str(model), precision]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Parkable(process)
        finally:
            process.terminate()


class Trainee:
    """Two tasks: a checkpoint holds the states of one, those of the other would have to be recomputed."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.residents = Residents(limit=8)
        self.specs = {
            name: make_spec(name, lora={"rank": 64}, correction={"max_sampler_mismatch": 100}) for name in ("stored", "not-stored")
        }

    async def step(self) -> dict[str, str]:
        """A step of each task, from version 0 where its state was dropped; digests of the new states."""
        found = dict[str, str]()
        for name, spec in self.specs.items():
            before = self.residents.get(name, "") or await self.learner.begin(name, spec)
            after = (await self.learner.train(before, make_groups(1, groups=1, size=2), spec)).step.resident
            self.residents.keep(replace(after, stored_at=after.version if name == "stored" else 0), "")
            found[name] = vectors_digest(after)
        return found

    async def park(self, tier: Tier) -> str:
        await self.learner.pause()
        await self.residents.park(tier, self.learner.in_thread)
        await self.learner.park(tier)
        return self.learner.tier

    async def wake(self) -> str:
        try:
            await self.learner.wake()
        except NoMemory as error:
            return str(error)
        self.residents.wake()
        return self.learner.tier

    async def cycles(self, count: int, tier: Tier) -> None:
        for _ in range(count):
            await self.park(tier)
            await self.wake()
            await self.step()


async def obey(model: str, precision: Literal["float32", "bfloat16"]) -> None:
    pool = Pool(model=model, precision=precision, train_tokens=1024)
    trainee = Trainee(await Learner.start(pool, device="cpu", threads=1))
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *given = line.split()
        answer: object = None
        match verb:
            case "step":
                answer = await trainee.step()
            case "wake":
                answer = await trainee.wake()
            case "bytes":
                answer = trainee.learner.needs.weights_bytes + trainee.residents.size_bytes
            case "limit":
                limit_data(given[0])
            case "cycles":
                await trainee.cycles(int(given[0]), Tier(given[1]))
            case tier:
                answer = await trainee.park(Tier(tier))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def limit_data(mib: str) -> None:
    """Bound this process's data to `mib` more than it has now; `none` lifts the bound."""
    status = Path("/proc/self/status").read_text().splitlines()
    taken = 1024 * next(int(found.split()[1]) for found in status if found.startswith("VmData"))
    bound = resource.RLIM_INFINITY if mib == "none" else taken + int(mib) * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (bound, resource.RLIM_INFINITY))


if __name__ == "__main__":
    asyncio.run(obey(sys.argv[1], "bfloat16" if sys.argv[2] == "bfloat16" else "float32"))
