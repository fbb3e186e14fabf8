"""Puts serving together for one replica."""

from functools import partial

from common.bus import Bus, Slots
from common.pools import Pool
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.stream import engine_name, stream
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.replies import Replies
from rollout_svc.serving.request import ServingContext
from rollout_svc.serving.service import TAKEN_PER_SEQUENCE, Serving
from rollout_svc.text.chat import Chat


def serving_of(pool: Pool, engine: Engine, chat: Chat, adapters: Adapters, bus: Bus, replica: str) -> Serving | None:
    """None for a pool without a table `serving`: requests to its versions wait for nobody, and are overdue."""
    if pool.serving is None:
        return None
    means = ServingContext(
        chat=chat,
        adapters=adapters,
        sample=partial(stream, engine),
        admission=Admission(pool.serving.sequences, pool.serving.adapters),
        context_tokens=pool.context_tokens,
        thoughts=pool.serving.thoughts,
        engine=engine_name(engine),
    )
    slots = Slots(TAKEN_PER_SEQUENCE * pool.serving.sequences)
    return Serving(means, Replies(replica, bus.requests.tell), slots, bus.clock.now_s)
