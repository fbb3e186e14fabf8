"""A model's answer in the playground, or why there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway_svc.openai.chat.answer import ChatAnswer, TokenLogprob
from gateway_svc.openai.errors import ErrorAnswer

MOST_TOKENS = 500
"""Maximum rows of a table of tokens."""


@dataclass(frozen=True)
class TokenRow:
    token: str
    share: float
    """Its probability, from 0 to 1."""
    others: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Answer:
    model: str
    """The exact one; as it was asked for where there is no answer."""
    text: str = ""
    reasoning: str = ""
    error: str = ""
    figures: str = ""
    tokens: Sequence[TokenRow] = ()
    left_out: int = 0
    """Tokens that the table leaves out."""


def failed_answer(model: str, status: int, content: bytes) -> Answer:
    return Answer(model, error=f"{status}: {ErrorAnswer.model_validate_json(content).error.message}")


def whole_answer(content: bytes) -> Answer:
    """`content`: the answer of the route of chat completions."""
    found = ChatAnswer.model_validate_json(content)
    choice, usage = found.choices[0], found.usage
    tokens = choice.logprobs.content if choice.logprobs is not None else []
    return Answer(
        model=found.model,
        text=choice.message.content or "",
        reasoning=choice.message.reasoning_content or "",
        figures=f"{usage.completion_tokens} tokens after {usage.prompt_tokens}; it ended by {choice.finish_reason}",
        tokens=[_row(token) for token in tokens[:MOST_TOKENS]],
        left_out=max(len(tokens) - MOST_TOKENS, 0),
    )


def _row(token: TokenLogprob) -> TokenRow:
    return TokenRow(token.token, math.exp(token.logprob), [(one.token, math.exp(one.logprob)) for one in token.top_logprobs])
