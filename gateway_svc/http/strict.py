"""Bodies as strict JSON: routes of the class StrictRoute read nothing else. Parameters as the document has them: pydantic takes more."""

from collections.abc import Callable, Coroutine
from datetime import date
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BeforeValidator

from gateway_svc.http.gateway import BEARER, gateway_of
from gateway_svc.problems import FieldError, Problem
from gateway_svc.strict_json import read_json


def _is_a_word(value: Any) -> Any:
    if value not in ("true", "false", True, False):
        raise ValueError("it is 'true' or 'false'")
    return value


def _is_no_number(value: Any) -> Any:
    if isinstance(value, str) and value.count("-") < 2:
        raise ValueError("it is written as in ISO 8601, such as 2030-01-31, a moment with time and zone")
    return value


Flag = Annotated[bool, BeforeValidator(_is_a_word)]
"""Parameter that is true or false; not 1, yes or on."""
Day = Annotated[date, BeforeValidator(_is_no_number)]
"""Parameter that is a day; not seconds."""
Moment = Annotated[AwareDatetime, BeforeValidator(_is_no_number)]
"""Parameter that is a moment, with its time zone; not seconds."""


class StrictRequest(Request):
    async def json(self) -> Any:
        """Raises: Problem."""
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose body, if it has one, is strict JSON of the content type application/json. None is parsed whose sender has no key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            if self.body_field is not None:
                credentials = await BEARER(request)
                async with gateway_of(request).access.entered(credentials.credentials if credentials is not None else None):
                    pass  # FastAPI reads the body before it asks who sends it
                check_content_type(request, "application/json")
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def check_content_type(request: Request, *permitted: str) -> str:
    """The content type without its parameters. Raises: Problem."""
    given, _, parameters = request.headers.get("content-type", "").partition(";")
    found, charset = given.strip().lower(), parameters.strip().lower().replace('"', "")
    if found not in permitted or charset not in ("", "charset=utf-8"):
        names = " or ".join(permitted)
        raise Problem(415, "Unsupported media type", f"send {names} in UTF-8", "unsupported_media_type", [FieldError("", f"not {names}")])
    return found
