"""The interface as OpenAPI 3.1, made from the routes."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from common.spec import TaskSpec
from gateway_svc.http.errors import MEDIA_TYPE, ProblemBody

REFERENCE = "#/components/schemas/{model}"
DEFAULT_ERROR = "422"
"""FastAPI's own answer to wrong input; here it is a problem with status 400."""


def describe(app: FastAPI) -> dict[str, Any]:
    """The document. `Any` because JSON has no schema."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (TaskSpec, ProblemBody):
        schema = model.model_json_schema(ref_template=REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    schemas["TaskSpec"]["required"].remove("tenant")  # the key's, or that of ?tenant=NAME
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation)
            _correct(operation["responses"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def _complete(operation: dict[str, Any]) -> None:
    """Add what a route need not say of itself: parameters may be wrong wherever there is a caller, and a body wherever there is one."""
    answers = operation["responses"]
    likely = {400} if operation.get("security") else set[int]()
    likely |= {408, 413, 415} if "requestBody" in operation else set[int]()
    for status in sorted(likely):
        answers.setdefault(str(status), answers.get("401", {}) | {"description": HTTPStatus(status).phrase})


def _correct(answers: dict[str, Any]) -> None:
    if "HTTPValidationError" in str(answers.get(DEFAULT_ERROR)):
        del answers[DEFAULT_ERROR]
    for answer in answers.values():
        content = answer.get("content", {})
        if MEDIA_TYPE in content:
            content.pop("application/json", None)
