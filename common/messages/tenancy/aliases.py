"""Aliases: a tenant's names for versions of its tasks, set by jobs and read by questions (`messages/verbs.py`).

The scheduler stores them, and publishes each in the bucket `aliases`, from which rollout replicas know which adapters to keep loaded.
"""

from typing import Annotated, Literal

from pydantic import Field

from common.formats.wrong_values import described
from common.messages.artifacts import AdapterRef
from common.messages.asks import MAX_VERSION
from common.messages.base import Message, Value
from common.messages.tenancy.named import AskNamed, NamedRequest
from common.spec import TASK_ID_PATTERN

MAX_ALIASES = 100
"""Maximum aliases of a tenant."""
Expected = Annotated[str | None, Field(max_length=80, pattern=described(r"^[a-z0-9@-]*$", "TASK@VERSION"))]
"""Precondition of a job: the version that the alias must name, as `TASK@7`; empty: the alias must not exist; None: none."""


class SetAlias(NamedRequest, Message, kind="set-alias.1"):
    """Create an alias of a task's version, or point an existing one to it. Answered by the event `alias`.

    `latest` and `best` are resolved once, when the job is handled.
    """

    task: str = Field(pattern=TASK_ID_PATTERN)
    version: Annotated[int, Field(ge=1, le=MAX_VERSION)] | Literal["latest", "best"] = "latest"
    expected: Expected = None


class DeleteAlias(NamedRequest, Message, kind="delete-alias.1"):
    """Delete an alias; afterwards its version is kept only if other rules keep it. Answered by the event `alias`."""

    expected: Expected = None


class KnownAlias(Message, kind="alias.1"):
    """Entry of the bucket `aliases`."""

    tenant: str
    name: str
    pool: str
    adapter: AdapterRef
    changed_s: float

    @property
    def key(self) -> str:
        return alias_key(self.tenant, self.name)


def alias_key(tenant: str, name: str) -> str:
    """Key of an alias's entry in the bucket."""
    return f"{tenant}.{name}"


class AskAliases(AskNamed, Message, kind="ask-aliases.1"):
    pass


class AliasOf(Value):
    tenant: str
    name: str
    task: str
    version: int
    pool: str
    changed_s: float
    """Unix time of its last change."""

    @property
    def model(self) -> str:
        """Exact name of its version."""
        return f"{self.task}@{self.version}"


class AliasesAnswer(Message, kind="aliases-answer.1"):
    aliases: list[AliasOf]
    """Aliases by tenant and name."""
    cursor: str | None
    """Cursor for the next page; None on the last."""
