"""What rows of the books cost, counted in Python."""

from decimal import Decimal
from typing import Any

from common import streams
from common.bus import Outgoing
from common.messages import Event, SetPrice
from tests.support.scheduler.stages import World

SERVED = """
SELECT tenant, 'served_prompt' AS kind, prompt_tokens AS tokens, at, 'tenant' AS paid_by FROM served_requests
UNION ALL SELECT tenant, 'served_sampled', sampled_tokens, at, 'tenant' FROM served_requests
"""


def spent_by_unit(known: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Decimal]:
    """By unit."""
    money = sum((row["tokens"] * price_at(known, row) for row in rows), Decimal(0))
    return {"money": money, "tokens": Decimal(sum(row["tokens"] for row in rows if row["kind"] != "env_ms"))}


def price_at(known: list[dict[str, Any]], row: dict[str, Any]) -> Decimal:
    """Price of one unit at the time of the row."""
    found = [one for one in known if one["kind"] == row["kind"] and one["valid_from"] <= row["at"]]
    return found[-1]["price"] if found else Decimal(0)


async def set_price(world: World, request: str, of: str, price: str, **fields: Any) -> dict[str, Any]:
    """Data of the answer."""
    message = SetPrice.model_validate({"request": request, "of": of, "price": price} | fields)
    await world.bus.publish(Outgoing(streams.job("set-price", None), message, f"price:{request}"))
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events(streams.EVERY_TENANT, "none")):
        event = delivery.read(Event)
        if event.event == "price" and event.data["request"] == request:
            return event.data
    raise AssertionError(request)
