"""The interface as OpenAPI 3.1, made from the routes."""

from copy import deepcopy
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from common.messages.verbs import JOBS, QUESTIONS
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
        _describe(model, schemas)
    if (operation := document["paths"].pop("/v1/ask/{verb}", None)) is not None:
        for verb, question in QUESTIONS.items():
            document["paths"][f"/v1/ask/{verb}"] = _of_verb(operation, schemas, verb, question.request, question.answer)
    if (operation := document["paths"].pop("/v1/jobs/{verb}", None)) is not None:
        for verb, job in JOBS.items():
            document["paths"][f"/v1/jobs/{verb}"] = _of_verb(operation, schemas, verb, job, None)
    schemas["TaskSpec"]["required"].remove("tenant")  # the key's, or that of ?tenant=NAME
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation)
            _correct(operation["responses"])
            _share(operation["responses"], document["components"].setdefault("responses", {}))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def _describe(model: type[BaseModel], schemas: dict[str, Any], *, is_answer: bool = False) -> dict[str, str]:
    """Add the model's schema, and those that it refers to; a reference to it."""
    schema = model.model_json_schema(ref_template=REFERENCE, mode="serialization" if is_answer else "validation")
    for name, one in {**schema.pop("$defs", {}), model.__name__: schema}.items():
        schemas.setdefault(name, one)
    return {"$ref": REFERENCE.format(model=model.__name__)}


def _of_verb(
    path: dict[str, Any], schemas: dict[str, Any], verb: str, request: type[BaseModel], answer: type[BaseModel] | None
) -> dict[str, Any]:
    """The path of one verb, in place of the parameter, with the messages that it takes and answers."""
    operation = deepcopy(path["post"])
    operation["operationId"] += f"_{verb}"
    operation["parameters"] = [one for one in operation["parameters"] if one["name"] != "verb"]
    operation["requestBody"]["content"] = {"application/json": {"schema": _describe(request, schemas)}}
    if answer is not None:
        operation["responses"]["200"]["content"] = {"application/json": {"schema": _describe(answer, schemas, is_answer=True)}}
    return {"post": operation}


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


def _share(answers: dict[str, Any], shared: dict[str, Any]) -> None:
    """Refer to problems, which are the same wherever they have one status, in place of repeating them."""
    for status, answer in answers.items():
        if MEDIA_TYPE in answer.get("content", {}):
            name = answer["description"].title().replace(" ", "")
            shared[name] = answer
            answers[status] = {"$ref": f"#/components/responses/{name}"}
