"""Usage and the reason of an end, the same for streamed and whole answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from common.messages.serving import Finish, ServedDelta

ID_BYTES = 4
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass
class Counted:
    """Tokens of one choice, as its deltas say."""

    prompt: int = 0
    cached: int = 0
    sampled: int = 0
    has_calls: bool = False
    fingerprint: str = ""
    finish: Finish | None = None

    def add(self, delta: ServedDelta) -> None:
        """Of a second attempt the prompt is the same, and counts once."""
        self.prompt = self.prompt or delta.prompt_tokens or 0
        self.cached = delta.cached_tokens if delta.cached_tokens is not None else self.cached
        self.sampled += len(delta.ids) // ID_BYTES
        self.has_calls = self.has_calls or bool(delta.calls)
        self.fingerprint = self.fingerprint or delta.fingerprint
        self.finish = delta.finish or self.finish

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end. A reply that ends with a call ends because of it."""
        return "tool_calls" if self.finish == "stop" and self.has_calls else self.finish


class PromptDetails(BaseModel):
    cached_tokens: int


class UsageOf(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(choices: Iterable[Counted]) -> UsageOf:
    """Each choice is a request of its own, whose prompt counts."""
    found = list(choices)
    prompt, sampled = sum(one.prompt for one in found), sum(one.sampled for one in found)
    details = PromptDetails(cached_tokens=sum(one.cached for one in found))
    return UsageOf(prompt_tokens=prompt, completion_tokens=sampled, total_tokens=prompt + sampled, prompt_tokens_details=details)


@dataclass(frozen=True)
class Head:
    """What every chunk of an answer repeats."""

    request: str
    """Id of the HTTP request."""
    created: int
    """Unix time."""
    model: str
    """Exact name."""
