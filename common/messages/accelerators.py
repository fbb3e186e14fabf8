"""Shared accelerators: questions about them, and the job with which operators move a pool (docs/pools.md).

Verb of `ask.<tenant>.<verb>` → request → answer:

    executors  AskExecutors  ExecutorsAnswer  tier of each executor's state, which computes and which wait
    slices     AskSlices     SlicesAnswer     slices, newest first, paginated, with the tasks charged for them
    moves      AskMoves      MovesAnswer      measured moves between tiers; for operators
    trace      AskTrace      TraceAnswer      steps of tasks, for a simulation or a plan; for operators
"""

from typing import Literal

from pydantic import Field

from common.accelerators import ExecutorState, Function, Tier
from common.messages.base import Message, Sentence, Value
from common.spec import TASK_ID_PATTERN, Name

MAX_SLICES = 200
"""Maximum slices per page."""
MAX_STEPS = 500
"""Maximum steps per page of a trace."""
PoolVerb = Literal["park", "drain", "wake", "release"]


class MovePool(Message, kind="move-pool.1"):
    """Park, wake or release executors of a pool. For operators. Idempotent. The answer is the event `pool`."""

    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the sender, repeated in the answer."""
    pool: Name
    verb: PoolVerb
    """`park`: no slice until `wake` or `release`, and the current one ends now; `drain`: the same after running operations have ended;
    `wake`: gets the next slice; `release`: returns to the scheduler's decisions.
    """
    service: Literal["rollout", "trainer"] | None = None
    """None: its samplers and its trainers."""
    accelerator: Name | None = None
    """None: on every accelerator."""
    tier: Tier | None = None
    """For `wake`: tier whose moves are measured. Each executor, once awake, is parked in this tier and woken once more. None: only wake."""


class AskExecutors(Message, kind="ask-executors.1"):
    pool: Name | None = None
    """None: executors of all pools."""


class ExecutorOf(Value):
    """A sampler or trainer on a shared accelerator. Times are Unix times on NATS's clock."""

    accelerator: str
    executor: str
    pool: str
    service: Literal["rollout", "trainer"]
    state: ExecutorState
    tier: Tier
    held: Literal["park", "drain", "wake"] | None = None
    """An operator's current order; None without one."""
    is_holder: bool
    """Whether the current slice is its own."""
    since_s: float | None
    """When it entered its state; None before its first report."""
    waiting_since_s: float | None
    """Time since when work has waited for it to wake; None if it has none, or is awake."""
    wake_s: float | None
    """Expected seconds of waking it; None if it is awake, or can never fit."""
    is_measured: bool
    """Whether `wake_s` is the median of measured moves, instead of an estimate from bytes."""
    switch_share: float | None
    """Fraction of its slices of the last hour spent on switches; None without slices."""
    parked_s: float
    """Total seconds for which its pool's clock was stopped."""
    deepest: Tier | None = None
    """Deepest tier in which it may be parked; None if its pool is no longer deployed."""
    device_bytes: int = 0
    """Bytes needed on the device while awake; for operators only, as are the next three fields."""
    host_bytes: int = 0
    fault: Sentence | None = None
    """Reason why it could not wake."""
    retry_s: float | None = None
    """Earliest time of the next wake; None without a fault, and if it can never fit."""


class ExecutorsAnswer(Message, kind="executors-answer.1"):
    executors: list[ExecutorOf]
    """Executors by accelerator and name."""


class AskSlices(Message, kind="ask-slices.1"):
    since_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Unix time; slices ordered before it are omitted."""
    before: int | None = Field(default=None, ge=1, lt=2**31)
    """`number` of the last slice of the previous page; None for the first page."""
    accelerator: Name | None = None
    most: int = Field(default=MAX_SLICES, ge=1, le=MAX_SLICES)


class ShareOf(Value):
    task: str
    ms: int


class SliceOf(Value):
    """An executor's time on an accelerator. A tenant sees slices that served its tasks."""

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
    """Expected seconds of the switch, when it was ordered."""
    switch_ms: int | None
    """Milliseconds of the switch; None, like the next two, until the slice is booked."""
    busy_ms: int | None
    idle_ms: int | None
    shares: list[ShareOf]
    """Milliseconds by task; a tenant sees its own. An empty name: time charged to no task."""
    score_ms: int | None = None
    """Part of `busy_ms` in the function `score`: a trainer's forward passes without a gradient. None until the slice is booked, and for
    slices from before this was measured.
    """


class SlicesAnswer(Message, kind="slices-answer.1"):
    slices: list[SliceOf]
    """Slices, newest first."""
    before: int | None
    """`before` for the next page; None on the last."""


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
    """`cursor` of the previous page; None for the first page."""
    since_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Unix time; tasks whose steps all ended before it are omitted."""


class StepPhases(Value):
    """A trained step: seconds of the accelerator by function, and seconds in which the task needed no accelerator.

    Trajectories of a step run concurrently: time in which one is sampled while another is in its environment counts as accelerator time.
    """

    version: int
    at_s: float
    """When its first group was admitted."""
    generate_s: float
    environment_s: float
    train_s: float
    """Seconds of training, without `score_s`."""
    turns: int = Field(default=1, ge=1)
    """Number of times that the task, with all its trajectories, leaves the sampler and returns."""
    score_s: float = 0.0
    """Seconds of its forward passes without a gradient; 0 if they were not measured."""


class TracedTask(Value):
    task: str
    tenant: str
    pool: str
    weight: float
    at_s: float
    """When the task was submitted."""
    steps: list[StepPhases]


class TraceAnswer(Message, kind="trace-answer.1"):
    tasks: list[TracedTask]
    cursor: str | None
    """Cursor for the next page; None on the last."""
