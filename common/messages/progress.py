"""Asks about what one task has come to: its spec, steps, evaluations, versions and samples (`verbs.py`).

Samples are whole attempts of a step, kept for people to look at: trainer → stream, and from there to who asks.
"""

from typing import Literal

from pydantic import Field, JsonValue

from common.formats.wrong_values import described
from common.messages.artifacts import TokenRecord
from common.messages.asks import A_CURSOR, MAX_VERSION
from common.messages.base import Message, Value
from common.spec import NAME_PATTERN, TASK_ID_PATTERN

TIMELINE_CURSOR = described(rf"^[0-9]{{1,20}}~{TASK_ID_PATTERN[1:]}", A_CURSOR)


class AskSteps(Message, kind="ask-steps.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    after: int = Field(default=0, ge=0, le=MAX_VERSION)
    """Version that the last step made that the client has; steps of later versions follow."""
    every: int = Field(default=1, ge=1, le=MAX_VERSION)
    """Thins a long task for a plot: steps whose version is divisible by this, the first and the last that is trained."""


class AskVersions(Message, kind="ask-versions.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    after: int = Field(default=0, ge=0, le=MAX_VERSION)
    """The last version that the client has."""


class AskEvaluations(Message, kind="ask-evaluations.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int = Field(default=0, ge=0, le=MAX_VERSION)
    """With `protocol`, of the last evaluation that the client has."""
    protocol: str | None = Field(default=None, pattern=NAME_PATTERN)
    """None: evaluations of `version` by all protocols, and those of later versions, are answered."""


class AskTimeline(Message, kind="ask-timeline.1"):
    """Tasks by age, the newest first."""

    cursor: str | None = Field(default=None, max_length=128, pattern=TIMELINE_CURSOR)
    """`cursor` of the page before; None for the first."""
    steps: int = Field(default=1000, ge=1, le=1000)
    """Maximum steps of a task, the latest."""


class TaskTimes(Value):
    task: str
    steps: bytes
    """Records of 32 bytes by version (`common/formats/step_times.py`); empty for a task without steps."""


class TimelineAnswer(Message, kind="timeline-answer.1"):
    tasks: list[TaskTimes]
    cursor: str | None
    """For the next page; None on the last."""


class StepTimes(Value):
    """Unix times. The trainer's are by its own clock."""

    first_admitted_s: float
    first_sampled_s: float
    last_sampled_s: float
    batched_s: float
    started_s: float | None
    """Of the trainer; None, as the next two, until the step is trained."""
    trained_s: float | None
    """End of the trainer's work."""
    advanced_s: float | None
    """The scheduler has the new version."""


class StepDurations(Value):
    """Seconds of each stage; None for stages that have not ended."""

    sampling_s: float
    wait_for_batch_s: float
    wait_for_trainer_s: float | None
    training_s: float | None
    publishing_s: float | None


class StepOf(Value):
    """An optimizer step."""

    version: int
    """After the step."""
    state: str
    """`batched`: it is with the trainer; `trained`."""
    reward: float
    """Mean over the batch."""
    staleness_mean: float
    staleness_max: int
    sampled_tokens: int
    total_sampled_tokens: int | None = None
    """Those of the steps before it too; None of steps that are not thinned (`AskSteps.every`)."""
    trained_tokens: int | None
    """None until it is trained."""
    groups: list[int]
    """Numbers of the groups that it trains on."""
    metrics: dict[str, float]
    """The trainer's, by name: docs/algorithms.md. Empty until it is trained."""
    times: StepTimes
    durations: StepDurations


class StepsAnswer(Message, kind="steps-answer.1"):
    steps: list[StepOf]
    """By version."""
    has_more: bool
    """Whether there are steps after the last of these."""


class EvaluationOf(Value):
    """A finished evaluation of one version by one protocol."""

    version: int
    protocol: str
    finished_s: float
    is_best: bool
    """Whether this is the task's best version (`VersionsAnswer.best`), by the protocol that decides."""
    report: dict[str, JsonValue]
    """As in the event `evaluation`."""


class EvaluationsAnswer(Message, kind="evaluations-answer.1"):
    evaluations: list[EvaluationOf]
    """By version and protocol."""
    has_more: bool
    """Whether there are evaluations after the last of these."""


class VersionOf(Value):
    """A version whose adapter is stored."""

    version: int
    adapter_bytes: int
    sha256: str
    """Digest of the adapter's blob."""
    rank: int
    advanced_s: float
    """Unix time at which the task got this version."""
    reward: float
    """Mean over the batch that made it."""
    is_best: bool
    is_latest: bool


class VersionsAnswer(Message, kind="versions-answer.1"):
    versions: list[VersionOf]
    """By version; the base model, version 0, is not among them."""
    best: int | None
    """Of the versions that are stored, the one with the best evaluation, as `keep.best` judges; without evaluations, of the last 5
    steps, the one with the highest reward. The earlier of equals."""
    latest: int | None
    """None before the first step, or when its adapter has been deleted with the data of an ended task."""
    has_more: bool
    """Whether there are versions after the last of these."""


class SpecAnswer(Message, kind="spec-answer.1"):
    task: str
    spec: dict[str, JsonValue]
    """The task as it was accepted, completed by defaults."""
    submission: str
    """Digest of the task as it was submitted (`SubmitTask.digest`)."""


KEPT_STEPS = 50
"""Latest steps of a task whose samples are kept."""
MAX_SAMPLE_BYTES = 256 * 1024
"""Maximum bytes of a step's samples in tokens; attempts that find no room are left out."""
SAMPLE_TOKEN_BYTES = 13
"""Bytes of a token: id, two log-probabilities, and whether it was sampled."""


class KeptAttempt(Value):
    """One attempt as it was trained."""

    group: int
    member: int
    version: int
    """Version of the policy that sampled it."""
    reward: float
    components: dict[str, float] = {}
    """The finite ones, the first 32 by name."""
    advantage: float
    """Of each of its sampled tokens."""
    finish: Literal["stop", "length"]
    """Whether the policy ended its last turn or the token limit did."""
    turns: int = Field(ge=0)
    """Turns that the policy took; after each but the last a tool or the environment has answered."""
    tokens: TokenRecord
    trainer_logprobs: bytes
    """Log-probabilities of the version before the step, at most 20 from the sampler's; 0 where not sampled. Shape: (T,) float32."""


class StepSamples(Message, kind="step-samples.1"):
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=1)
    """Version that the step made."""
    attempts: list[KeptAttempt]
    """The one with the highest reward, the one with the lowest, then others."""
    left_out: int = Field(default=0, ge=0)
    """Attempts that were chosen and found no room."""


class AskSamples(Message, kind="ask-samples.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    step: int | None = Field(default=None, ge=1, le=MAX_VERSION)
    """Version that the step made; None for the latest with samples."""


class SamplesAnswer(Message, kind="samples-answer.1"):
    task: str
    steps: list[int]
    """Steps with samples, ascending."""
    samples: StepSamples | None
    """None where no step has any."""
