"""Resources that a tenant names, such as aliases and webhooks: their names, jobs about them, and questions about their pages."""

from typing import Annotated

from pydantic import Field

from common.formats.wrong_values import described
from common.messages.base import Value
from common.messages.jobs import TenantRequest

NAME_PATTERN = described(r"^[A-Za-z0-9]([._-]?[A-Za-z0-9])*$", "letters, digits, and single '.', '_' and '-' between them")
"""Pattern of a resource's name. It excludes `@`, which every version's name contains."""
MAX_NAME_CHARS = 63
ResourceName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]


class NamedRequest(TenantRequest):
    """A job about one named resource."""

    name: ResourceName


class AskNamed(Value):
    name: ResourceName | None = None
    """Only resources with this name; None: all."""
    after: str = Field(default="", max_length=128)
    """`cursor` of the previous page; empty for the first page."""
