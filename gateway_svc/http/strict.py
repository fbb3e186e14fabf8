"""Strict JSON bodies for routes of the class StrictRoute, and query parameters that accept only their documented form."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import date
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BeforeValidator
from starlette.exceptions import HTTPException

from common.formats.bounds import MAX_VALUES, PART_BYTES, JsonScan, OutOfBounds
from common.resilience.event_loop import own_turn
from gateway_svc.bodies import read_scanned, wrong
from gateway_svc.http.gateway import BEARER, gateway_of
from gateway_svc.problems import FieldError, Problem, invalid


def _is_a_word(value: Any) -> Any:
    if value not in ("true", "false", True, False):
        raise ValueError("it is 'true' or 'false'")
    return value


def _is_no_number(value: Any) -> Any:
    if isinstance(value, str) and value.count("-") < 2:
        raise ValueError("it is written as in ISO 8601, such as 2030-01-31, a moment with time and zone")
    return value


Flag = Annotated[bool, BeforeValidator(_is_a_word)]
"""Boolean parameter: `true` or `false`; not 1, yes or on."""
Day = Annotated[date, BeforeValidator(_is_no_number)]
"""ISO 8601 date; Unix seconds are refused."""
Moment = Annotated[AwareDatetime, BeforeValidator(_is_no_number)]
"""ISO 8601 timestamp with time zone; Unix seconds are refused."""


class StrictRequest(Request):
    max_ids = 0
    """Maximum integers that a JSON body may contain in addition to MAX_VALUES values."""

    async def json(self) -> Any:
        """Parse the body, and yield to other requests between steps. Raises: Problem."""
        scan, parts = JsonScan(MAX_VALUES, self.max_ids), list[bytes]()
        async for part in self.stream():
            for start in range(0, len(part), PART_BYTES):
                try:
                    scan.feed(part[start : start + PART_BYTES])
                except OutOfBounds as error:
                    raise wrong(str(error)) from None
                await asyncio.sleep(0)
            parts.append(part)
        body = b"".join(parts)
        await own_turn(len(body))
        found = read_scanned(body, may_be_unstorable=scan.may_be_unstorable)
        await own_turn(len(body))  # FastAPI checks the value against the route's model next
        return found


class StrictRoute(APIRoute):
    """A route whose body, if it has one, is strict JSON of content type application/json; unauthenticated bodies are not parsed."""

    max_ids: Mapping[str, int] = {}
    """Path of a route → its `StrictRequest.max_ids`, for routes whose bodies may contain token ids."""

    def has_parameter(self, name: str) -> bool:
        """Whether the route has this query parameter."""
        return any(name == one.alias for one in get_flat_dependant(self.dependant).query_params)

    def no_parameter(self, name: str, reason: str) -> Problem:
        return invalid(FieldError(name, reason))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            if unknown := [name for name in request.query_params if not self.has_parameter(name)]:
                raise self.no_parameter(unknown[0][:60], "there is no such parameter here")
            if self.body_field is not None:
                credentials = await BEARER(request)
                async with gateway_of(request).access.entered(credentials.credentials if credentials is not None else None):
                    pass  # FastAPI reads the body before it authenticates the sender
                check_content_type(request, "application/json")
            strict = StrictRequest(request.scope, request.receive)
            strict.max_ids = self.max_ids.get(self.path, 0)
            try:
                return await handle(strict)
            except (RequestValidationError, HTTPException):  # raised by FastAPI while it reads or checks the body
                request.state.is_malformed = True
                raise

        return handle_strictly


def check_content_type(request: Request, *permitted: str) -> str:
    """Content type without parameters. Raises: Problem if it is not permitted."""
    given, _, parameters = request.headers.get("content-type", "").partition(";")
    found, charset = given.strip().lower(), parameters.strip().lower().replace('"', "")
    if found not in permitted or charset not in ("", "charset=utf-8"):
        names = " or ".join(permitted)
        raise Problem(415, "Unsupported media type", f"send {names} in UTF-8", "unsupported_media_type", [FieldError("", f"not {names}")])
    return found
