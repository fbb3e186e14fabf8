"""Events, dead letters, and values of key-value buckets."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from common.messages.artifacts import AdapterRef, BlobRef, CheckpointRef
from common.messages.base import Message, Sentence, Value, from_json

PACE_STEPS = 10
"""Maximum steps from which a task's pace is measured."""
Ended = Literal["rejected", "cancelled", "finished", "failed"]
"""Final states of a task, and names of the events that report them."""


class Event(Message, kind="event.1"):
    """Report to the task's owner. `data` depends on `event`; see docs/events.md."""

    tenant: str
    task: str
    event: Literal[
        "accepted",
        Ended,
        "step",
        "evaluation",
        "paused",
        "resumed",
        "resent",
        "deleted",
        "pruned",
        "storage",
        "warning",
        "previewed",
        "tenant",
        "price",
        "pool",
        "budget",
        "tenant-deleted",
        "expiring",
        "package",
        "package-deleted",
        "alias",
        "webhook",
        "access",
        "death",
    ]
    at_s: float
    data: dict[str, JsonValue] = {}
    number: int | None = Field(default=None, ge=1)
    """Position among the events of this tenant and task, from 1, without gaps; None for a refusal about an id that belongs to another
    tenant, which is not stored.
    A client drops events that it has seen, and asks for those that it missed (`ask.<tenant>.events`).
    """


class StoredStep(Value):
    """A step's blobs, in `data.stored` of `step` events, so that any version can be found for as long as they are kept."""

    adapter: AdapterRef
    checkpoint: CheckpointRef
    batch: BlobRef | None = None

    @classmethod
    def of(cls, event: Event) -> "StoredStep | None":
        """Blobs in an event; None for other events."""
        stored = event.data.get("stored") if event.event == "step" else None
        return from_json(cls, stored) if isinstance(stored, dict) else None


class DeadLetter(Message, kind="dead-letter.1"):
    """A message that could not be handled, with the reason; the scheduler settles its task, group or job."""

    stage: str
    subject: str
    reason: Sentence
    attempts: int
    headers: dict[str, str]
    body: bytes
    """Empty if the consumer reads headers only."""
    sequence: int
    """Position of the message in its own stream."""


class TaskStatus(Message, kind="task-status.1"):
    """A task's current state, in the key-value bucket `tasks` under the task's id."""

    tenant: str
    task: str
    name: str
    pool: str
    state: str
    reason: str = ""
    version: int
    steps: int
    reward: float | None = None
    """Mean of the latest trained step; None before the first."""
    staleness: float | None = None
    """Mean of the latest trained step, in versions."""
    sampled_tokens: int = 0
    failed_share: float | None = None
    """Fraction of failures among the latest 100 groups that were scored or failed; None before the first."""
    dead_letters: int = 0
    """Number of dead letters about the task."""
    adapter: AdapterRef | None = None
    warnings: dict[str, str] = {}
    """Current warnings by name; for an ended task, those at its end."""
    expected_end_s: float | None = None
    """Unix time at which the last step ends at the pace of the latest steps; None before two steps, and for a task that is not running."""
    submitted_s: float
    updated_s: float

    def remaining_s(self, now_s: float) -> float | None:
        """Seconds until `expected_end_s`; 0 if that is past."""
        return None if self.expected_end_s is None else max(0.0, self.expected_end_s - now_s)


class HistoryMark(Message, kind="history-mark.1"):
    """Position up to which NATS has the scheduler's outbox, in the key-value bucket `history`."""

    deployment: str
    position: int = Field(ge=0)


class StatusesRemoved(Message, kind="statuses-removed.1"):
    """Records, in the bucket `history`, that statuses of ended tasks were removed to make room in the bucket `tasks`."""

    until_s: float
    """Unix time; tasks that ended before it may have no status in the bucket `tasks`."""


WITHHELD = "withheld"
"""Key in `ReplicaReport.busy`: mean number of rollout sequences that a replica does not take or holds, for served requests."""
ERROR = "_error"
"""Ending of keys in `ReplicaReport.busy` for relative errors: of several replicas the largest counts, not the sum."""


class ReplicaReport(Message, kind="replica-report.1"):
    """Identity, capacity and load of a replica, in the key-value bucket `replicas` until it expires."""

    replica: str
    service: Literal["rollout", "env", "trainer", "gateway"]
    pool: str | None = None
    """None for env replicas and gateways, which serve every pool."""
    families: list[str] = []
    """Env replicas: the environment families whose queues it reads."""
    environments: list[str] = []
    """Env replicas: every environment name that can be listed."""
    sandbox: str | None = None
    """Env replicas: sandbox of policy-written code, with its guarantees; None if such code is refused."""
    sequences: int = 0
    """Rollout replicas: rollouts it decodes concurrently, without those that it withholds; 0 if it only serves."""
    kv_tokens: int = 0
    """Rollout replicas: capacity of the KV cache in tokens."""
    invariant: bool = False
    """Rollout replicas: whether sampled log-probabilities are known to be batch-invariant."""
    template_variables: list[str] = []
    """Rollout replicas: variables of the model's chat template that a task may set."""
    takes_answers: bool | None = None
    """Rollout replicas: whether the model's chat template renders answers of tools; None if unknown."""
    serves: bool = False
    """Rollout replicas: whether they accept requests to versions (`[NAME.serving]` of the pools file)."""
    busy: dict[str, float] = {}
    """Current load by name (sequences running, workers busy, …), for `stage_health`."""
    forbidden: int = 0
    """Messages and subscriptions that NATS has refused its key since its start."""


def expected_end_s(ends_s: Sequence[float], steps_left: int) -> float | None:
    """Unix time at which the last of `steps_left` steps ends, at the pace of the latest; None before two steps, and if none is left.

    `ends_s`: Unix times at which the latest steps ended, in order.
    """
    recent = ends_s[-PACE_STEPS - 1 :]
    if len(recent) < 2 or steps_left == 0:
        return None
    return recent[-1] + (recent[-1] - recent[0]) / (len(recent) - 1) * steps_left
