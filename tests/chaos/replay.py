"""Every step of a run once more, from the batches that the tasks recorded: the blobs must come out the same, to the last bit."""

from collections.abc import Iterable
from pathlib import Path

from common.bus import Bus
from common.pools import read_pools
from trainer_svc.learner import Learner
from trainer_svc.replay.steps import replay_all

POOLS = Path(__file__).parents[2] / "pools.toml"
THREADS = 1
"""As the stack's trainer is given; sums on more threads may be rounded otherwise."""


async def replayed(nats_url: str, pool: str, tasks: Iterable[str]) -> tuple[int, list[str]]:
    """How many steps were taken again, from version 0 of each task on, and which versions came out otherwise."""
    offer = read_pools(POOLS)[pool]
    learner = await Learner.start(offer, device="cpu", threads=THREADS)
    bus = await Bus.connect(nats_url, "chaos-replay")
    count, differing = 0, list[str]()
    try:
        for task in tasks:
            async for compared in replay_all(bus, learner, task):
                count += 1
                if not compared.is_equal:
                    differing.append(f"{task}.v{compared.version}")
    finally:
        await bus.close()
    return count, differing
