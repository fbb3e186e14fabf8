"""Webhooks: addresses of a tenant that receive messages about ends and budgets."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from common.client_api.tenancy.webhooks import Webhooks
from common.messages import WEBHOOK_EVENTS, WebhookEvent, WebhookOf, WebhooksAnswer
from common.messages.tenancy.webhooks import WebhookUrl
from gateway_svc.http.errors import COMMON, Family, responses
from gateway_svc.http.gateway import Acting, check_job, check_name, check_question, only_one, tenant_of
from gateway_svc.http.strict import StrictRoute

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)
FAMILY = Family(router)

WebhookPath = Annotated[str, Path(max_length=200, examples=["pager"])]


class WebhookTarget(BaseModel):
    """URL of a webhook, and the events that it receives."""

    model_config = {"extra": "forbid"}

    url: WebhookUrl = Field(examples=["https://hooks.example.com/marlaas"])
    events: list[WebhookEvent] = Field(default=list(WEBHOOK_EVENTS), min_length=1, max_length=len(WEBHOOK_EVENTS))
    new_secret: bool = Field(default=False, strict=True, description="Whether a webhook that is there gets a new secret.")


class SetWebhookAnswer(BaseModel):
    name: str
    url: str
    events: list[WebhookEvent]
    secret: str | None = Field(description="Signs the messages; of a new webhook, or with `new_secret`. It is shown this once.")


@router.get("", responses=COMMON)
async def list_webhooks(caller: Acting) -> WebhooksAnswer:
    """List webhooks with the outcomes of their latest messages."""
    check_question(caller, "webhooks")
    return WebhooksAnswer(webhooks=await Webhooks(caller.door).all(), cursor=None)


@router.get("/{name}", responses=COMMON | responses(404))
async def read_webhook(caller: Acting, name: WebhookPath) -> WebhookOf:
    """Read a webhook with the outcomes of its latest messages."""
    check_question(caller, "webhooks")
    check_name(name)
    return only_one(caller, await Webhooks(caller.door).all(name))


@router.put("/{name}", responses=COMMON | responses(413, 415, 429))
async def put_webhook(caller: Acting, name: WebhookPath, body: WebhookTarget) -> SetWebhookAnswer:
    """Create or change a webhook."""
    check_job(caller, "set-webhook")
    check_name(name, is_new=True)
    made = await Webhooks(caller.door).set(name, body.url, body.events, tenant=tenant_of(caller), replace_secret=body.new_secret)
    return SetWebhookAnswer(name=name, url=body.url, events=body.events, secret=made.secret)


@router.delete("/{name}", status_code=204, responses=COMMON | responses(404, 429))
async def remove_webhook(caller: Acting, name: WebhookPath) -> None:
    """Delete a webhook and its pending messages."""
    check_job(caller, "delete-webhook")
    check_name(name)
    await Webhooks(caller.door).delete(name, tenant=tenant_of(caller))
