"""Whether the gateway can do its work: NATS is there, and a scheduler answers."""

import asyncio

import structlog

from common import streams
from common.bus import Bus, NoResponder
from common.errors import Forbidden, Unavailable
from common.messages import AskDeployment, PoolsAnswer
from common.runtime.health import Health
from common.streams import KIND_HEADER
from gateway_svc.serving.offers import Offers

EVERY_S = 2.0
ANSWER_S = 5.0

log = structlog.get_logger()


async def keep_readiness(bus: Bus, health: Health, offers: Offers) -> None:
    """Keep `health` and `offers` as they are, until cancelled."""
    while True:
        obstacle = await obstacle_of(bus, offers)
        if obstacle is None and not health.ready:
            health.set_ready()
        elif obstacle is not None and (health.ready or health.detail != obstacle):
            health.set_unready(obstacle)
        await asyncio.sleep(EVERY_S)


async def obstacle_of(bus: Bus, offers: Offers) -> str | None:
    """What the gateway cannot work without; None when all is there."""
    if not bus.is_connected:
        return "NATS is unavailable"
    try:
        answer = await bus.requests.ask(streams.ask(None, "pools"), AskDeployment(), timeout_s=ANSWER_S)
        if answer.headers.get(KIND_HEADER) == PoolsAnswer.kind:
            offers.update(answer.read(PoolsAnswer).pools)
    except NoResponder:
        return "no scheduler answers"
    except (Unavailable, Forbidden) as error:
        return f"the scheduler does not answer: {error}"
    return None
