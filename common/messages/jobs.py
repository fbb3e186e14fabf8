"""Jobs: any client → scheduler."""

import hashlib
import json
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from common.limits import IN_ACCOUNT, LIMITS, Limit
from common.messages.base import Message, Sentence, Value
from common.spec import TASK_ID_PATTERN, Name


class SubmitTask(Message, kind="submit-task.1"):
    """Run this task. Harmless when repeated with the same spec; rejected when the id is taken by another spec."""

    task: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the client, unique per submission."""
    tenant: Name
    spec: dict[str, JsonValue]
    """A TaskSpec, unvalidated, so that a wrong one is answered with reasons."""

    @property
    def digest(self) -> str:
        """SHA-256 of what was submitted, whatever the order of its keys."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()


class PreviewTask(Message, kind="preview-task.1"):
    """Answer whether this task would be accepted, and with which values, without accepting it. The answer is the event `previewed`."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    spec: dict[str, JsonValue]
    """As in SubmitTask."""


class ControlTask(Message, kind="control-task.1"):
    """Cancel, pause, resume or delete a task; the verb is in the subject."""

    task: str = Field(pattern=TASK_ID_PATTERN)
    tenant: Name
    reason: Sentence = ""


class ResendLetter(Message, kind="resend-letter.1"):
    """Resend a dead letter's message."""

    tenant: Name
    """Tenant of the task; for a failed job, its sender."""
    letter: int = Field(ge=1, lt=2**63)
    """Its sequence in the stream FAILED."""


class PruneTasks(Message, kind="prune-tasks.1"):
    """Free a tenant's blobs that no rule keeps, and delete tasks that ended long ago. Answered by the event `pruned`."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    ended_before_s: float | None = Field(default=None, gt=0)
    """Minimum time since the end of tasks to delete; None: delete no task."""
    dry_run: bool = False
    """Report the deletions without making them."""


class DeleteTenant(Message, kind="delete-tenant.1"):
    """Cancel and delete all tasks of a tenant, and all else that is stored of it, but for what it consumed. For its owner and operators.

    The answer is the event `tenant-deleted` with the receipt.
    """

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""


Days = Annotated[int, Field(ge=0, le=36_500)]
DAYS_OF = ("adapters", "checkpoints", "batches", "events", "tasks")


class LimitValue(Value):
    """A limit (`common/limits.py`) and its value."""

    of: Limit
    value: int | None
    """None: no limit."""


class SetTenant(Message, kind="set-tenant.1"):
    """Change a tenant's weight and limits, without a restart; None leaves a value as it is. For operators.

    The answer is the event `tenant` with all values, also where nothing is changed.
    """

    tenant: Name | None
    """None: the default limits, of all tenants that have none of their own."""
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    weight: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    """Share of every queue, relative to other tenants'."""
    adapters_days: Days | None = None
    """Days after a task's end that its adapters are kept, as far as its section `keep` does; 0 for ever. As the next."""
    checkpoints_days: Days | None = None
    batches_days: Days | None = None
    events_days: Days | None = None
    tasks_days: Days | None = None
    """Days until the whole task is deleted."""
    limits: list[LimitValue] = []
    """Limits to set."""
    defaults: list[Limit] = []
    """Limits of the tenant to leave to the default."""

    @model_validator(mode="after")
    def _is_within_bounds(self) -> Self:
        for one in self.limits:
            name, value, lowest, highest = one.of, one.value, LIMITS[one.of].lowest, LIMITS[one.of].highest
            if value is not None and not lowest <= value <= highest:
                raise ValueError(f"{name}: {value} is not between {lowest} and {highest}")
            if value is None and name in IN_ACCOUNT:
                raise ValueError(f"{name}: there is always a limit; give a number, or leave it to the default")
        if self.tenant is None and (
            self.defaults or self.weight is not None or any(getattr(self, f"{kind}_days") is not None for kind in DAYS_OF)
        ):
            raise ValueError("only limits have defaults for all tenants, and a default is a number or none")
        return self
