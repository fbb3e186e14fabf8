"""Deltas of made-up replies, and a source of them in place of samplers."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.messages.serving import Failure, Finish, ServedCall, ServedDelta, ServedToken, ServingEnded, TopToken
from common.messages.tenancy.access import Key
from gateway_svc.openai.sampling.choices import Choice, Target

FINGERPRINT = "vllm-0.32.0/tiny/0123456789ab"
HELLO: Any = [{"role": "user", "content": "Say hello."}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def token(text: str, top: int = 0) -> ServedToken:
    found = [TopToken(token=f"{text}{number}", logprob=-1.5 - number, bytes=[*f"{text}{number}".encode()]) for number in range(top)]
    return ServedToken(token=text, logprob=-math.log(2), bytes=[*text.encode()], top=found)


@dataclass(frozen=True)
class Part:
    """What one delta brings: `ids` tokens, with their text."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ServedCall] = ()
    ids: int = 1


WORDS = [Part("Hel"), Part("lo"), Part(" wörld 🙂", ids=2)]


def deltas(
    parts: Sequence[Part], finish: Finish | None = "stop", *, logprobs: int | None = None, prompt: int = 7, request: str = "r", **last: Any
) -> list[ServedDelta]:
    """One delta a part, then the last. `finish` None: the last one has a failure in `last`."""
    found = [
        ServedDelta(
            request=request,
            attempt=0,
            number=number,
            ids=np.arange(part.ids, dtype="<i4").tobytes(),
            text=part.text,
            reasoning=part.reasoning,
            calls=list(part.calls),
            tokens=[] if logprobs is None else [token(part.text, logprobs) for _ in range(part.ids)],
        )
        for number, part in enumerate(parts)
    ]
    end = {"finish": finish, "cached_tokens": 4} | last
    found.append(ServedDelta.model_validate({"request": request, "attempt": 0, "number": len(found), **end}))
    found[0] = found[0].model_copy(update={"prompt_tokens": prompt, "fingerprint": FINGERPRINT})
    return found


def call(number: int, name: str = "add", arguments: str = '{"a": 1}') -> ServedCall:
    return ServedCall(id=f"call_{number}", name=name, arguments=arguments)


def failing(failure: Failure, parts: Sequence[Part] = (), reason: str = "as the test wants it") -> list[ServedDelta]:
    return deltas(parts, None, failure=failure, reason=reason, cached_tokens=None)


@dataclass
class Source:
    """Samples what `reply` says for a choice; None: nothing at all, until it is closed."""

    reply: Callable[[Choice], list[ServedDelta] | None]
    hold_after: int | None = None
    """Deltas after which it waits until it is closed."""
    choices: list[tuple[str, Choice, Target]] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    """Requests that are not ended."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def sample(
        self, choice: Choice, target: Target, *, request: str, key: Key | None, held: list[ServingEnded] | None = None, asked_s: float = 0.0
    ) -> AsyncGenerator[ServedDelta]:
        self.choices.append((request, choice, target))
        self.open.add(request)
        self.begun.set()
        try:
            found = self.reply(choice)
            for number, delta in enumerate(found or []):
                if number == self.hold_after:
                    break
                yield delta
            if found is None or self.hold_after is not None:
                await asyncio.Event().wait()
        finally:
            self.open.discard(request)

    def book(self, ended: Sequence[ServingEnded]) -> None:
        """Nothing is booked here."""
