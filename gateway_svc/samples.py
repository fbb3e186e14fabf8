"""Samples of a step as messages and tokens: the scheduler's data joined with token texts from a replica. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from common.messages import KeptAttempt, Opening, SamplesAnswer, TokenTexts
from common.tool_calls import ToolCall, find_calls

PROMPT = "prompt"
"""Role of a message for which the chat template has no name."""
ASSISTANT = "assistant"


@dataclass(frozen=True)
class Token:
    id: int
    data: bytes | None
    """Bytes of its text, perhaps part of a character; None if no replica provided texts."""
    is_sampled: bool
    is_control: bool
    sampler: float | None
    """Log-probability; None if the token was not sampled or the value is not finite."""
    trainer: float | None

    @property
    def text(self) -> str | None:
        """Text of the token; bytes of an incomplete character are escaped, as `\\xe2`."""
        return joined([self])

    @property
    def difference(self) -> float | None:
        """The sampler's log-probability minus the trainer's."""
        return None if self.sampler is None or self.trainer is None else self.sampler - self.trainer


@dataclass(frozen=True)
class Said:
    """One message of a conversation with its tokens in order, template tokens included."""

    role: str
    tokens: Sequence[Token]

    @property
    def text(self) -> str | None:
        return joined(self.tokens)

    @property
    def calls(self) -> list["Call"]:
        """Tool calls of the policy, parsed without the schemas of its tools."""
        sampled = joined([token for token in self.tokens if token.is_sampled])
        return [_call(one) for one in find_calls(sampled, {})] if sampled and self.role == ASSISTANT else []


class Call(BaseModel):
    name: str = Field(description="Empty for a call that is malformed.")
    arguments: dict[str, JsonValue] = {}
    complaint: str = Field(default="", description="Error of a malformed call.")


class SampledMessage(BaseModel):
    role: str = Field(description="`system`, `user`, `assistant` or `tool`; `prompt` where the chat template does not say.")
    first: int = Field(description="Its first token.")
    count: int = Field(description="Its number of tokens.")
    text: str | None = Field(description="Null without texts of tokens.")
    calls: list[Call]


class SampledTokens(BaseModel):
    """Token data of an attempt; every list has one entry per token."""

    ids: list[int]
    texts: list[str] | None = Field(description="Null where no live replica of the pool serves. An incomplete character is escaped.")
    sampled: list[bool]
    sampler_logprobs: list[float | None] = Field(description="Null where the token was not sampled.")
    trainer_logprobs: list[float | None] = Field(description="Of the version before the step.")


class Attempt(BaseModel):
    """One attempt as used in training."""

    group: int
    member: int
    version: int = Field(description="Version that sampled it.")
    reward: float
    components: dict[str, float]
    advantage: float
    finish: str = Field(description="`stop` or `length`.")
    turns: int
    messages: list[SampledMessage]
    tokens: SampledTokens


class Samples(BaseModel):
    """Stored attempts of one step."""

    task: str
    tenant: str | None = Field(description="Null, as `pool` is, where no step has samples.")
    pool: str | None
    steps: list[int] = Field(description="Steps with samples, of the last 50.")
    step: int | None = Field(description="Version that the step made; null where no step has samples.")
    left_out: int = Field(description="Attempts that found no room.")
    data: list[Attempt] = Field(description="The best, the worst, then others.")


def samples_of(answer: SamplesAnswer, texts: TokenTexts | None) -> Samples:
    found = answer.samples
    if found is None:
        return Samples(task=answer.task, tenant=None, pool=None, steps=answer.steps, step=None, left_out=0, data=[])
    attempts = [
        _attempt(attempt, tokens, texts.openings if texts else ())
        for attempt, tokens in zip(found.attempts, tokens_of(found.attempts, texts), strict=True)
    ]
    return Samples(
        task=answer.task,
        tenant=found.tenant,
        pool=found.pool,
        steps=answer.steps,
        step=found.version,
        left_out=found.left_out,
        data=attempts,
    )


def all_ids(answer: SamplesAnswer) -> bytes:
    """Token ids of all attempts, concatenated."""
    return b"".join(attempt.tokens.ids for attempt in answer.samples.attempts) if answer.samples else b""


def tokens_of(attempts: Sequence[KeptAttempt], texts: TokenTexts | None) -> list[list[Token]]:
    """Tokens of each attempt. `texts`: texts of all their tokens, concatenated."""
    found, start = list[list[Token]](), 0
    for attempt in attempts:
        end = start + len(attempt.tokens)
        found.append(_tokens(attempt, texts.texts[start:end] if texts else None, texts.control[start:end] if texts else b""))
        start = end
    return found


def messages_of(tokens: Sequence[Token], openings: Sequence[Opening]) -> list[Said]:
    """Split tokens into messages. Without openings, each run of sampled or of other tokens is a message.

    A message begins at a control token that was not sampled, so neither the policy's text nor a tool's can pretend to be another message.
    """
    begins = _openings_in(tokens, openings) if openings else _runs(tokens)
    if tokens and 0 not in begins:
        begins = {0: ASSISTANT if tokens[0].is_sampled else PROMPT, **begins}
    places = [*sorted(begins), len(tokens)]
    return [Said(begins[start], tokens[start:end]) for start, end in pairwise(places)]


def joined(tokens: Sequence[Token]) -> str | None:
    """Concatenated text of tokens; None if a token has no text."""
    parts = [token.data for token in tokens if token.data is not None]
    return b"".join(parts).decode("utf-8", "backslashreplace") if len(parts) == len(tokens) else None


def _openings_in(tokens: Sequence[Token], openings: Sequence[Opening]) -> dict[int, str]:
    longest_first = sorted(openings, key=lambda opening: -len(opening.text))
    found, chars = dict[int, str](), len(longest_first[0].text)
    for place, token in enumerate(tokens):
        if token.is_control and not token.is_sampled:
            text = _beginning(tokens[place : place + chars], chars)
            role = next((opening.role for opening in longest_first if text.startswith(opening.text)), None)
            if role is not None:
                found[place] = role
    return found


def _beginning(tokens: Sequence[Token], chars: int) -> str:
    """Text at the start of `tokens`, of at least `chars` characters if there are as many."""
    text = ""
    for token in tokens:
        if len(text) >= chars:
            break
        text += token.text or ""
    return text


def _runs(tokens: Sequence[Token]) -> dict[int, str]:
    changes = (place for place, token in enumerate(tokens) if place == 0 or token.is_sampled != tokens[place - 1].is_sampled)
    return {place: ASSISTANT if tokens[place].is_sampled else PROMPT for place in changes}


def _tokens(attempt: KeptAttempt, texts: Sequence[bytes] | None, control: bytes) -> list[Token]:
    record = attempt.tokens
    sampler_T, trainer_T = record.logprobs_T(), np.frombuffer(attempt.trainer_logprobs, "<f4")
    sampled_T = record.sampled_T().astype(bool)
    return [
        Token(
            id=int(token),
            data=texts[place] if texts is not None else None,
            is_sampled=bool(sampled_T[place]),
            is_control=bool(control[place]) if control else False,
            sampler=_number(sampler_T[place]) if sampled_T[place] else None,
            trainer=_number(trainer_T[place]) if sampled_T[place] else None,
        )
        for place, token in enumerate(record.ids_T())
    ]


def _number(value: np.float32) -> float | None:
    """The value; None if it is not finite, which JSON cannot represent."""
    return float(value) if np.isfinite(value) else None


def _attempt(attempt: KeptAttempt, tokens: Sequence[Token], openings: Sequence[Opening]) -> Attempt:
    messages, first = list[SampledMessage](), 0
    for said in messages_of(tokens, openings):
        messages.append(SampledMessage(role=said.role, first=first, count=len(said.tokens), text=said.text, calls=said.calls))
        first += len(said.tokens)
    same = attempt.model_dump(include={"group", "member", "version", "reward", "components", "advantage", "finish", "turns"})
    texts = [token.text for token in tokens if token.text is not None]
    return Attempt(
        **same,
        messages=messages,
        tokens=SampledTokens(
            ids=[token.id for token in tokens],
            texts=texts if len(texts) == len(tokens) else None,
            sampled=[token.is_sampled for token in tokens],
            sampler_logprobs=[token.sampler for token in tokens],
            trainer_logprobs=[token.trainer for token in tokens],
        ),
    )


def _call(found: object) -> Call:
    if isinstance(found, ToolCall):
        return Call(name=found.name, arguments=found.arguments)
    return Call(name="", complaint=str(getattr(found, "complaint", "")))
