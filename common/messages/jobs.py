"""Jobs: any client → scheduler."""

from typing import ClassVar

from pydantic import Field, JsonValue

from common.messages.base import Message, Sentence
from common.spec import TASK_ID_PATTERN, Name


class SubmitTask(Message):
    """Run this task. Harmless when repeated with the same spec; rejected when the id is taken by another spec."""

    kind: ClassVar[str] = "submit-task.1"
    task: str = Field(pattern=TASK_ID_PATTERN)
    """Made by whoever submits, unique per submission."""
    tenant: Name
    spec: dict[str, JsonValue]
    """A TaskSpec, unvalidated, so that a wrong one is answered with reasons."""


class ControlTask(Message):
    """Cancel, pause, resume or delete a task; the verb is in the subject."""

    kind: ClassVar[str] = "control-task.1"
    task: str = Field(pattern=TASK_ID_PATTERN)
    tenant: Name
    reason: Sentence = ""


class ResendLetter(Message):
    """Send a dead letter's message again."""

    kind: ClassVar[str] = "resend-letter.1"
    tenant: Name
    """Whose task it is about; for a job that failed, who sent it."""
    letter: int = Field(ge=1, lt=2**63)
    """Its sequence in the stream FAILED."""


class PruneTasks(Message):
    """Free what no rule of a tenant's tasks keeps any more, and delete those that ended long ago. Answered by the event `pruned`."""

    kind: ClassVar[str] = "prune-tasks.1"
    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Made by the sender; names the answer."""
    ended_before_s: float | None = Field(default=None, gt=0)
    """Delete the tasks that ended longer ago than this; None: delete no task."""
    dry_run: bool = False
    """Say what would be deleted, and delete nothing."""
