"""Message: a pydantic model, MessagePack on the wire."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgpack
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from common.errors import Reject
from common.formats.bounds import MAX_DEPTH, MAX_VALUES, check_json, check_packed
from common.formats.wrong_values import first_complaint

MAX_SENTENCE_CHARS = 4000
"""Maximum characters of a sentence, which may quote texts of any length: messages and rows that contain it are bounded."""
Sentence = Annotated[str, AfterValidator(lambda text: shortened(text.replace("\0", "\N{REPLACEMENT CHARACTER}")))]
"""Text that may quote anything, with null characters replaced: PostgreSQL does not store them."""
MAX_OTHER_VALUES, MAX_OTHER_DEPTH = 1_000, 8
"""Maximum values and depth of a user's message in addition to the task, which has MAX_VALUES of its own."""
V = TypeVar("V", bound=BaseModel)


class Value(BaseModel):
    """A part of a message. Unknown fields are dropped: a newer sender may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")


class Message(Value):
    """A whole message body. `kind` travels as a header and is checked on arrival."""

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str) -> None:
        cls.kind = kind

    def encode(self) -> bytes:
        packed = msgpack.packb(self.model_dump())
        assert packed is not None
        return packed

    @classmethod
    def decode(cls, body: bytes, *, by_user: bool = False) -> Self:
        """Decode MessagePack or JSON (a JSON object starts with a brace, MessagePack maps never do).

        Unknown fields are dropped in a task's sections too; only `parse_spec` is strict, for sections written by users.
        `by_user`: whether a user sent the message; its values are then counted before any is built. Raises: Reject, naming the invalid
        field.
        """
        try:
            if by_user:
                _check_bounds(body)
            if body[:1] == b"{":
                return cls.model_validate_json(body, extra="ignore")
            return cls.model_validate(msgpack.unpackb(body), extra="ignore")
        except ValidationError as error:
            raise Reject(f"not a {cls.kind} message: {first_complaint(error, quoting=False)}") from None
        except (ValueError, msgpack.UnpackException) as error:
            raise Reject(f"not a {cls.kind} message: {error}") from None


def _check_bounds(body: bytes) -> None:
    """Raises: ValueError if the body exceeds the limits on values or depth."""
    if body[:1] == b"{":
        check_json(body, MAX_VALUES + MAX_OTHER_VALUES)
    else:
        check_packed(body, MAX_VALUES + MAX_OTHER_VALUES, MAX_DEPTH + MAX_OTHER_DEPTH)


def shortened(text: str) -> str:
    """`text`, cut at MAX_SENTENCE_CHARS."""
    return text if len(text) <= MAX_SENTENCE_CHARS else text[: MAX_SENTENCE_CHARS - 1] + "…"


def as_json(value: BaseModel) -> dict[str, Any]:
    """Representation as JSON, with bytes as base64. `Any` because JSON has no schema."""
    return value.model_dump(mode="json")


def from_json(model: type[V], value: dict[str, Any]) -> V:
    """Inverse of `as_json`."""
    return model.model_validate_json(json.dumps(value))


MAX_PART_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a message's unbounded parts; the bus accepts twice as much in total."""

T = TypeVar("T")


def in_parts(items: Sequence[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Split `items`, in order, into lists of at most MAX_PART_BYTES. A larger item is alone."""
    part: list[T] = []
    total = 0
    for item in items:
        size = size_bytes(item)
        if part and total + size > MAX_PART_BYTES:
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part
