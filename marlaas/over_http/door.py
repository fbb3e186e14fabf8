"""HttpDoor: questions, jobs and events over HTTP, as the messages that NATS has."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import ValidationError

from common import streams
from common.access.credentials import Credentials
from common.bus import Outgoing
from common.client_api.errors import WrongQuestion
from common.client_api.protocol import Asking
from common.messages import Event, Message
from marlaas.over_http.connection import Connection, Params
from marlaas.over_http.events import LiveEvents
from marlaas.over_http.refusals import Invalid, no_gateway

M = TypeVar("M", bound=Message)


class HttpDoor(Asking):
    """`AnyDoor` of a gateway. `tenant`: whose data it asks for; None for everybody's, which only an admin's key has."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        self.connection = connection
        self.tenant = tenant

    @property
    def key(self) -> Credentials | None:
        """None: a gateway has the key that NATS sees."""
        return None

    def params(self, tenant: str | None = None) -> Params:
        """Parameter that names the tenant. `tenant`: in place of the door's own; EVERY_TENANT: all."""
        named = tenant or self.tenant
        return [] if named in (None, streams.EVERY_TENANT) else [("tenant", str(named))]

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M:
        """The answer. Raises: UnknownHere; ClientError when the request is wrong or not permitted; NoAnswer."""
        try:
            found = await self.connection.request("POST", f"/v1/ask/{verb}", self.params(tenant), body=_fields(request))
        except Invalid as error:
            raise WrongQuestion(verb, str(error)) from None
        try:
            return answer.model_validate_json(found.content)
        except ValidationError:
            raise no_gateway(self.connection.shown) from None

    async def publish(self, out: Outgoing) -> None:
        """Send a job. Raises: ClientError when it is wrong, not permitted, or as many wait as may; NoAnswer when NATS may not have it."""
        _, verb, tenant = out.subject.split(".")
        headers = {"Idempotency-Key": out.message_id}
        await self.connection.request("POST", f"/v1/jobs/{verb}", self.params(tenant), body=_fields(out.message), headers=headers)

    @asynccontextmanager
    async def listening(self, tenant: str | None, task: str | None) -> AsyncGenerator[LiveEvents]:
        """Live events; of all tenants, or of all tasks, where None is given. Raises: ClientError when that is not permitted; NoAnswer."""
        about: Sequence[tuple[str, str]] = [] if task is None else [("task", task)]
        async with LiveEvents(self.connection, [*self.params(tenant), *about]).read() as live:
            yield live

    async def next_event(self, live: LiveEvents, timeout_s: float) -> Event | None:
        """None when none comes for so long, or some may have been lost. Raises: ClientError when the stream is refused."""
        return await live.next(timeout_s)


def _fields(message: Message) -> dict[str, object]:
    """Without those that say what is the default: an older gateway does not know all of them."""
    return message.model_dump(mode="json", exclude_defaults=True)
