"""Parses graders in OpenAI's format. Unsupported features are refused by name.

A formula over named numbers is parsed by Python's `ast`; only a few kinds of nodes are allowed, and it is never evaluated as code.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from common.formats.wrong_values import VARIABLE, field_of, reason_of
from common.graders.templates import check_template

MAX_CHARS = 1_000
MAX_NODES = 200
BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
"""`Any`: arguments and results are numbers."""
ONE_ARGUMENT = frozenset(FUNCTIONS) - {"min", "max"}


class Formula:
    """A formula such as `0.8 * exact + 0.2 * max(near, 0)`, of numbers, names, + - * / ^, and the functions of FUNCTIONS."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        """`names`: names of values that the formula may use. Raises: ValueError if `text` is not a valid formula."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"a formula has at most {MAX_CHARS} characters")
        try:
            tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"'{text[:100]}' is no formula") from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise ValueError(f"a formula has at most {MAX_NODES} parts")
        self._tree = tree
        self.names = frozenset(_names(tree))
        if unknown := sorted(self.names - names):
            raise ValueError(f"the formula names '{unknown[0]}'; its graders are {', '.join(sorted(names))}")

    def value(self, values: Mapping[str, float]) -> float:
        """Value of the formula. Raises: ArithmeticError or ValueError, for example for a division by zero."""
        return float(_value(self._tree, values))


def _names(node: ast.expr) -> set[str]:
    """Names of values in the formula. Raises: ValueError for a node that is not allowed."""
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _names(left) | _names(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _names(operand)
        case ast.Call(func=ast.Name(id=name), args=[*arguments], keywords=[]) if name in FUNCTIONS:
            if not arguments or (name in ONE_ARGUMENT and len(arguments) != 1):
                raise ValueError(f"{name} takes {'one argument' if name in ONE_ARGUMENT else 'an argument'}")
            return set[str]().union(*map(_names, arguments))
        case _:
            taken = f"numbers, names of graders, + - * / ^, {', '.join(FUNCTIONS)}"
            raise ValueError(f"'{ast.unparse(node)[:60]}' has no place in a formula: it has {taken}")


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, values) if isinstance(op, ast.USub) else _value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_value(argument, values) for argument in arguments]
            return FUNCTIONS[name](*given) if name in ONE_ARGUMENT else FUNCTIONS[name](given)
        case _:
            raise ValueError("no such part of a formula")


REFUSED: Mapping[str, str] = {
    "score_model": "no model grades here",
    "label_model": "no model grades here",
    "score_label": "no model grades here",
    "endpoint": "graders call no addresses",
}
"""Unsupported types of OpenAI's graders → reason."""
METRICS = ("fuzzy_match",)
UNSUPPORTED_METRICS = frozenset({"cosine", "bleu", "gleu", "meteor", *(f"rouge_{n}" for n in ("1", "2", "3", "4", "5", "l"))})
MAX_SOURCE_BYTES = 256 * 1024
MAX_GRADERS = 16

Template = Annotated[str, AfterValidator(check_template)]


class WrongGrader(ValueError):
    """A grader is invalid. `field`: path in the grader; the text has the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


class _Grader(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: str = Field(min_length=1, max_length=64)


class StringCheckGrader(_Grader):
    type: Literal["string_check"]
    input: Template
    reference: Template
    operation: Literal["eq", "ne", "like", "ilike"]
    """`like`: the input contains the reference; `ilike`: case-insensitively."""


class TextSimilarityGrader(_Grader):
    type: Literal["text_similarity"]
    input: Template
    reference: Template
    evaluation_metric: str

    @model_validator(mode="after")
    def _has_a_metric(self) -> "TextSimilarityGrader":
        if self.evaluation_metric not in METRICS:
            is_known = self.evaluation_metric in UNSUPPORTED_METRICS
            here = f"'{self.evaluation_metric}' is not supported" if is_known else "there is no such"
            raise ValueError(f"evaluation_metric: {here}; there is {', '.join(METRICS)}")
        return self


class PythonGrader(_Grader):
    """`source` defines `grade(sample, item)`, which returns a number."""

    type: Literal["python"]
    source: str = Field(min_length=1, max_length=MAX_SOURCE_BYTES)
    image_tag: None = None

    @model_validator(mode="after")
    def _defines_grade(self) -> "PythonGrader":
        try:
            tree = ast.parse(self.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"source: it is no Python: {error}") from None
        if not any(isinstance(node, ast.FunctionDef) and node.name == "grade" for node in tree.body):
            raise ValueError("source: it defines no function grade(sample, item)")
        return self


SimpleGrader = Annotated[StringCheckGrader | TextSimilarityGrader | PythonGrader, Field(discriminator="type")]
VariableName = Annotated[str, Field(pattern=VARIABLE)]


class MultiGrader(_Grader):
    type: Literal["multi"]
    graders: dict[VariableName, SimpleGrader] = Field(min_length=1, max_length=MAX_GRADERS)
    """Graders by their names in the formula. A single grader may be given without such a name; its own name is then used."""
    calculate_output: str

    @model_validator(mode="before")
    @classmethod
    def _one_has_its_own_name(cls, raw: Any) -> Any:
        """`Any`: unvalidated input."""
        match raw:
            case {"graders": {"type": str(), "name": str(name)} as alone}:
                return {**raw, "graders": {name: alone}}
            case {"graders": dict() as graders} if len(graders) > MAX_GRADERS:  # before the validator makes an error for each
                raise ValueError(f"graders: must have {MAX_GRADERS} entries or fewer, not {len(graders)}")
            case _:
                return raw

    @model_validator(mode="after")
    def _has_a_formula(self) -> "MultiGrader":
        try:
            Formula(self.calculate_output, frozenset(self.graders))
        except ValueError as error:
            raise ValueError(f"calculate_output: {error}") from None
        return self

    @property
    def formula(self) -> Formula:
        return Formula(self.calculate_output, frozenset(self.graders))


Grader = Annotated[StringCheckGrader | TextSimilarityGrader | PythonGrader | MultiGrader, Field(discriminator="type")]
_ADAPTER: TypeAdapter[Grader] = TypeAdapter(Grader)


def read_grader(value: JsonValue) -> Grader:
    """Parse a grader. Raises: WrongGrader, with the first invalid or unsupported field."""
    _refuse_types("", value)
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        message = reason_of(first)
        tags = {"string_check", "text_similarity", "python", "multi"}
        field = field_of([part for part in first["loc"] if part not in tags])
        head, colon, rest = message.partition(": ")
        if colon and head.isidentifier():
            field, message = ".".join(filter(None, [field, head])), rest
        raise WrongGrader(field, message) from None


def _refuse_types(field: str, value: JsonValue) -> None:
    """Raises: WrongGrader for an unsupported type of OpenAI's."""
    if not isinstance(value, dict):
        return
    kind = value.get("type")
    if isinstance(kind, str) and kind in REFUSED:
        raise WrongGrader(f"{field}.type" if field else "type", f"'{kind}' is not supported: {REFUSED[kind]}")
    graders = value.get("graders")
    for name, grader in graders.items() if isinstance(graders, dict) else ():
        _refuse_types(f"graders.{name}", grader)
    if isinstance(graders, dict):
        _refuse_types("graders", {"type": graders.get("type")})
