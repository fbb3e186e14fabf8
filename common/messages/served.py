"""The end of a served request: gateway → scheduler, which books it.

A request is reported by the attempt that ends it, with what the user was given; attempts that failed before are in no report.
"""

from pydantic import Field

from common.messages.base import Message
from common.messages.tenancy.access import Key
from common.spec import TASK_ID_PATTERN, Name

MAX_TOKENS = 2**31 - 1


class ServingEnded(Message, kind="serving-ended.1"):
    """What a request was given, also where it was cut. Harmless when repeated: the first report of a request counts."""

    request: str = Field(pattern=r"^[a-z0-9]{1,63}$")
    """Id made by the gateway, unique for ever."""
    attempt: int = Field(ge=0, le=MAX_TOKENS)
    """The one that ended it."""
    tenant: Name
    """Who pays."""
    key: Key | None
    """Public key of the sender; None on a server without keys."""
    pool: Name
    task: str | None = Field(pattern=TASK_ID_PATTERN)
    """None, as `version`: the base model. The task may have ended, or be deleted."""
    version: int | None = Field(ge=0, le=MAX_TOKENS)
    prompt_tokens: int = Field(ge=0, le=MAX_TOKENS)
    cached_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Of the prompt, those that came from the prefix cache."""
    sampled_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Of all attempts together, as the user has them."""
