"""HttpDoor: questions and events over HTTP."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from pydantic import ValidationError

from common.access.credentials import Credentials
from common.bus import Outgoing
from common.door.asking import UnknownHere
from common.door.errors import WrongQuestion
from common.door.pages import Asking
from common.messages import Event, Message
from marlaas.over_http.connection import Connection, Params
from marlaas.over_http.events import LiveEvents
from marlaas.over_http.questions import QUESTIONS
from marlaas.over_http.refusals import Invalid, NotOverHttp, no_gateway

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
        """Parameter that names the tenant. `tenant`: in place of the door's own."""
        named = tenant or self.tenant
        return [] if named is None else [("tenant", named)]

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M:
        """The answer. Raises: UnknownHere; ClientError when the request is wrong, not permitted, or only NATS takes it; NoAnswer."""
        question = QUESTIONS.get(verb)
        if question is None:
            raise NotOverHttp(f"the question '{verb}'")
        path, params = question.route(request)
        try:
            body = await self.connection.get(path, [*params, *self.params(tenant)])
        except UnknownHere:
            if question.absent is None:
                raise
            return answer.model_validate(question.absent)
        except Invalid as error:
            raise WrongQuestion(verb, str(error)) from None
        try:
            found = question.chosen(request, question.answer(json.loads(body)))
            return answer.model_validate_json(json.dumps(found), extra="ignore")
        except (ValidationError, ValueError, LookupError, TypeError):
            raise no_gateway(self.connection.shown) from None

    async def publish(self, out: Outgoing) -> NoReturn:
        """Raises: NotOverHttp: `HttpJobs` sends what a gateway takes."""
        raise NotOverHttp(f"'{out.subject.split('.')[1]}'")

    @asynccontextmanager
    async def listening(self, tenant: str | None, task: str | None) -> AsyncGenerator[LiveEvents]:
        """Live events; of all tenants, or of all tasks, where None is given.

        Raises: ClientError when that is not permitted; NotOverHttp for answers to jobs about no task; NoAnswer.
        """
        if task == "none":
            raise NotOverHttp("this")
        path = "/v1/events" if task is None else f"/v1/tasks/{task}/events"
        number = None if task is None else await self.last_event(task, tenant=tenant)
        async with LiveEvents(self.connection, path, self.params(tenant), number).read() as live:
            yield live

    async def next_event(self, live: LiveEvents, timeout_s: float) -> Event | None:
        """None when none comes for so long. Raises: ClientError, when the stream is refused."""
        return await live.next(timeout_s)
