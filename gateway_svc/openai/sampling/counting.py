"""Usage and finish reason, the same for streamed and whole answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel

from common.messages.serving import Finish, ServedDelta
from gateway_svc.serving.progress import Given

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass
class Counted(Given):
    """Token counts of one choice, and its end."""

    has_calls: bool = False
    fingerprint: str = ""
    finish: Finish | None = None

    @classmethod
    def of(cls, deltas: Iterable[ServedDelta]) -> Self:
        """Counts of a whole choice."""
        found = cls()
        for delta in deltas:
            found.add(delta)
        return found

    def add(self, delta: ServedDelta) -> None:
        super().add(delta)
        self.has_calls = self.has_calls or bool(delta.calls)
        self.fingerprint = self.fingerprint or delta.fingerprint
        self.finish = delta.finish or self.finish

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason in OpenAI's terms; None before the end. A reply that ends with a call finishes as `tool_calls`."""
        return "tool_calls" if self.finish == "stop" and self.has_calls else self.finish


class PromptDetails(BaseModel):
    cached_tokens: int


class UsageOf(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(choices: Iterable[Counted]) -> UsageOf:
    """Usage over all choices. Each choice is a separate request, so a prompt counts once a choice."""
    found = list(choices)
    prompt, sampled = sum(one.prompt or 0 for one in found), sum(one.sampled for one in found)
    details = PromptDetails(cached_tokens=sum(one.cached for one in found))
    return UsageOf(prompt_tokens=prompt, completion_tokens=sampled, total_tokens=prompt + sampled, prompt_tokens_details=details)


@dataclass(frozen=True)
class Head:
    """Values that every chunk of an answer repeats."""

    request: str
    """Id of the HTTP request."""
    created: int
    """Unix time."""
    model: str
    """Exact name of the model."""
