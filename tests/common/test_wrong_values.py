"""Errors of pydantic as sentences: every kind of them, and every pattern that a user may meet."""

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import _pydantic_core

from common import messages
from common.formats.wrong_values import complaints, described, reason_of
from common.pools import Pool
from common.spec import TaskSpec

RAW = re.compile(r"\b(should|Input|Extra|permitted|Field|dictionary|Unable|pattern)\b")
"""Words of pydantic's own texts."""
UNUSED = re.compile(
    r"^(url|uuid|complex|fraction|.*argument|.*frozen|is_|callable|needs_python|missing_sentinel|ellipsis|get_attr|no_such)"
)
"""Kinds of errors of types that no model here has."""
A_NUMBER = {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "actual_length"}


class Inner(BaseModel):
    model_config = {"extra": "forbid"}
    word: Literal["small", "large"] = "small"
    either: int | list[str] = 1
    filled: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] = "a"


class Given(BaseModel):
    model_config = {"extra": "forbid"}
    count: int = Field(default=1, ge=1, lt=10)
    share: float = Field(default=1, gt=0.5)
    name: str = Field(default="a", pattern=described(r"^[a-c]+$", "letters a to c"), max_length=4)
    odd: str = Field(default="x", pattern=r"^x$")
    inner: Inner = Inner()
    texts: list[str] = Field(default=["a"], min_length=1, max_length=2)
    table: dict[str, int] = {}
    even: int = 2
    needed: bool = True

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an odd number cannot be halved")
        return value


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": "ten"}, "count: must be a whole number, not 'ten'"),
        ({"count": 1.5}, "count: must be a whole number, not 1.5"),
        ({"count": None}, "count: must be a whole number, not null"),
        ({"count": [1]}, "count: must be a whole number, not a list"),
        ({"count": 0}, "count: must be 1 or more, not 0"),
        ({"count": 10}, "count: must be less than 10, not 10"),
        ({"share": 0.5}, "share: must be more than 0.5, not 0.5"),
        ({"share": {}}, "share: must be a number, not an object"),
        ({"name": "d"}, "name: must be letters a to c, not 'd'"),
        ({"name": "abcabc"}, "name: must have 4 characters or fewer, not 6"),
        ({"odd": "y"}, "odd: must be like ^x$, not 'y'"),
        ({"name": 7}, "name: must be a text, not 7"),
        ({"inner": {"word": "huge"}}, "inner.word: must be 'small' or 'large', not 'huge'"),
        ({"inner": {"wrod": "small"}}, "inner.wrod: no such field"),
        ({"inner": {"either": "x"}}, "inner.either: must be a whole number or a list, not 'x'"),
        ({"inner": {"filled": ""}}, "inner.filled: must be a text that is not empty or a list, not ''"),
        ({"inner": {"filled": []}}, "inner.filled: must be a text or a list that is not empty"),
        ({"inner": 3}, "inner: must be an object of fields, not 3"),
        ({"texts": []}, "texts: must not be empty"),
        ({"texts": ["a", "b", "c"]}, "texts: must have 2 entries or fewer, not 3"),
        ({"texts": ["a", 2]}, "texts.1: must be a text, not 2"),
        ({"table": {"a": "x"}}, "table.a: must be a whole number, not 'x'"),
        ({"table": {1: 1}}, "table: its key '1' must be a text"),
        ({"even": 3}, "even: an odd number cannot be halved (given: 3)"),
        ({"needed": "maybe"}, "needed: must be true or false, not 'maybe'"),
        ({"odd": "z" * 100}, f"odd: must be like ^x$, not '{'z' * 59}…'"),
    ],
)
def test_sentence_names_field_value_and_what_is_accepted(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Given.model_validate(given)
    assert complaints(caught.value) == [sentence]


def test_what_was_given_is_not_quoted_where_it_may_be_a_secret() -> None:
    with pytest.raises(ValidationError) as caught:
        Given.model_validate({"name": "secret", "count": "secret", "even": 77, "needed": "secret"})
    found = complaints(caught.value, quoting=False)
    assert len(found) == 4 and not any("secret" in one or "77" in one for one in found)


@pytest.mark.parametrize("error", _pydantic_core.list_all_errors(), ids=lambda error: error["type"])
def test_no_kind_of_error_shows_pydantics_own_words(error: Any) -> None:
    if UNUSED.match(error["type"]):
        pytest.skip("no model here has such a type")
    context = {name: 3 if name in A_NUMBER else "given" for name in error.get("example_context") or {}}
    detail = {"type": error["type"], "loc": ("a",), "msg": error["example_message_python"], "input": "x", "ctx": context}
    assert not RAW.search(reason_of(detail)), reason_of(detail)  # pyright: ignore[reportArgumentType]


def test_every_pattern_of_a_question_a_task_and_a_pool_has_words() -> None:
    asked = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, messages.Message)]
    named = [kind for kind in asked if kind.__name__.startswith(("Ask", "Set", "Delete", "Preview", "Submit", "Control", "Upload"))]
    assert len(named) > 20
    patterns = {pattern for model in (TaskSpec, Pool, *named) for pattern in _patterns(TypeAdapter(model).json_schema())}
    bare = [pattern for pattern in patterns if "must be like" in reason_of(_mismatch(pattern))]
    assert not bare


def _patterns(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {found for one in schema for found in _patterns(one)}
    if not isinstance(schema, dict):
        return set()
    found = {found for one in schema.values() for found in _patterns(one)}
    return found | ({schema["pattern"]} if isinstance(schema.get("pattern"), str) else set())


def _mismatch(pattern: str) -> Any:
    return {"type": "string_pattern_mismatch", "loc": ("a",), "msg": "", "input": "x", "ctx": {"pattern": pattern}}
