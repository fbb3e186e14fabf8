"""Jobs: any client → scheduler."""

import hashlib
import json
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from common.limits import IN_ACCOUNT, LIMITS, Limit
from common.messages.base import Message, Sentence, Value
from common.spec import TASK_ID_PATTERN, Name


class TenantRequest(Value):
    """A tenant's job about no task, answered by an event that repeats `request`."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the sender."""


class SubmitTask(Message, kind="submit-task.1"):
    """Run this task. Idempotent for the same spec; rejected if the id belongs to another spec."""

    task: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the client, unique per submission."""
    tenant: Name
    spec: dict[str, JsonValue]
    """A TaskSpec, unvalidated, so that the answer to an invalid one can list the reasons."""

    @property
    def digest(self) -> str:
        """SHA-256 of the submitted spec, independent of the order of its keys."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()


class PreviewTask(TenantRequest, Message, kind="preview-task.1"):
    """Report whether this task would be accepted, and with which values, without accepting it. The answer is the event `previewed`."""

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
    """Sequence of the letter in the stream FAILED."""


class PruneTasks(TenantRequest, Message, kind="prune-tasks.1"):
    """Delete a tenant's blobs that no retention rule keeps, and tasks that ended long ago. Answered by the event `pruned`."""

    ended_before_s: float | None = Field(default=None, gt=0)
    """Minimum seconds since the end of tasks to delete; None: delete no task."""
    dry_run: bool = False
    """Report the deletions without performing them."""


class DeleteTenant(TenantRequest, Message, kind="delete-tenant.1"):
    """Cancel and delete all tasks of a tenant, and all its other stored data except its usage. For its owner and operators.

    The answer is the event `tenant-deleted` with the receipt.
    """


Days = Annotated[int, Field(ge=0, le=36_500)]
DAYS_OF = ("adapters", "checkpoints", "batches", "events", "tasks")


class LimitValue(Value):
    """A limit (`common/limits.py`) and its value."""

    of: Limit
    value: int | None
    """None: no limit."""


class SetTenant(Message, kind="set-tenant.1"):
    """Change a tenant's weight and limits, without a restart; None leaves a value unchanged. For operators.

    The answer is the event `tenant` with all values, even if none changed.
    """

    tenant: Name | None
    """None: the default limits, of all tenants without their own."""
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the sender, repeated in the answer."""
    weight: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    """Share of every queue, relative to other tenants'."""
    adapters_days: Days | None = None
    """Days after a task's end for which adapters selected by its section `keep` are kept; 0: forever. The next three are alike."""
    checkpoints_days: Days | None = None
    batches_days: Days | None = None
    events_days: Days | None = None
    tasks_days: Days | None = None
    """Days after a task's end until all its data is deleted."""
    limits: list[LimitValue] = []
    """Limits to set."""
    defaults: list[Limit] = []
    """Limits of the tenant to reset to the default."""

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
