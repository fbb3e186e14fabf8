"""Every message that travels between services: one pydantic model per kind, MessagePack on the wire.

Arrays are raw little-endian bytes (int32 token ids, float32 logprobs, uint8 mask: 9 bytes a token), so that coding a
trajectory costs microseconds. A new optional field is compatible, in a section of a task too; anything else is a new kind.

A message about one group carries the group's `GroupContext` whole, so that any replica can go on with it and nothing
has to be looked up. A body that carries members carries a list of them: members that are ready at the same moment share
a message, and each is still settled by itself. Nobody waits to fill one; the sampler alone makes its moments some milliseconds long.
"""

import json
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from common.errors import Reject
from common.spec import TASK_ID_PATTERN, EnvironmentSection, Limits, Name, Sampling, TaskSpec

MAX_SENTENCE_CHARS = 4000
"""Characters. What a sentence quotes may be of any length, and it is told in messages and rows that are bounded."""
UNSUPPORTED = "unsupported by the sandbox"
"""Beginning of the failure of an attempt that this deployment cannot grade; the scheduler counts them apart."""
Sentence = Annotated[str, AfterValidator(lambda text: shortened(text.replace("\0", "\N{REPLACEMENT CHARACTER}")))]
"""Text that may quote anything, kept by PostgreSQL, which stores every character but one."""


def shortened(text: str) -> str:
    """Without what is beyond MAX_SENTENCE_CHARS."""
    return text if len(text) <= MAX_SENTENCE_CHARS else text[: MAX_SENTENCE_CHARS - 1] + "…"


class Value(BaseModel):
    """A part of a message. Unknown fields are dropped: a newer sender may know more."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")


class Message(Value):
    """A whole message body. `kind` travels as a header and is checked on arrival."""

    kind: ClassVar[str]

    def encode(self) -> bytes:
        packed = msgpack.packb(self.model_dump())
        assert packed is not None
        return packed

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """The message in `body`, MessagePack or JSON (a JSON object starts with a brace, MessagePack maps never do).

        Unknown fields are dropped in a task's sections too, which are strict only where a user writes them (`parse_spec`).
        Raises: Reject, naming the field that is wrong.
        """
        try:
            if body[:1] == b"{":
                return cls.model_validate_json(body, extra="ignore")
            return cls.model_validate(msgpack.unpackb(body), extra="ignore")
        except ValidationError as error:
            first = error.errors()[0]
            raise Reject(f"not a {cls.kind} message: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (ValueError, msgpack.UnpackException) as error:
            raise Reject(f"not a {cls.kind} message: {error}") from None


# ---------------------------------------------------------------------------------------------------------- values


class BlobRef(Value):
    """An immutable object in the blob store."""

    name: str
    size_bytes: int
    sha256: str


class CheckpointRef(BlobRef):
    """What training goes on from: a version's state, or what it is recomputed from."""

    since: int | None = None
    """Latest version before it whose state is stored (0: the spec's); the steps from there on are taken again from their batches.
    None where the blob holds the state itself."""


class Canary(Value):
    """A fixed token sequence and the log-probabilities that the trainer gives it under the new adapter.

    Shapes: `ids` (T,) int32; `logprobs` (T-1,) float32, of tokens 1…T-1 at temperature 1.
    """

    ids: bytes
    logprobs: bytes


class AdapterRef(Value):
    """One version of a task's adapter: a PEFT folder in the blob store. Never reused, never overwritten."""

    task: str
    version: int = Field(ge=0)
    """0 only where the task starts from another task's adapter."""
    rank: int
    blob: BlobRef
    canary: Canary

    @property
    def name(self) -> str:
        return f"{self.task}.v{self.version}"

    @property
    def engine_name(self) -> str:
        """What the engine calls it: a step that was taken twice may have made two adapters of one version, and they never mix."""
        return f"{self.name}-{self.blob.sha256[:12]}"


class TokenRecord(Value):
    """Tokens of one trajectory so far, prompt and replies in order, never re-encoded.

    Shapes: all (T,). `ids` int32; `logprobs` float32, of the distribution that was sampled from (0 where not sampled);
    `sampled` uint8, 1 where the policy chose the token.
    """

    ids: bytes = b""
    logprobs: bytes = b""
    sampled: bytes = b""

    @model_validator(mode="after")
    def _one_entry_per_token(self) -> Self:
        if not len(self.ids) == len(self.logprobs) == 4 * len(self.sampled):
            raise ValueError(
                f"ids, logprobs and sampled differ in length: {len(self.ids)}, {len(self.logprobs)}, {len(self.sampled)} bytes"
            )
        return self

    def __len__(self) -> int:
        return len(self.sampled)

    @property
    def sampled_tokens(self) -> int:
        return self.sampled.count(1)

    def ids_T(self) -> NDArray[np.int32]:
        return np.frombuffer(self.ids, dtype="<i4")

    def logprobs_T(self) -> NDArray[np.float32]:
        return np.frombuffer(self.logprobs, dtype="<f4")

    def sampled_T(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.sampled, dtype=np.uint8)

    def with_context(self, ids: list[int]) -> "TokenRecord":
        """This record followed by tokens that the policy did not choose."""
        return self._extended(ids, [0.0] * len(ids), sampled=0)

    def with_sampled(self, ids: list[int], logprobs: list[float]) -> "TokenRecord":
        """This record followed by tokens that the policy chose."""
        return self._extended(ids, logprobs, sampled=1)

    def _extended(self, ids: list[int], logprobs: list[float], *, sampled: int) -> "TokenRecord":
        return TokenRecord(
            ids=self.ids + np.asarray(ids, dtype="<i4").tobytes(),
            logprobs=self.logprobs + np.asarray(logprobs, dtype="<f4").tobytes(),
            sampled=self.sampled + bytes([sampled]) * len(ids),
        )


class ChatMessage(Value):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class GroupContext(Value):
    """What every message about one group carries. Set by the scheduler at admission; nobody changes it."""

    tenant: str
    task: str
    pool: str
    group: int = Field(ge=0)
    """Counts the task's groups from 0, void ones included; those of evaluations from 10⁹."""
    size: int = Field(ge=1)
    """Members (G)."""
    version: int = Field(ge=0)
    """Of the policy that samples the whole group."""
    adapter: AdapterRef | None
    """None at version 0 of a task that starts afresh: the base model itself."""
    family: str
    """Of the environment: the queue that its turns go through."""
    environment: EnvironmentSection
    sampling: Sampling
    greedy: bool = False
    """Take the likeliest token each time, whatever `sampling.temperature` says; for evaluations."""
    limits: Limits
    row: int = Field(ge=0)
    """Which prompt; the environment turns it into one."""
    seed: int = Field(ge=0)
    """The group's own: its members are sampled with seeds derived from it."""
    deadline_s: float
    """Unix time on NATS's clock (`Clock.now_s`) at which the group is given up."""
    task_seed: int | None = Field(default=None, ge=0)
    """The same for all groups of the task: prompts are made of it and the row. None from a scheduler that did not say: `seed`."""

    def trajectory(self, member: int) -> str:
        """The id of one attempt, unique within its task."""
        return f"{self.group}-{member}"


# -------------------------------------------------------------------------------------------------- jobs, from anyone


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


# --------------------------------------------------------------------------------------- prompts, towards the sampler


class CheckEnvironment(Message):
    """Can this environment be built with these options? Asked once, before a task is accepted."""

    kind: ClassVar[str] = "check-environment.1"
    tenant: str
    task: str
    family: str
    environment: EnvironmentSection
    seed: int
    evaluation: EnvironmentSection | None = None
    """As held-out prompts have it, where the task gives it other options for those."""


class OpenGroup(Message):
    """Open this prompt and ask for every member's first turn."""

    kind: ClassVar[str] = "open-group.1"
    group: GroupContext


class TurnRequest(Value):
    """One member's wish for a turn: append `messages` to the transcript and sample."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """Empty at turn 0."""
    messages: list[ChatMessage]
    """New since the transcript."""
    tools: list[dict[str, JsonValue]] = []
    """JSON schemas for the chat template; used at turn 0 only."""
    state: bytes
    """The environment's own, opaque to all others, MessagePack."""


class SampleTurns(Message):
    kind: ClassVar[str] = "sample-turns.1"
    group: GroupContext
    members: list[TurnRequest] = Field(min_length=1)


# ------------------------------------------------------------------------------- trajectories, from sampler to trainer


class SampledTurn(Value):
    """One member's turn, sampled; or the reason why it could not be."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """All tokens so far, this turn's included."""
    reply: str
    """The turn's text, without the end-of-turn token."""
    finish: Literal["stop", "length"]
    """Whether the policy ended the turn or the token limit did."""
    state: bytes
    failure: str | None = None
    """Set when the turn could not be sampled: an infrastructure failure, or limits that the prompt exceeds."""


class TurnsSampled(Message):
    kind: ClassVar[str] = "turns-sampled.1"
    group: GroupContext
    members: list[SampledTurn] = Field(min_length=1)


class ScoredTrajectory(Value):
    """One finished attempt. With `failure` set it carries no reward and is void: never reward 0."""

    member: int = Field(ge=0)
    transcript: TokenRecord
    reward: float = Field(allow_inf_nan=False)
    components: dict[str, float] = {}
    turns: int = Field(ge=0)
    truncated: bool = False
    """The last turn hit its token limit."""
    failure: str | None = None


class TrajectoriesScored(Message):
    """Read by the trainer, by stream sequence; the scheduler sees only its `Settlement` header."""

    kind: ClassVar[str] = "trajectories-scored.1"
    group: GroupContext
    members: list[ScoredTrajectory] = Field(min_length=1)

    def settlement(self) -> "Settlement":
        return Settlement(
            task=self.group.task,
            group=self.group.group,
            members=[
                SettledMember(
                    member=member.member,
                    reward=member.reward,
                    prompt_tokens=len(member.transcript) - member.transcript.sampled_tokens,
                    sampled_tokens=member.transcript.sampled_tokens,
                    turns=member.turns,
                    truncated=member.truncated,
                    failure=member.failure,
                )
                for member in self.members
            ],
        )


class SettledMember(Value):
    member: int
    reward: float = Field(allow_inf_nan=False)
    prompt_tokens: int
    sampled_tokens: int
    turns: int
    truncated: bool = False
    failure: Sentence | None = None


class Settlement(Value):
    """What the scheduler needs of a scored message, as a JSON header (`streams.SETTLEMENT_HEADER`)."""

    task: str
    group: int
    members: list[SettledMember]


class EnvironmentChecked(Message):
    """The answer to CheckEnvironment: accepted, or why not."""

    kind: ClassVar[str] = "environment-checked.1"
    tenant: str
    task: str
    objection: Sentence | None
    """None when the environment opened its first prompt, and the one with the evaluation's options opened its own."""


class BatchMember(Value):
    member: int
    sequence: int
    """Of the scored message in its stream; only this one counts, later duplicates do not."""
    reward: float


class BatchGroup(Value):
    group: int
    version: int
    """Of the policy that sampled it."""
    members: list[BatchMember]


class TrainBatch(Message):
    """Take the optimizer step from `version` to `version + 1` with exactly these trajectories."""

    kind: ClassVar[str] = "train-batch.1"
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=0)
    spec: TaskSpec
    checkpoint: BlobRef | None
    """Of `version`; None at version 0, which is made from `start`, or else from the spec's seed."""
    start: AdapterRef | None = None
    """The adapter of version 0; None for a task that starts afresh."""
    groups: list[BatchGroup] = Field(min_length=1)


# ----------------------------------------------------------------------------------------------------- weight-updated


class WeightUpdated(Message):
    """A step was taken; its adapter and checkpoint are in the blob store."""

    kind: ClassVar[str] = "weight-updated.1"
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=1)
    """Of the new adapter."""
    adapter: AdapterRef
    checkpoint: CheckpointRef
    batch: BlobRef | None = None
    """The trajectories that were trained; None unless the task keeps them, or the checkpoint is recomputed from them."""
    metrics: dict[str, float]
    trained_tokens: int
    """Padding not counted."""
    started_s: float
    finished_s: float
    """Unix times of the step."""


# ------------------------------------------------------------------------------------------------------ events, failed


class Event(Message):
    """Something that the task's owner wants to know. `data` depends on `event`; see docs/events.md."""

    kind: ClassVar[str] = "event.1"
    tenant: str
    task: str
    event: Literal[
        "accepted",
        "rejected",
        "step",
        "evaluation",
        "paused",
        "resumed",
        "resent",
        "cancelled",
        "finished",
        "failed",
        "deleted",
        "pruned",
        "storage",
        "warning",
    ]
    at_s: float
    data: dict[str, JsonValue] = {}


class StoredStep(Value):
    """What a step left in the blob store, as `step` events carry it in `data.stored`: while they are kept, any version is found."""

    adapter: AdapterRef
    checkpoint: CheckpointRef
    batch: BlobRef | None = None

    @classmethod
    def of(cls, event: Event) -> "StoredStep | None":
        """None for other events, and for those of before this was told."""
        stored = event.data.get("stored") if event.event == "step" else None
        return from_json(cls, stored) if isinstance(stored, dict) else None


class DeadLetter(Message):
    """A message that could not be handled, with the reason; the scheduler settles what it was about."""

    kind: ClassVar[str] = "dead-letter.1"
    stage: str
    subject: str
    reason: Sentence
    attempts: int
    headers: dict[str, str]
    body: bytes
    """Empty where the reader was given headers only."""
    sequence: int = 0
    """Of the message in its own stream; 0 where the sender is older than this field."""


# ---------------------------------------------------------------------------------------------------- key-value values


class TaskStatus(Message):
    """A task's current state, in the key-value bucket `tasks` under the task's id."""

    kind: ClassVar[str] = "task-status.1"
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
    """Of the latest 100 groups that were scored or failed, those that failed; None before the first."""
    dead_letters: int = 0
    """Messages about the task that were given up, so far."""
    adapter: AdapterRef | None = None
    warnings: dict[str, str] = {}
    """That stand about the task, sentences by name; those of a task that has ended stood then."""
    submitted_s: float
    updated_s: float


class HistoryMark(Message):
    """How much of the scheduler's outbox NATS has, in the key-value bucket `history`."""

    kind: ClassVar[str] = "history-mark.1"
    deployment: str
    position: int = Field(ge=0)


class ReplicaReport(Message):
    """What a replica is, holds and can take, in the key-value bucket `replicas` until it expires."""

    kind: ClassVar[str] = "replica-report.1"
    replica: str
    service: Literal["rollout", "env", "trainer"]
    pool: str | None = None
    """None for env replicas, which serve every pool."""
    families: list[str] = []
    """Env replicas: the environment families whose queues it reads."""
    environments: list[str] = []
    """Env replicas: every environment name that can be listed."""
    sandbox: str | None = None
    """Env replicas: where code runs that a policy wrote, and what that means; None where it is refused."""
    sequences: int = 0
    """Rollout replicas: sequences it decodes at once."""
    kv_tokens: int = 0
    """Rollout replicas: tokens its KV cache holds."""
    busy: dict[str, float] = {}
    """Current load by name (sequences running, workers busy, …), for `stage_health`."""


V = TypeVar("V", bound=BaseModel)


def as_json(value: BaseModel) -> dict[str, Any]:
    """A JSON-able copy, bytes as base64. `Any` because JSON is what it is."""
    return value.model_dump(mode="json")


def from_json(model: type[V], value: dict[str, Any]) -> V:
    """What `as_json` was given."""
    return model.model_validate_json(json.dumps(value))
