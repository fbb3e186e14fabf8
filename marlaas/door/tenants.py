"""Requests about tenants, and their answers, which are events about no task."""

import secrets

from pydantic import JsonValue

from common import streams
from common.bus import Outgoing
from common.messages import DeleteTenant, SetTenant
from marlaas.door.answers import answer_to
from marlaas.door.asking import Door
from marlaas.errors import ClientError, rejection_reasons


async def set_tenant(door: Door, request: SetTenant, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.set_tenant`."""
    return await _answer(door, Outgoing(streams.set_tenant(request.tenant), request, f"set-tenant:{request.request}"), request, timeout_s)


async def delete_tenant(door: Door, tenant: str, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.delete_tenant`."""
    request = DeleteTenant(tenant=tenant, request=secrets.token_hex(6))
    return await _answer(door, Outgoing(streams.delete_tenant(tenant), request, f"delete-tenant:{request.request}"), request, timeout_s)


async def _answer(door: Door, out: Outgoing, request: SetTenant | DeleteTenant, timeout_s: float) -> dict[str, JsonValue]:
    """Data of the answer. Raises: ClientError with the reasons of a refusal; NoAnswer."""
    answer = await answer_to(door, out, request.tenant, "none", lambda event: event.data.get("request") == request.request, timeout_s)
    if "reasons" in answer.data:
        raise ClientError("; ".join(rejection_reasons(answer)))
    return {name: value for name, value in answer.data.items() if name != "request"}
