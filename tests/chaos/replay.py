"""Replay of every step of a run from the recorded batches: the blobs must be equal to the last bit."""

from collections.abc import Iterable

from common.bus import Bus
from common.pools import read_pools
from marlaas.stack.state_files import Stack
from tests.support.paths import ROOT
from trainer_svc.learner import Learner
from trainer_svc.replay.steps import replay_all

POOLS = ROOT / "pools.toml"
THREADS = 1
"""Threads of the stack's trainer; sums on more threads may round differently."""


async def replayed(stack: Stack, pool: str, tasks: Iterable[str]) -> tuple[int, list[str]]:
    """Number of replayed steps, from version 0 of each task, and the versions that differ."""
    offer = read_pools(POOLS)[pool]
    learner = await Learner.start(offer, device="cpu", threads=THREADS)
    async with await Bus.connect(stack.nats_url, "chaos-replay", creds=stack.operator_key) as bus:
        count, differing = 0, list[str]()
        for task in tasks:
            async for compared in replay_all(bus, learner, task):
                count += 1
                if not compared.is_equal:
                    differing.append(f"{task}.v{compared.version}")
    return count, differing
