"""Requests about tenants, and their answers, which are events about no task."""

import secrets

from pydantic import JsonValue

from common import streams
from common.bus import Outgoing
from common.client_api.answers import result_of
from common.client_api.protocol import AnyDoor
from common.messages import DeleteTenant, SetTenant


async def set_tenant(door: AnyDoor, request: SetTenant, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.set_tenant`."""
    out = Outgoing(streams.set_tenant(request.tenant), request, f"set-tenant:{request.request}")
    return await result_of(door, out, request.tenant or streams.EVERY_TENANT, request.request, timeout_s)


async def delete_tenant(door: AnyDoor, tenant: str, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.delete_tenant`."""
    request = DeleteTenant(tenant=tenant, request=secrets.token_hex(6))
    out = Outgoing(streams.delete_tenant(tenant), request, f"delete-tenant:{request.request}")
    return await result_of(door, out, tenant, request.request, timeout_s)
