"""Samples: whole attempts of a step, kept for people to look at. Trainer → stream, and from there to who asks."""

from typing import Literal

from pydantic import Field

from common.messages.artifacts import TokenRecord
from common.messages.asks import MAX_VERSION
from common.messages.base import Message, Value
from common.spec import TASK_ID_PATTERN

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
