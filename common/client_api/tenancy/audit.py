"""The audit, for owners and the operator."""

from datetime import datetime

from common.client_api.pages import at_cursor, pages
from common.client_api.protocol import AnyDoor
from common.messages import AskAudit, AuditAnswer, AuditLine


async def read_audit(door: AnyDoor, tenant: str | None, since: datetime | None) -> list[AuditLine]:
    """Every line of the tenant, or of the door's own, oldest first. Raises: ClientError; NoAnswer."""
    found = pages(door, "audit", AskAudit(since=since), AuditAnswer, at_cursor, tenant=tenant)
    return [line async for page in found for line in page.lines]
