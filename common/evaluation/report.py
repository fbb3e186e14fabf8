"""The data of an `evaluation` event: what one protocol found about one version."""

import hashlib
import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import isnan, nan
from sys import byteorder
from typing import Literal, Self

from pydantic import JsonValue

from common.evaluation.intervals import Difference, Estimate
from common.messages import Event, from_json
from common.messages.base import Value
from common.spec import MAIN_PROTOCOL, Protocol, TaskSpec

Interval = tuple[float, float]


class Uncertainty(Value):
    """Of a mean over prompts. None where too few of them were scored."""

    standard_error: float | None
    interval: Interval | None

    @classmethod
    def of(cls, estimate: Estimate) -> "Uncertainty":
        return Uncertainty(standard_error=estimate.standard_error, interval=estimate.interval)


class Gain(Value):
    """Paired difference to version 0, at the prompts that both have scored attempts at."""

    reward: float
    standard_error: float | None
    interval: Interval | None
    prompts: int

    @classmethod
    def of(cls, found: Difference) -> "Gain":
        return Gain(reward=found.mean, standard_error=found.standard_error, interval=found.interval, prompts=found.prompts)


class Asked(Value):
    """The parts of a task that must be equal for two results to be about the same prompts, rewards and sampling."""

    environment: str
    options: str
    """Digest of the environment's options."""
    weights: str
    """Digest of the weights of the reward's components."""
    seed: int
    temperature: float

    @classmethod
    def by(cls, spec: TaskSpec, protocol: Protocol) -> "Asked":
        environment = spec.environment_of(protocol)
        return Asked(
            environment=environment.name,
            options=_digest(environment.options),
            weights=_digest(environment.weights),
            seed=protocol.seed,
            temperature=protocol.temperature,
        )


class EvaluationReport(Value):
    """Result of one version by one protocol."""

    version: int
    protocol: str = MAIN_PROTOCOL
    decides_by: Literal["lower_bound", "mean"] | None = None
    """Value by which the task's versions are judged; None for protocols that do not decide."""
    reward: float | None
    """Mean over the scored attempts; None when every attempt failed."""
    standard_error: float | None = None
    interval: Interval | None = None
    pass_at: dict[str, float] = {}
    pass_at_1: Uncertainty | None = None
    gain: Gain | None = None
    """None for version 0, and as long as it has no result."""
    best_version: int | None = None
    """With `stop.patience`: the version that a later one must gain over."""
    without_gain: int | None = None
    """With `stop.patience`: evaluations since that one."""
    prompts: int = 0
    failed_share: float = 0.0
    failure: str = ""
    response_length: float | None = None
    truncated_share: float | None = None
    took_s: float = 0.0
    attempts: int = 1
    """Attempts that were asked for at each prompt."""
    binary: bool = False
    """Whether every reward is 0 or 1."""
    asked: Asked
    by_prompt: str
    """Mean reward at each prompt, NaN where none was scored: little-endian float32, base64."""

    @classmethod
    def in_event(cls, event: Event) -> Self | None:
        """None for other events."""
        return from_json(cls, event.data) if event.event == "evaluation" else None

    def rewards_by_prompt(self) -> dict[int, float]:
        """Prompt → mean reward; without prompts that have no scored attempt."""
        return unpacked(self.by_prompt)


def packed(by_prompt: Mapping[int, float], prompts: int) -> str:
    """Base64 text of one float32 a prompt."""
    values = array("f", [by_prompt.get(prompt, nan) for prompt in range(prompts)])
    if byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode()


def unpacked(text: str) -> dict[int, float]:
    """Inverse of `packed`."""
    values = array("f")
    values.frombytes(b64decode(text))
    if byteorder == "big":
        values.byteswap()
    return {prompt: value for prompt, value in enumerate(values) if not isnan(value)}


def _digest(value: Mapping[str, JsonValue] | Mapping[str, float]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
