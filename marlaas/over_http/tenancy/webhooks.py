"""HttpWebhooks: webhooks over HTTP."""

from collections.abc import Sequence

from common.door.errors import NoAnswer
from common.door.names import check_name
from common.door.tenancy.webhooks import TIMEOUT_S, RefusedWebhook, Webhooks, WebhookSet, check_webhook
from common.messages import WEBHOOK_EVENTS, WebhookEvent
from marlaas.over_http.door import HttpDoor
from marlaas.over_http.refusals import Invalid, no_gateway


class HttpWebhooks(Webhooks):
    """`Webhooks` of a gateway, which makes the secrets."""

    def __init__(self, door: HttpDoor) -> None:
        super().__init__(door)
        self._http = door

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
        """See `Webhooks.set`. A secret is answered once, so only a request that replaces it may be repeated. Raises: NoAnswer also
        where the webhook may have been made."""
        check_webhook(name, url)
        params, connection = self._http.params(self._owner(tenant)), self._http.connection
        body = {"url": url, "events": list(dict.fromkeys(events)), "new_secret": replace_secret}
        patience_s = timeout_s if replace_secret else 0.0
        try:
            answer = await connection.request(
                "PUT", f"/v1/webhooks/{name}", params, body=body, answer_s=timeout_s + 15, patience_s=patience_s
            )
        except Invalid as error:
            raise RefusedWebhook(str(error)) from None
        except NoAnswer as error:
            raise NoAnswer(f"{error}; if webhook '{name}' is there now, replace its secret, which nobody has seen") from None
        try:
            secret = answer.json()["secret"]
        except (ValueError, LookupError, TypeError):
            raise no_gateway(connection.shown) from None
        return WebhookSet(name, secret)

    async def delete(self, name: str, *, tenant: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """See `Webhooks.delete`."""
        check_name(name)
        params = self._http.params(self._owner(tenant))
        await self._http.connection.request("DELETE", f"/v1/webhooks/{name}", params, answer_s=timeout_s + 15)
