"""Steps of one task, one after the other, and trainers without residents."""

import time

from common import streams
from common.bus import Bus, Outgoing
from common.messages import BlobRef, Event, StoredStep, WeightUpdated, as_json
from tests.support.trainer.batches import batch_of, call, groups_of, store, update_in
from trainer_svc.learner import Learner
from trainer_svc.replay.steps import RECOMPUTED
from trainer_svc.service import Trainer
from trainer_svc.state.resident import Residents

EVERY = 3


async def steps(bus: Bus, trainer: Trainer, count: int, *, first: int = 0, checkpoint: BlobRef | None = None) -> list[WeightUpdated]:
    """Train task a from version `first`."""
    found: list[WeightUpdated] = []
    for version in range(first, first + count):
        named = await store(bus, "a", groups_of("a", version), version)
        found.append(update_in(await call(trainer, batch_of("a", version, named, checkpoint))))
        checkpoint = found[-1].checkpoint
    return found


def fresh(bus: Bus, learner: Learner) -> Trainer:
    """A trainer without residents."""
    return Trainer(bus, learner, Residents(8), "tiny", checkpoint_every=EVERY)


def recomputed() -> float:
    return RECOMPUTED._value.get()


async def emit_step(bus: Bus, version: int, stored: StoredStep) -> None:
    event = Event(tenant="acme", task="a", event="step", at_s=time.time(), data={"version": version, "stored": as_json(stored)})
    await bus.publish(Outgoing(streams.events("acme", "a"), event, f"step:{version}"))
