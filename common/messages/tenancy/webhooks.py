"""Webhooks: a tenant's addresses that receive a message when a task finishes or fails, and when a budget is nearly or fully spent.

Set by jobs and read by questions (`messages/verbs.py`). The scheduler sends the messages (docs/adr/0036-webhooks.md).
"""

from typing import Annotated, Literal, get_args

from pydantic import Field

from common.formats.wrong_values import described
from common.messages.base import Message, Sentence, Value
from common.messages.tenancy.named import AskNamed, NamedRequest

WebhookEvent = Literal["finished", "failed", "budget"]
WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)
MAX_WEBHOOKS = 10
"""Maximum webhooks of a tenant."""
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
MAX_URL_CHARS = 1000
URL_PATTERN = described(r"^https?://[!-~]+$", "an address, https://…, without spaces")
WebhookUrl = Annotated[str, Field(max_length=MAX_URL_CHARS, pattern=URL_PATTERN)]
Secret = Annotated[str, Field(pattern=described(rf"^{SECRET_PREFIX}[A-Za-z0-9+/]{{43}}=$", "a secret, whsec_…"))]


class SetWebhook(NamedRequest, Message, kind="set-webhook.1"):
    """Create or change a webhook. Answered by the event `webhook`, which never contains the secret."""

    url: WebhookUrl
    events: list[WebhookEvent] = Field(default=list(WEBHOOK_EVENTS), min_length=1, max_length=len(WEBHOOK_EVENTS))
    secret: Secret = Field(repr=False)
    """Secret chosen by the sender; used for a new webhook, and with `new_secret` for an existing one, else ignored."""
    new_secret: bool = False


class DeleteWebhook(NamedRequest, Message, kind="delete-webhook.1"):
    """Delete a webhook and its pending messages. Answered by the event `webhook`."""


class AskWebhooks(AskNamed, Message, kind="ask-webhooks.1"):
    pass


class DeliveryOf(Value):
    """A message to a webhook."""

    id: str
    """Header `webhook-id` of all its attempts."""
    event: WebhookEvent
    state: Literal["waiting", "delivered", "given_up"]
    created_s: float
    attempts: int
    next_s: float | None
    """Unix time of the next attempt; None if there is none."""
    status: int | None
    """HTTP status of the last answer; None if there was no answer."""
    reason: Sentence
    """Reason why the last attempt failed; empty if it succeeded."""


class WebhookOf(Value):
    tenant: str
    name: str
    url: str
    events: list[WebhookEvent]
    changed_s: float
    waiting: int
    """Number of messages not sent yet."""
    dropped: int
    """Number of messages dropped because too many waited."""
    deliveries: list[DeliveryOf]
    """The latest deliveries, newest first."""


class WebhooksAnswer(Message, kind="webhooks-answer.1"):
    webhooks: list[WebhookOf]
    """Webhooks by tenant and name."""
    cursor: str | None
    """Cursor for the next page; None on the last."""
