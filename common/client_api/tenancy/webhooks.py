"""Webhooks: a tenant's addresses that are notified of ends of tasks and of budgets."""

import base64
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from common.client_api.asking import result_of
from common.client_api.errors import ClientError, check_name
from common.client_api.protocol import AnyDoor, at_cursor, pages
from common.client_api.tenancy.packages import owner_of
from common.messages import (
    SECRET_BYTES,
    SECRET_PREFIX,
    WEBHOOK_EVENTS,
    AskWebhooks,
    DeleteWebhook,
    SetWebhook,
    WebhookEvent,
    WebhookOf,
    WebhooksAnswer,
)
from common.messages.tenancy.webhooks import MAX_URL_CHARS, URL_PATTERN

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class WebhookSet:
    """A webhook that was created or changed."""

    name: str
    secret: str | None
    """Signing secret, returned only once; None if unchanged."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_webhook(name: str, url: str) -> None:
    """Raises: ClientError if the name or the address is invalid."""
    check_name(name)
    if len(url) > MAX_URL_CHARS or re.fullmatch(URL_PATTERN, url) is None:
        raise ClientError(f"url: https://…, of {MAX_URL_CHARS} characters at most; not '{url[:100]}'")


class Webhooks:
    """Webhooks of a tenant.

    All methods raise ClientError if a request is wrong or refused, NoAnswer if the scheduler does not answer. Changes also raise
    RefusedChange; UnknownNamed for an unknown webhook.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def all(self, name: str | None = None, *, tenant: str | None = None) -> list[WebhookOf]:
        """Every webhook of the tenant, or of all tenants; with `name`, only webhooks of that name. `tenant`: overrides the client's own."""
        wanted = AskWebhooks(name=name)
        found = pages(self._door, "webhooks", wanted, WebhooksAnswer, lambda page: at_cursor(page, "after"), tenant=tenant)
        return [one async for page in found for one in page.webhooks]

    async def set(
        self,
        name: str,
        url: str,
        events: Sequence[WebhookEvent] = WEBHOOK_EVENTS,
        *,
        tenant: str | None = None,
        replace_secret: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> WebhookSet:
        """Create or change a webhook. `tenant`: its owner; default: the key's. `replace_secret`: give an existing webhook a new secret."""
        check_webhook(name, url)
        owner, request, secret = owner_of(self._door, tenant, "webhook"), secrets.token_hex(6), new_secret()
        job = SetWebhook(
            tenant=owner, request=request, name=name, url=url, events=list(dict.fromkeys(events)), secret=secret, new_secret=replace_secret
        )
        answer = await result_of(self._door, "set-webhook", owner, job, request, timeout_s)
        return WebhookSet(name, secret if answer.get("new_secret") else None)

    async def delete(self, name: str, *, tenant: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Delete a webhook and its pending messages."""
        check_name(name)
        owner, request = owner_of(self._door, tenant, "webhook"), secrets.token_hex(6)
        job = DeleteWebhook(tenant=owner, request=request, name=name)
        await result_of(self._door, "delete-webhook", owner, job, request, timeout_s)
