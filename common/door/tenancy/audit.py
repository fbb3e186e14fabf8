"""The audit, for owners and the operator."""

from datetime import datetime

from common.door.protocol import AnyDoor
from common.messages import AskAudit, AuditAnswer, AuditLine


async def read_audit(door: AnyDoor, tenant: str | None, since: datetime | None) -> list[AuditLine]:
    """Every line of the tenant, or of the door's own, oldest first. Raises: ClientError; NoAnswer."""
    lines, cursor = list[AuditLine](), 0
    while True:
        page = await door.ask("audit", AskAudit(since=since, cursor=cursor), AuditAnswer, tenant=tenant)
        lines += page.lines
        if page.cursor is None:
            return lines
        cursor = page.cursor
