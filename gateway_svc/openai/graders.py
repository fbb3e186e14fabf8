"""Graders of jobs, checked before a task has them."""

from pydantic import BaseModel, JsonValue

from common.graders import WrongGrader, read_grader
from gateway_svc.openai.errors import unsupported, wrong_value
from gateway_svc.openai.parsing import WholeRequest


class GraderRequest(WholeRequest):
    grader: dict[str, JsonValue]


class GraderAnswer(BaseModel):
    grader: dict[str, JsonValue]


def check_grader(grader: JsonValue, param: str) -> None:
    """Raises: Problem for one that is wrong, or not honoured. `param`: where it is."""
    try:
        read_grader(grader)
    except WrongGrader as error:
        place = f"{param}.{error.field}" if error.field else param
        raise (unsupported if "not supported" in error.reason else wrong_value)(place, error.reason) from None
