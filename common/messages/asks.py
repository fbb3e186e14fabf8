"""Asks: any client → any scheduler replica, by request and reply, about what the tenant in the subject has.

`verbs.py` has the request and the answer of each verb. `progress.py`: what one task has come to.
"""

from typing import Annotated, Literal

from pydantic import Field

from common.formats.wrong_values import described
from common.messages.artifacts import AdapterRef
from common.messages.base import Message, Sentence, Value
from common.messages.lives import TroubleOf
from common.messages.status import Ended, Event, TaskStatus
from common.spec import TASK_ID_PATTERN, Name

MAX_ASK_BYTES = 16 * 1024
"""Maximum size of a request."""
MAX_ANSWER_BYTES = 512 * 1024
"""Maximum size of an answer; what does not fit is on the next page."""
PAGE_BYTES = 384 * 1024
"""Size, as JSON, at which a page ends."""
CHUNK_BYTES = 256 * 1024
"""Size of every part of a blob but the last; as JSON, in base64, it still fits an answer."""
MAX_VERSION = 2**31 - 1
MAX_NUMBER = 2**63 - 1


Text = Annotated[str, Field(min_length=1, max_length=100, pattern=described(r"^[^\x00]+$", "a text without null characters"))]
TaskState = Literal["submitted", "running", "paused", Ended]
TaskOrder = Literal["id", "created", "reward", "state"]
MAX_TASKS = 200
"""Maximum tasks of a page, also where more would fit: one question must not occupy a replica for long."""


A_CURSOR = "the cursor that the page before gave"
TASKS_CURSOR = described(rf"^([a-z0-9.+-]{{1,32}}~)?{TASK_ID_PATTERN[1:]}", A_CURSOR)


class AskTasks(Message, kind="ask-tasks.1"):
    """Tasks that satisfy every condition."""

    cursor: str | None = Field(default=None, max_length=128, pattern=TASKS_CURSOR)
    """`cursor` of the page before, of a request that is otherwise the same; None for the first."""
    states: list[TaskState] = Field(default=[], max_length=7)
    """Any of these; empty: all."""
    pool: Name | None = None
    name: Text | None = None
    """The whole name."""
    text: Text | None = None
    """Part of the id or the name; capital letters and small ones are equal."""
    sort: TaskOrder = "id"
    """Equal ones by id. `reward`: the status's; tasks without one are the lowest."""
    descending: bool = False
    most: int = Field(default=MAX_TASKS, ge=1, le=MAX_TASKS)
    """Maximum tasks of the page."""


def cursor_after(status: TaskStatus) -> str:
    """Cursor of a listing by `created` that begins after this task: the time, in microseconds, and the id."""
    return f"{round(status.submitted_s * 1e6)}~{status.task}"


class AskTask(Message, kind="ask-task.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)


class AskEvents(Message, kind="ask-events.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    """An id; "none" for answers to jobs that are about no task."""
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last event that the client has."""


class AskUsage(Message, kind="ask-usage.1"):
    cursor: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """`cursor` of the page before; None for the first."""


class AskFailures(Message, kind="ask-failures.1"):
    task: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """None: of all tasks, and refused jobs."""
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last letter that the client has."""


class AskDeployment(Message, kind="ask-deployment.1"):
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Of `envs`: number of the last package that the client has."""


class AskAdapter(Message, kind="ask-adapter.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int | None = Field(default=None, ge=0, le=MAX_VERSION)
    """None: the latest."""


class AskChunk(Message, kind="ask-chunk.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int = Field(ge=0, le=MAX_VERSION)
    offset: int = Field(ge=0, le=MAX_NUMBER)
    """Bytes of the adapter's blob before this part."""


class TasksAnswer(Message, kind="tasks-answer.1"):
    tasks: list[TaskStatus]
    """In the order that was asked for. Of pages of one listing, a task whose reward or state changes meanwhile may be on two or on none
    where that is the order; every other task is on exactly one."""
    cursor: str | None
    """For the next page; None on the last."""


class StatusAnswer(Message, kind="status-answer.1"):
    status: TaskStatus


class EventsAnswer(Message, kind="events-answer.1"):
    events: list[Event]
    """By number. An event that fills more than a page has no data but `omitted_bytes`, the size that it had as JSON."""
    last: int
    """Number of the task's latest event, 0 before the first; ask again while those in `events` are below it."""


class Usage(Value):
    """Tokens, and bytes in the blob store."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    evaluation_tokens: int = 0
    adapter_bytes: int = 0
    checkpoint_bytes: int = 0
    batch_bytes: int = 0
    served_prompt_tokens: int = 0
    """Of requests that the tenant sent, as the next. Of a task: to its versions."""
    served_sampled_tokens: int = 0
    accelerator_ms: int = 0
    """Milliseconds of shared accelerators, switches included."""

    @property
    def stored_bytes(self) -> int:
        return self.adapter_bytes + self.checkpoint_bytes + self.batch_bytes


class TenantUsage(Usage):
    """Deleted tasks included."""

    tenant: str
    live_tasks: int
    env_ms: int = 0
    """Milliseconds that its environments worked, those without a payer included."""
    package_bytes: int = 0
    """Bytes of its packages, as announced."""

    @property
    def stored_bytes(self) -> int:
        return super().stored_bytes + self.package_bytes


class TaskUsage(Usage):
    task: str


class UsageAnswer(Message, kind="usage-answer.1"):
    tenants: list[TenantUsage]
    """On the first page only."""
    tasks: list[TaskUsage]
    """By id."""
    cursor: str | None
    """For the next page; None on the last."""
    store_bytes: int | None = None
    """Bytes in the whole blob store; for the operator only, as is its bound."""
    store_limit_bytes: int | None = None
    """None also where the store has no bound."""


class WhyAnswer(Message, kind="why-answer.1"):
    """What a task waits for."""

    task: str
    cause: str | None
    """One of the causes in docs/asking.md, to which a newer scheduler may add; None when nothing holds the task, or it has ended."""
    number: float | None
    """The number that would have to change, in the unit that `sentence` names; None without a cause."""
    sentence: Sentence
    """Other tenants appear in it as numbers."""


class FailedMessage(Value):
    """A dead letter."""

    letter: int
    """Its number, for `resend`."""
    tenant: str | None
    """None where the letter names neither a task that there is nor a job; only the operator gets those."""
    task: str | None
    """None for a job that could not be handled."""
    stage: str
    subject: str
    reason: Sentence
    attempts: int


class FailuresAnswer(Message, kind="failures-answer.1"):
    failures: list[FailedMessage]
    """By number."""
    has_more: bool
    """Whether there are more after the last of these."""


class OwnPackage(Value):
    """A package that a tenant has uploaded."""

    number: int
    """By which answers are ordered, and asked for."""
    tenant: str
    digest: str
    """SHA-256 of its wheel."""
    size_bytes: int
    state: str
    """`uploading`: parts are missing; `checking`; `usable`; `refused`; `deleting`."""
    reason: Sentence
    """Why it is refused, or what its check waits for; else empty."""
    package: str = ""
    """Its name; empty, as the next three, until it is usable."""
    version: str = ""
    environments: list[str] = []
    """As tasks name them: `own:…`."""
    components: dict[str, list[str]] = {}
    """Components of the reward of each of these."""
    uploaded_s: float
    """Unix time of its first part."""
    live_tasks: int
    """Tasks that use it and have not ended."""


class EnvironmentsAnswer(Message, kind="environments-answer.1"):
    environments: list[str]
    """Names that live replicas offer."""
    sandboxes: list[str]
    """Sandboxes of code that policies write; "none: …" of replicas that refuse it."""
    packages: list[OwnPackage] = []
    """The tenant's own, by number; of the operator's question: everybody's."""
    has_more: bool = False
    """Whether there are packages after the last of these."""


class PoolOffer(Value):
    """A base model."""

    name: str
    model: str
    """Hugging Face name, or name of the model's folder on the server."""
    context_tokens: int
    max_rank: int
    adapters: int
    sequences: int
    profile: str | None
    serves: bool
    """Whether its versions are served (`[NAME.serving]` of the pools file)."""
    accelerators: list[str] = []
    """Accelerators that its samplers share with other pools; empty where it has processes of its own."""
    is_parked: bool | None = None
    """Whether all its samplers are parked; None where it shares no accelerator."""
    parked_since_s: float | None = None
    """Unix time since which they are."""
    wakes_in_s: float | None = None
    """Seconds until one is expected to wake; None while one is awake, or nothing is to be sampled."""
    revision: str | None = None
    """Commit, tag or branch of a Hugging Face model, where the pools file names one."""


class PoolsAnswer(Message, kind="pools-answer.1"):
    pools: list[PoolOffer]


class ReplicasOf(Value):
    """Live replicas of one service, of one pool."""

    service: str
    pool: str | None
    """None for environment services, which serve every pool."""
    replicas: int
    sequences: int
    """Sequences that all samplers together decode concurrently."""
    kv_tokens: int
    """That samplers' KV caches hold."""
    busy: dict[str, float]
    """Present load by name, summed."""
    names: list[str] = []
    """For the operator only."""


class ReplicasAnswer(Message, kind="replicas-answer.1"):
    replicas: list[ReplicasOf]
    """By service and pool."""
    troubles: list[TroubleOf] = []
    """Processes that are not ready; for the operator also those that died within the last hour, and why."""


class AdapterAnswer(Message, kind="adapter-answer.1"):
    adapter: AdapterRef


class ChunkAnswer(Message, kind="chunk-answer.1"):
    data: bytes
    """CHUNK_BYTES, fewer at the end of the blob."""


class AskRefused(Message, kind="ask-refused.1"):
    """No answer, and why."""

    code: Literal["invalid", "unknown", "busy", "unavailable"]
    """`invalid`: the request is wrong; `unknown`: the tenant has no such task or version; `busy`, `unavailable`: ask again later."""
    reason: Sentence
