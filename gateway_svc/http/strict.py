"""Bodies as strict JSON: routes of the class StrictRoute read nothing else."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gateway_svc.http.gateway import BEARER, gateway_of
from gateway_svc.problems import FieldError, Problem
from gateway_svc.strict_json import read_json


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
