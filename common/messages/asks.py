"""Asks: questions of any client to any scheduler replica, by request and reply, about the data of the tenant in the subject.

`verbs.py` has the request and the answer of each verb; `progress.py` those about the progress of one task.
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
"""Maximum bytes of a request."""
MAX_ANSWER_BYTES = 512 * 1024
"""Maximum bytes of an answer; the rest is on the next page."""
PAGE_BYTES = 384 * 1024
"""Maximum bytes of a page's entries as JSON, unless its first entry is larger."""
CHUNK_BYTES = 256 * 1024
"""Bytes of every part of a blob but the last; as base64 in JSON, it still fits an answer."""
MAX_VERSION = 2**31 - 1
MAX_NUMBER = 2**63 - 1


Text = Annotated[str, Field(min_length=1, max_length=100, pattern=described(r"^[^\x00]+$", "a text without null characters"))]
TaskState = Literal["submitted", "running", "paused", Ended]
TaskOrder = Literal["id", "created", "reward", "state"]
MAX_TASKS = 200
"""Maximum tasks per page, even if more would fit: one question must not occupy a replica for long."""


A_CURSOR = "the cursor that the page before gave"
TASKS_CURSOR = described(rf"^([a-z0-9.+-]{{1,32}}~)?{TASK_ID_PATTERN[1:]}", A_CURSOR)


class AskTasks(Message, kind="ask-tasks.1"):
    """Tasks that match every filter."""

    cursor: str | None = Field(default=None, max_length=128, pattern=TASKS_CURSOR)
    """`cursor` of the previous page, for an otherwise equal request; None for the first page."""
    states: list[TaskState] = Field(default=[], max_length=7)
    """Matches any of these states; empty: all."""
    pool: Name | None = None
    name: Text | None = None
    """Full name of the task."""
    text: Text | None = None
    """Part of the id or the name, case-insensitively."""
    sort: TaskOrder = "id"
    """Sort key; ties by id. `reward`: the status's; tasks without one are the lowest."""
    descending: bool = False
    most: int = Field(default=MAX_TASKS, ge=1, le=MAX_TASKS)
    """Maximum tasks of the page."""


def cursor_after(status: TaskStatus) -> str:
    """Cursor for the tasks after this one in a listing by `created`: its time, in microseconds, and its id."""
    return f"{round(status.submitted_s * 1e6)}~{status.task}"


class AskTask(Message, kind="ask-task.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)


class AskEvents(Message, kind="ask-events.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    """A task's id; "none" for answers to jobs that concern no task."""
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last event that the client has."""


class AskUsage(Message, kind="ask-usage.1"):
    cursor: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """`cursor` of the previous page; None for the first page."""


class AskFailures(Message, kind="ask-failures.1"):
    task: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """None: letters of all tasks, and of refused jobs."""
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last letter that the client has."""


class AskDeployment(Message, kind="ask-deployment.1"):
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """For `envs`: number of the last package that the client has."""


class AskAdapter(Message, kind="ask-adapter.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int | None = Field(default=None, ge=0, le=MAX_VERSION)
    """None: the latest version."""


class AskChunk(Message, kind="ask-chunk.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int = Field(ge=0, le=MAX_VERSION)
    offset: int = Field(ge=0, le=MAX_NUMBER)
    """Offset of the part in the adapter's blob, in bytes."""


class TasksAnswer(Message, kind="tasks-answer.1"):
    tasks: list[TaskStatus]
    """In the requested order. If that order is by reward or state, a task whose value changes meanwhile may be on two pages or on none;
    every other task is on exactly one.
    """
    cursor: str | None
    """Cursor for the next page; None on the last."""


class StatusAnswer(Message, kind="status-answer.1"):
    status: TaskStatus


class EventsAnswer(Message, kind="events-answer.1"):
    events: list[Event]
    """Events by number. An event larger than a page has no data but `omitted_bytes`, its size as JSON."""
    last: int
    """Number of the task's latest event, 0 before the first; ask again while the numbers in `events` are below it."""


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
    """Prompt tokens of requests that the tenant sent; for a task, of requests to its versions. `served_sampled_tokens` likewise."""
    served_sampled_tokens: int = 0
    accelerator_ms: int = 0
    """Milliseconds of shared accelerators, including switches."""

    @property
    def stored_bytes(self) -> int:
        return self.adapter_bytes + self.checkpoint_bytes + self.batch_bytes


class TenantUsage(Usage):
    """Usage of a tenant, including deleted tasks."""

    tenant: str
    live_tasks: int
    env_ms: int = 0
    """Milliseconds of work of its environments, including time charged to no task."""
    package_bytes: int = 0
    """Bytes of its packages, as announced."""

    @property
    def stored_bytes(self) -> int:
        return super().stored_bytes + self.package_bytes


class TaskUsage(Usage):
    task: str


class UsageAnswer(Message, kind="usage-answer.1"):
    tenants: list[TenantUsage]
    """Only on the first page."""
    tasks: list[TaskUsage]
    """Tasks by id."""
    cursor: str | None
    """Cursor for the next page; None on the last."""
    store_bytes: int | None = None
    """Bytes in the whole blob store; for the operator only, as is its limit."""
    store_limit_bytes: int | None = None
    """None also if the store has no limit."""


class WhyAnswer(Message, kind="why-answer.1"):
    """Reason why a task waits."""

    task: str
    cause: str | None
    """One of the causes in docs/asking.md, to which a newer scheduler may add; None if nothing holds the task back, or it has ended."""
    number: float | None
    """The number that would have to change, in the unit named in `sentence`; None without a cause."""
    sentence: Sentence
    """Explanation in which other tenants appear only as numbers."""


class FailedMessage(Value):
    """A dead letter."""

    letter: int
    """Number of the letter, for `resend`."""
    tenant: str | None
    """None if the letter names neither an existing task nor a job; only the operator gets those."""
    task: str | None
    """None for a job that could not be handled."""
    stage: str
    subject: str
    reason: Sentence
    attempts: int


class FailuresAnswer(Message, kind="failures-answer.1"):
    failures: list[FailedMessage]
    """Letters by number."""
    has_more: bool
    """Whether there are more after the last one here."""


class OwnPackage(Value):
    """A package uploaded by a tenant."""

    number: int
    """Sort key of answers, and position for the next page."""
    tenant: str
    digest: str
    """SHA-256 of its wheel."""
    size_bytes: int
    state: str
    """`uploading`: parts are missing; `checking`; `usable`; `refused`; `deleting`."""
    reason: Sentence
    """Reason for its refusal, or for its check's waiting; else empty."""
    package: str = ""
    """Name of the package; empty, like the next three fields, until it is usable."""
    version: str = ""
    environments: list[str] = []
    """Names for use in tasks: `own:…`."""
    components: dict[str, list[str]] = {}
    """Components of the reward, by environment."""
    uploaded_s: float
    """Unix time of the upload of its first part."""
    live_tasks: int
    """Number of unfinished tasks that use it."""


class EnvironmentsAnswer(Message, kind="environments-answer.1"):
    environments: list[str]
    """Names offered by live replicas."""
    sandboxes: list[str]
    """Sandboxes for code written by policies; "none: …" for replicas that refuse such code."""
    packages: list[OwnPackage] = []
    """The tenant's own packages, by number; all tenants' in an answer to the operator."""
    has_more: bool = False
    """Whether there are packages after the last one here."""


class PoolOffer(Value):
    """A base model on offer."""

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
    serving_sequences: int = 0
    """Requests to versions that one of its samplers answers concurrently."""
    ttft_ms: float | None = None
    """Goal for the time to the first token of an answer, in milliseconds; None if the pool has no latency goals."""
    accelerators: list[str] = []
    """Accelerators that its samplers share with other pools; empty if it shares none."""
    is_parked: bool | None = None
    """Whether all its samplers are parked; None if it shares no accelerator."""
    parked_since_s: float | None = None
    """Unix time since when all its samplers are parked."""
    wakes_in_s: float | None = None
    """Expected seconds until a sampler wakes; None while one is awake, or there is nothing to sample."""
    revision: str | None = None
    """Commit, tag or branch of a Hugging Face model, if the pools file names one."""


class PoolsAnswer(Message, kind="pools-answer.1"):
    pools: list[PoolOffer]


class ReplicasOf(Value):
    """Live replicas of one service in one pool."""

    service: str
    pool: str | None
    """None for environment services, which serve every pool."""
    replicas: int
    sequences: int
    """Maximum sequences that all its samplers decode concurrently."""
    kv_tokens: int
    """Total tokens that the samplers' KV caches hold."""
    busy: dict[str, float]
    """Current load by name, summed over replicas."""
    names: list[str] = []
    """Names of the replicas; for the operator only."""


class ReplicasAnswer(Message, kind="replicas-answer.1"):
    replicas: list[ReplicasOf]
    """Replicas by service and pool."""
    troubles: list[TroubleOf] = []
    """Processes that are not ready; for the operator also those that died within the last hour, with the reason."""


class AdapterAnswer(Message, kind="adapter-answer.1"):
    adapter: AdapterRef


class ChunkAnswer(Message, kind="chunk-answer.1"):
    data: bytes
    """CHUNK_BYTES bytes, or fewer at the end of the blob."""


class AskRefused(Message, kind="ask-refused.1"):
    """A refusal to answer, with the reason."""

    code: Literal["invalid", "unknown", "busy", "unavailable"]
    """`invalid`: the request is wrong; `unknown`: the tenant has no such task or version; `busy`, `unavailable`: retry later."""
    reason: Sentence
