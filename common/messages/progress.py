"""Questions about the progress of one task: its spec, steps, evaluations, versions and samples (`verbs.py`).

Samples are complete attempts of a step, kept for people to read: the trainer stores them in a stream, from which they are fetched.
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
    """Latest version that the client has; steps that made later versions follow."""
    every: int = Field(default=1, ge=1, le=MAX_VERSION)
    """Thins a long task for a plot: only steps whose version is divisible by this, the first and the last trained one."""


class AskVersions(Message, kind="ask-versions.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    after: int = Field(default=0, ge=0, le=MAX_VERSION)
    """Latest version that the client has."""


class AskEvaluations(Message, kind="ask-evaluations.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int = Field(default=0, ge=0, le=MAX_VERSION)
    """With `protocol`: version of the last evaluation that the client has."""
    protocol: str | None = Field(default=None, pattern=NAME_PATTERN)
    """None: the answer starts with the evaluations of `version` by all protocols."""


class AskTimeline(Message, kind="ask-timeline.1"):
    """Times of tasks, newest task first."""

    cursor: str | None = Field(default=None, max_length=128, pattern=TIMELINE_CURSOR)
    """`cursor` of the previous page; None for the first page."""
    steps: int = Field(default=1000, ge=1, le=1000)
    """Maximum steps per task, the latest ones."""


class TaskTimes(Value):
    task: str
    steps: bytes
    """Records of 32 bytes by version (`common/formats/step_times.py`); empty for a task without steps."""


class TimelineAnswer(Message, kind="timeline-answer.1"):
    tasks: list[TaskTimes]
    cursor: str | None
    """Cursor for the next page; None on the last."""


class StepTimes(Value):
    """Unix times of a step. Those of the trainer are by its own clock."""

    first_admitted_s: float
    first_sampled_s: float
    last_sampled_s: float
    batched_s: float
    started_s: float | None
    """Start of the trainer's work; None, like the next two, until the step is trained."""
    trained_s: float | None
    """End of the trainer's work."""
    advanced_s: float | None
    """When the scheduler stored the new version."""


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
    """Version after the step."""
    state: str
    """`batched`: sent to the trainer; or `trained`."""
    reward: float
    """Mean over the batch."""
    staleness_mean: float
    staleness_max: int
    sampled_tokens: int
    total_sampled_tokens: int | None = None
    """Tokens of this and all earlier steps; None in answers that are not thinned (`AskSteps.every`)."""
    trained_tokens: int | None
    """None until it is trained."""
    groups: list[int]
    """Numbers of the groups in its batch."""
    metrics: dict[str, float]
    """The trainer's metrics by name, see docs/algorithms.md; empty until the step is trained."""
    times: StepTimes
    durations: StepDurations


class StepsAnswer(Message, kind="steps-answer.1"):
    steps: list[StepOf]
    """Steps by version."""
    has_more: bool
    """Whether there are steps after the last one here."""


class EvaluationOf(Value):
    """A finished evaluation of one version by one protocol."""

    version: int
    protocol: str
    finished_s: float
    is_best: bool
    """Whether this is the task's best version (`VersionsAnswer.best`), by the deciding protocol."""
    report: dict[str, JsonValue]
    """As in the event `evaluation`."""


class EvaluationsAnswer(Message, kind="evaluations-answer.1"):
    evaluations: list[EvaluationOf]
    """Evaluations by version and protocol."""
    has_more: bool
    """Whether there are evaluations after the last one here."""


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
    """Mean over the batch that produced the version."""
    is_best: bool
    is_latest: bool


class VersionsAnswer(Message, kind="versions-answer.1"):
    versions: list[VersionOf]
    """Versions, ascending; the base model, version 0, is not among them."""
    best: int | None
    """The stored version with the best evaluation, by the rules of `keep.best`; without evaluations, the one with the highest reward of the
    last 5 steps. Ties: the earlier version.
    """
    latest: int | None
    """Latest version; None before the first step, or if its adapter was deleted with the data of an ended task."""
    has_more: bool
    """Whether there are versions after the last one here."""


class SpecAnswer(Message, kind="spec-answer.1"):
    task: str
    spec: dict[str, JsonValue]
    """The task as accepted, with defaults filled in."""
    submission: str
    """Digest of the task as it was submitted (`SubmitTask.digest`)."""


KEPT_STEPS = 50
"""Number of a task's latest steps whose samples are kept."""
MAX_SAMPLE_BYTES = 256 * 1024
"""Maximum bytes of the tokens of a step's samples; attempts beyond it are omitted."""
SAMPLE_TOKEN_BYTES = 13
"""Bytes per token: id, two log-probabilities, and whether it was sampled."""


class KeptAttempt(Value):
    """One attempt as it was trained."""

    group: int
    member: int
    version: int
    """Version of the policy that sampled it."""
    reward: float
    components: dict[str, float] = {}
    """Finite components of the reward, the first 32 by name."""
    advantage: float
    """Advantage of each of its sampled tokens."""
    finish: Literal["stop", "length"]
    """Whether the policy ended its last turn or the token limit did."""
    turns: int = Field(ge=0)
    """Number of the policy's turns; a tool or the environment answers each but the last."""
    tokens: TokenRecord
    trainer_logprobs: bytes
    """Log-probabilities under the version before the step, at most 20 from the sampler's; 0 if not sampled. Shape: (T,) float32."""


class StepSamples(Message, kind="step-samples.1"):
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=1)
    """Version that the step made."""
    attempts: list[KeptAttempt]
    """The attempts with the highest and the lowest reward, then others."""
    left_out: int = Field(default=0, ge=0)
    """Number of selected attempts omitted for lack of space."""


class AskSamples(Message, kind="ask-samples.1"):
    task: str = Field(pattern=TASK_ID_PATTERN)
    step: int | None = Field(default=None, ge=1, le=MAX_VERSION)
    """Version that the step made; None for the latest step with samples."""


class SamplesAnswer(Message, kind="samples-answer.1"):
    task: str
    steps: list[int]
    """Steps with samples, ascending."""
    samples: StepSamples | None
    """None if no step has samples."""
