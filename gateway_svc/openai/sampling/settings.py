"""Sampling settings and tools of the inference APIs, and seeds of choices.

The number of tokens is a field of each request.
"""

import hashlib
import secrets
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from common.messages.serving import ServedSampling
from gateway_svc.openai.parsing import CONSTRAINED, HARMLESS, REFUSED, Strict, WholeRequest, not_honoured

MAX_CHOICES = 8
"""Maximum choices for one prompt."""
MAX_STOP_CHARS = 256
MAX_TOKEN_ID = 2**31 - 1
MAX_BIASES = 1024
SEEDS = 2**63
MAX_TOOLS = 128


def _as_list(value: JsonValue) -> JsonValue:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[Stop], BeforeValidator(_as_list), Field(max_length=4)]
"""One text, or a list of up to four."""
Bias = Annotated[float, Field(ge=-100, le=100)]


class SamplingFields(WholeRequest):
    """Sampling settings of an inference request."""

    harmless = HARMLESS
    refused = REFUSED

    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    """0 and -1 mean all tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    logit_bias: dict[str, Bias] = Field(default={}, max_length=MAX_BIASES)
    seed: int | None = Field(default=None, ge=0, lt=SEEDS)
    """None: a random seed per request."""
    stop: Stops = []

    @field_validator("logit_bias")
    @classmethod
    def _are_of_tokens(cls, biases: dict[str, float]) -> dict[str, float]:
        for token in biases:
            if not (token.isascii() and token.isdigit() and int(token) <= MAX_TOKEN_ID):
                raise ValueError(f"'{token[:20]}' is no token's id")
        return biases

    def settings(self, seed: int, max_tokens: int | None, top_logprobs: int | None) -> ServedSampling:
        """Settings for samplers. `top_logprobs`: alternatives per token; None: no log-probabilities."""
        return ServedSampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
            seed=seed,
            stop=self.stop,
            top_logprobs=top_logprobs,
        )

    @property
    def first_seed(self) -> int:
        return secrets.randbelow(SEEDS) if self.seed is None else self.seed


def seed_of_choice(seed: int, choice: int) -> int:
    """Seed of a choice. The first choice uses `seed` itself, so it does not depend on `n`; others are derived."""
    if choice == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{choice}".encode()).digest()[:8]) % SEEDS


def _is_loose(value: JsonValue) -> JsonValue:
    if value is True:
        raise not_honoured(CONSTRAINED)
    return value


def _is_free(value: JsonValue) -> JsonValue:
    if value not in ("auto", "none"):
        raise not_honoured(f"it is 'auto' or 'none'; for others, {CONSTRAINED}")
    return value


def _is_a_function(value: JsonValue) -> JsonValue:
    match value:
        case {"type": str(kind)} if kind != "function":
            raise not_honoured(f"tools of the type '{kind[:40]}' are not supported; describe functions, which the caller runs")
        case _:
            return value


NotStrict = Annotated[bool | None, BeforeValidator(_is_loose)]
ToolChoice = Annotated[Literal["auto", "none"], BeforeValidator(_is_free)]


class FunctionIn(Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    """JSON schema of the arguments; None: no arguments."""
    strict: NotStrict = None

    def for_template(self) -> dict[str, JsonValue]:
        shown: dict[str, JsonValue] = {"name": self.name}
        if self.description is not None:
            shown["description"] = self.description
        shown["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": shown}


class _ChatTool(Strict):
    type: Literal["function"]
    function: FunctionIn


class _ResponseTool(FunctionIn):
    type: Literal["function"]


ChatTool = Annotated[_ChatTool, BeforeValidator(_is_a_function)]
ResponseTool = Annotated[_ResponseTool, BeforeValidator(_is_a_function)]
"""In `/v1/responses` the function's fields are fields of the tool itself."""
