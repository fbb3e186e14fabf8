"""Settings of a tenant, as an operator changes them."""

from typing import Any

from common import streams
from common.bus import Outgoing
from common.limits import LIMITS
from common.messages import Event, LimitValue, SetTenant
from tests.support.scheduler.stages import World


async def set_tenant(world: World, request: str, tenant: str = "acme", **values: Any) -> dict[str, Any]:
    """Data of the answer."""
    limits = [LimitValue(of=name, value=values.pop(name)) for name in LIMITS if name in values]
    message = SetTenant(tenant=None if tenant == streams.EVERY_TENANT else tenant, request=request, limits=limits, **values)
    await world.bus.publish(Outgoing(streams.job("set-tenant", tenant), message, f"set:{request}"))
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events(tenant, "none")):
        event = delivery.read(Event)
        if event.event == "tenant" and event.data["request"] == request:
            return event.data
    raise AssertionError(request)
