"""Shared accelerators: what is asked about them, and the job with which operators move a pool (docs/pools.md).

Verb of `ask.<tenant>.<verb>` → request → answer:

    executors  AskExecutors  ExecutorsAnswer  where each executor's state is, who computes and who waits
    slices     AskSlices     SlicesAnswer     slices, the newest first, a page at a time, with who paid for them
    moves      AskMoves      MovesAnswer      measured moves between tiers; for operators
    trace      AskTrace      TraceAnswer      steps of tasks, for a simulation or a plan; for operators
"""

from typing import Literal

from pydantic import Field

from common.accelerators import ExecutorState, Function, Tier
from common.messages.base import Message, Sentence, Value
from common.spec import TASK_ID_PATTERN, Name

MAX_SLICES = 200
"""Maximum slices of a page."""
MAX_STEPS = 500
"""Maximum steps of a page of a trace."""
PoolVerb = Literal["park", "drain", "wake", "release"]


class MovePool(Message, kind="move-pool.1"):
    """Park, wake or release executors of a pool. For operators. Harmless when repeated. The answer is the event `pool`."""

    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    pool: Name
    verb: PoolVerb
    """`park`: no slice until `wake` or `release`, and the present one ends now; `drain`: the same once what runs has ended; `wake`: the
    next slice; `release`: as the scheduler decides."""
    service: Literal["rollout", "trainer"] | None = None
    """None: its samplers and its trainers."""
    accelerator: Name | None = None
    """None: on every accelerator."""
    tier: Tier | None = None
    """Of `wake`: what is awake then is parked in this tier and woken once more, also if it was awake before, so that both moves are
    measured. None: woken alone."""


class AskExecutors(Message, kind="ask-executors.1"):
    pool: Name | None = None
    """None: of all pools."""


class ExecutorOf(Value):
    """A sampler or trainer on a shared accelerator. Times are Unix times on NATS's clock."""

    accelerator: str
    executor: str
    pool: str
    service: Literal["rollout", "trainer"]
    state: ExecutorState
    tier: Tier
    held: Literal["park", "drain", "wake"] | None = None
    """What an operator has ordered."""
    is_holder: bool
    """Whether the present slice is its own."""
    since_s: float | None
    """Since when it has been in its state; None before it ever reported."""
    waiting_since_s: float | None
    """Since when work has waited for it to wake; None while it has none, or is awake."""
    wake_s: float | None
    """Seconds that waking it is expected to take."""
    is_measured: bool
    """Whether that is the median of measured moves, and not an estimate from bytes."""
    switch_share: float | None
    """Share of its slices of the last hour that went into switches; None without any."""
    parked_s: float
    """Seconds for which its pool's clock has stood, in all."""
    deepest: Tier | None = None
    """Deepest tier in which it may be parked; None where its pool is not deployed any more."""
    device_bytes: int = 0
    """Bytes that it needs awake; for operators, as the next three."""
    host_bytes: int = 0
    fault: Sentence | None = None
    """Why it could not wake."""
    retry_s: float | None = None
    """When it may be woken next; None without a fault, and of one that never fits."""


class ExecutorsAnswer(Message, kind="executors-answer.1"):
    executors: list[ExecutorOf]
    """By accelerator and name."""


class AskSlices(Message, kind="ask-slices.1"):
    since_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Unix time; slices that were ordered before it are left out."""
    before: int | None = Field(default=None, ge=1, lt=2**31)
    """`number` of the last slice of the page before; None for the first."""
    accelerator: Name | None = None
    most: int = Field(default=MAX_SLICES, ge=1, le=MAX_SLICES)


class ShareOf(Value):
    task: str
    ms: int


class SliceOf(Value):
    """An executor's time on an accelerator. A tenant sees those that served its tasks."""

    number: int
    accelerator: str
    epoch: int
    executor: str
    pool: str
    function: Function
    reason: str
    from_tier: Tier
    to_tier: Tier | None
    ordered_s: float
    awake_s: float | None
    asked_s: float | None
    """When its executor was ordered to park."""
    ended_s: float | None
    ended: str | None
    expected_s: float
    """Of the switch, when it was ordered."""
    switch_ms: int | None
    """None, as the next two, until it is booked."""
    busy_ms: int | None
    idle_ms: int | None
    shares: list[ShareOf]
    """Milliseconds by task; a tenant sees its own. An empty name: that nobody pays."""
    score_ms: int | None = None
    """Of `busy_ms`, those of the function `score`: a trainer's forward passes without a gradient. None until it is booked, and of slices
    of before they were measured."""


class SlicesAnswer(Message, kind="slices-answer.1"):
    slices: list[SliceOf]
    """The newest first."""
    before: int | None
    """For the next page; None on the last."""


class AskMoves(Message, kind="ask-moves.1"):
    pass


class MoveOf(Value):
    """Measured moves of an executor between two tiers, the newest 100."""

    accelerator: str
    executor: str
    from_tier: Tier
    to_tier: Tier
    n: int
    p50_s: float
    p90_s: float
    bytes_per_s: float | None
    latest_s: float


class MovesAnswer(Message, kind="moves-answer.1"):
    moves: list[MoveOf]


class AskTrace(Message, kind="ask-trace.1"):
    cursor: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """`cursor` of the page before; None for the first."""
    since_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Unix time; tasks whose steps all ended before it are left out."""


class StepPhases(Value):
    """A trained step: seconds of the accelerator by function, and those in which the task needed none.

    Trajectories of a step run concurrently: what one is sampled while another is with its environment is time of the accelerator.
    """

    version: int
    at_s: float
    """When its first group was admitted."""
    generate_s: float
    environment_s: float
    train_s: float
    """Without `score_s`."""
    turns: int = Field(default=1, ge=1)
    """Times that the task leaves the sampler, with all its trajectories, and comes back."""
    score_s: float = 0.0
    """Of its forward passes without a gradient; 0 where they were not measured."""


class TracedTask(Value):
    task: str
    tenant: str
    pool: str
    weight: float
    at_s: float
    """When it was submitted."""
    steps: list[StepPhases]


class TraceAnswer(Message, kind="trace-answer.1"):
    tasks: list[TracedTask]
    cursor: str | None
    """For the next page; None on the last."""
