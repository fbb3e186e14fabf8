"""Shared by routes in OpenAI's shape: bodies, errors, whole answers and streams."""

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from common.messages.serving import ServedDelta, ServingEnded
from gateway_svc.access import Caller
from gateway_svc.http.errors import without_part
from gateway_svc.http.event_stream import GONE, Ends, EventStream, Sse, while_connected
from gateway_svc.http.gateway import check_job, gateway_of, note_standings
from gateway_svc.http.strict import StrictRoute
from gateway_svc.openai.errors import ErrorAnswer, error_answer, headers_of, unsupported
from gateway_svc.openai.models import resolve
from gateway_svc.openai.parsing import problem_of
from gateway_svc.openai.sampling.choices import Choice, Target, sampled
from gateway_svc.openai.sampling.counting import Head
from gateway_svc.problems import Problem

MODEL_HEADER = "x-marlaas-model"
"""Header with the exact name of the answering model."""
DONE = Sse("[DONE]")
PAID = (GONE, 401)
"""Statuses of failed whole answers that are billed, as the client caused the end: it disconnected, or its key ended."""
Numbered = tuple[int, ServedDelta]


class OpenAIRoute(StrictRoute):
    """Route that names invalid fields of a request as OpenAI does."""

    def no_parameter(self, name: str, reason: str) -> Problem:
        return unsupported(name, reason)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_and_name(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                if error.errors()[0]["loc"][:1] != ("body",):
                    raise
                raise problem_of(without_part(error), error.body) from None

        return handle_and_name


def render(problem: Problem) -> Response:
    return json_answer(error_answer(problem), status=problem.status, headers=headers_of(problem))


def json_answer(answer: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(answer.model_dump_json(), status, headers=dict(headers or {}), media_type="application/json")


def error_event(problem: Problem) -> Sse:
    """Event for an error that ends a stream; OpenAI's client raises it."""
    return Sse(error_answer(problem).model_dump_json())


def chunk(answer: BaseModel) -> Sse:
    return Sse(answer.model_dump_json(exclude_unset=True))


def responses(answer: type[BaseModel], *statuses: int, is_streamed: bool = False) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses of a route. `is_streamed`: whether the answer may also be a stream of events."""
    errors = {status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in statuses}
    content = {"content": {"text/event-stream": {"schema": {"type": "string"}}}} if is_streamed else {}
    return {200: {"model": answer, "description": "The answer.", **content}, **errors}


@dataclass(frozen=True)
class Sampling:
    """The sampling started for one request."""

    request: Request
    caller: Caller
    target: Target
    deltas: AsyncGenerator[Numbered]
    held: list[ServingEnded] = field(default_factory=list[ServingEnded])
    """Usage of a whole answer, booked once it is known whether the client receives the answer."""

    @classmethod
    async def of(cls, request: Request, caller: Caller, model: str, choices: list[Choice], *, is_whole: bool) -> "Sampling":
        """Start sampling. Raises: Problem if the model or tenant does not exist, the role may not spend, or a budget is used up."""
        check_job(caller, "submit")  # sampling spends the tenant's money, as a task does
        gateway = gateway_of(request)
        target = (await resolve(caller.door, model, gateway.bases)).target(caller)
        exists = target.adapter is not None or caller.role != "admin"
        if (terms := await gateway.limiter.check_sampling(target.tenant, exists=exists)) is not None:
            target = replace(target, weight=terms.weight)
        held: list[ServingEnded] = []
        key, booked_later = caller.key or None, held if is_whole else None
        target = replace(target, asked_s=gateway.bus.clock.now_s() - (time.monotonic() - request.state.read_s))
        deltas = sampled(gateway.sampler, choices, target, request=request.state.request_id, key=key, held=booked_later)
        request.state.place.leave()  # from here on it only waits for samplers
        bounded = gateway.limiter.bounded(deltas, choices, caller, target.tenant, lambda found: note_standings(request, found))
        return cls(request, caller, target, bounded, held)

    @property
    def head(self) -> Head:
        return Head(self.request.state.request_id, int(time.time()), self.target.model)

    @property
    def headers(self) -> dict[str, str]:
        return {MODEL_HEADER: self.target.model}

    @property
    def ends(self) -> Ends:
        return Ends(self.caller, gateway_of(self.request).drain, is_resumable=False)

    async def whole(self, work: Coroutine[Any, Any, list[list[ServedDelta]]]) -> list[list[ServedDelta]]:
        """Collect all deltas; book their usage, except for error answers outside PAID. Raises: Problem, also if the client disconnects."""
        try:
            return await while_connected(self.request, self.ends, work)
        except BaseException as error:
            if not (isinstance(error, Problem) and error.status in PAID):
                self.held.clear()
            raise
        finally:
            gateway_of(self.request).sampler.book(self.held)

    async def streamed(
        self,
        lines: Callable[[int, ServedDelta], Iterable[Sse]],
        last: Callable[[], Iterable[Sse]],
        *,
        first: Iterable[Sse] = (),
        error: Callable[[Problem], Sse] = error_event,
    ) -> Response:
        """A stream that starts with the first delta, so that an earlier error can still be an ordinary error answer. Raises: Problem."""
        try:
            number, delta = await while_connected(self.request, self.ends, _next(self.deltas))
        except BaseException:
            await self.deltas.aclose()
            raise

        async def events() -> AsyncGenerator[Sse]:
            for line in (*first, *lines(number, delta)):
                yield line
            async for one, more in self.deltas:
                for line in lines(one, more):
                    yield line
            for line in last():
                yield line

        return SamplingStream(self.deltas, events(), self.ends, error=error, headers=self.headers)


async def _next(deltas: AsyncGenerator[Numbered]) -> Numbered:
    return await anext(deltas)


class SamplingStream(EventStream):
    """Ends the sampling, which started before the stream, however the stream ends."""

    def __init__(
        self,
        deltas: AsyncGenerator[Numbered],
        events: AsyncGenerator[Sse],
        ends: Ends,
        *,
        error: Callable[[Problem], Sse],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(events, ends, error=error, headers=headers)
        self._deltas = deltas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._deltas):
            await super().__call__(scope, receive, send)
