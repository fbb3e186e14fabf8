"""Serving: gateway → sampler, and tokens back; and the end of a request: gateway → scheduler, which books it.

`prompts.serve.<pool>.<shard>.<task>.<request>` is acknowledged when a replica takes it: the gateway owns retries, with the tokens so far.
Tokens come on NATS's core, `replies.<gateway>`; a gap in their numbers, or a silent replica, is an attempt that has failed. A request is
reported by the attempt that ends it, with what the user was given; attempts that failed before are in no report.
"""

from typing import Literal

from pydantic import Field, JsonValue, field_serializer

from common.messages.artifacts import AdapterRef
from common.messages.base import Message, Sentence, Value
from common.messages.tenancy.access import Key
from common.spec import TASK_ID_PATTERN, Name

REQUEST_PATTERN = r"^[a-z0-9]{1,63}$"
GATEWAY_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"
"""As the names of replicas."""
ALIVE_S = 0.5
"""Seconds between two signs of life of a replica for each gateway that it has requests of."""

Finish = Literal["stop", "length", "tool_calls"]
Failure = Literal["invalid", "context_length_exceeded", "version_unusable", "overdue", "engine_lost", "slow_reader", "internal"]
"""`invalid`: the chat template, or the engine, refuses the request. `overdue`: no token until `first_token_by_s`. `engine_lost`: no
replica completed it. `slow_reader`: the client left too much of it unread."""


class ServedCall(Value):
    """A call that the policy requests. `arguments`: JSON text, as sampled."""

    id: str
    name: str
    arguments: str


class ServedMessage(Value):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: list[ServedCall] = []
    """Of the assistant."""
    tool_call_id: str | None = None
    """Of a tool: the call that it answers."""


class ServedSampling(Value):
    """How to sample. The defaults change nothing of the model's distribution."""

    max_tokens: int | None = Field(default=None, ge=1)
    """None: as many as the context has room for."""
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    """0: the likeliest token each time."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: all tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10, allow_inf_nan=False)
    logit_bias: dict[int, float] = {}
    """Token id → addend of its logit, -100 to 100."""
    seed: int = Field(ge=0, lt=2**63)
    stop: list[str] = Field(default=[], max_length=4)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Alternatives per token; None: no log-probabilities at all."""

    @field_serializer("logit_bias")
    def _text_keys(self, value: dict[int, float]) -> dict[str, float]:
        """MessagePack and JSON have texts as keys."""
        return {str(token): bias for token, bias in value.items()}


class ServeRequest(Message, kind="serve-request.1"):
    """Sample one continuation. Exactly one of `messages`, `text` and `ids` is given."""

    request: str = Field(pattern=REQUEST_PATTERN)
    """Id made by the gateway; it is in every log line about the request."""
    attempt: int = Field(ge=0)
    gateway: str = Field(pattern=GATEWAY_PATTERN)
    """Replica whose subject the tokens go to."""
    tenant: str
    key: Key | None
    """Public key of the sender; None on a server without keys."""
    weight: float = Field(default=1.0, gt=0)
    """The tenant's, by which waiting requests are ordered."""
    pool: Name
    adapter: AdapterRef | None
    """None: the base model."""
    messages: list[ServedMessage] | None = None
    text: str | None = None
    """Prompt that no chat template is applied to."""
    ids: bytes | None = None
    """The same in tokens, control tokens included. Shape: (T,) int32."""
    tools: list[dict[str, JsonValue]] = []
    """For the chat template: `{"type": "function", "function": {"name": …, "parameters": …}}`. With any, calls are found in the text
    and leave it."""
    parallel_calls: bool = True
    """False: the reply ends with its first call."""
    template: dict[str, JsonValue] = {}
    """Variables of the chat template."""
    sampling: ServedSampling
    sampled: bytes = b""
    """Tokens that earlier attempts sampled, which are not sent again. Shape: (N,) int32."""
    first_token_by_s: float
    """Unix time on NATS's clock; a request that is taken later is not sampled."""


MIN_LOGPROB = -9999.0
"""Log-probability that stands for minus infinity, which JSON does not have."""


class TopToken(Value):
    token: str
    logprob: float
    bytes: list[int]


class ServedToken(Value):
    """One sampled token. `token` may be an incomplete character, whose bytes are in `bytes`."""

    token: str
    logprob: float
    """Of the distribution that was sampled: after penalties, temperature, top_p, top_k and min_p; at temperature 0, of the one at 1.
    MIN_LOGPROB where the token has no probability."""
    bytes: list[int]
    top: list[TopToken] = []


class ServedDelta(Value):
    """What one request got since its last delta."""

    request: str
    attempt: int
    number: int = Field(ge=0)
    """Counts an attempt's deltas, from 0."""
    ids: bytes = b""
    """Tokens sampled since, stop tokens and those of stop strings included. Shape: (T,) int32."""
    text: str = ""
    """Text that no later token and no stop string can change."""
    reasoning: str = ""
    """The same of what the model thinks, where the pool says how that is marked."""
    tokens: list[ServedToken] = []
    """Where log-probabilities were requested."""
    calls: list[ServedCall] = []
    """Complete calls; they come in the order of the text."""
    finish: Finish | None = None
    """Set in the last delta of an attempt that succeeded."""
    failure: Failure | None = None
    """Set in the last delta of an attempt that did not."""
    reason: Sentence = ""
    prompt_tokens: int | None = None
    """In the first delta of an attempt."""
    cached_tokens: int | None = None
    """Prompt tokens from the prefix cache; in the last delta."""
    fingerprint: str = ""
    """Engine, pool and digest of the adapter; in the first delta of an attempt."""


MAX_TEXT_TOKENS = 32_768


class TextsRequest(Message, kind="texts-request.1"):
    """Request for the texts of single tokens: the sampler alone has the tokenizer. On a subject of `serve`."""

    request: str = Field(pattern=REQUEST_PATTERN)
    gateway: str = Field(pattern=GATEWAY_PATTERN)
    pool: Name
    ids: bytes = Field(max_length=4 * MAX_TEXT_TOKENS)
    """Shape: (T,) int32."""
    answer_by_s: float
    """Unix time on NATS's clock; one that is taken later is not answered."""


class Opening(Value):
    """What the chat template writes before a message of a role, without the blanks at its end. It begins with a control token."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str


class TokenTexts(Value):
    request: str
    texts: list[bytes]
    """Bytes of each token, which may be a part of a character."""
    control: bytes
    """Shape: (T,) uint8, 1 where the token is a control token: text from outside never is."""
    openings: list[Opening]
    """Of the roles whose messages the template opens with a control token."""


class ServedAttempt(Value):
    request: str
    attempt: int


class Served(Message, kind="served.1"):
    """One flush of one replica for one gateway. Without deltas: the replica lives, and has taken these requests."""

    replica: str
    deltas: list[ServedDelta] = []
    alive: list[ServedAttempt] = []
    """Requests of the gateway that the replica has, every ALIVE_S."""
    texts: list[TokenTexts] = []
    """Answers to `TextsRequest`; those with ids that are no tokens of the model are not answered."""


class CancelServing(Message, kind="cancel-serving.1"):
    """End these requests of this gateway; unknown ones are no error."""

    gateway: str = Field(pattern=GATEWAY_PATTERN)
    requests: list[ServedAttempt]
    """Of each the attempt that is no longer wanted; earlier ones end too, later ones go on."""


MAX_TOKENS = 2**31 - 1


class ServingEnded(Message, kind="serving-ended.1"):
    """What a request was given, also where it was cut. Harmless when repeated: the first report of a request counts."""

    request: str = Field(pattern=r"^[a-z0-9]{1,63}$")
    """Id made by the gateway, unique for ever."""
    attempt: int = Field(ge=0, le=MAX_TOKENS)
    """The one that ended it."""
    tenant: Name
    """Who pays."""
    key: Key | None
    """Public key of the sender; None on a server without keys."""
    pool: Name
    task: str | None = Field(pattern=TASK_ID_PATTERN)
    """None, as `version`: the base model. The task may have ended, or be deleted."""
    version: int | None = Field(ge=0, le=MAX_TOKENS)
    prompt_tokens: int = Field(ge=0, le=MAX_TOKENS)
    cached_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Of the prompt, those that came from the prefix cache."""
    sampled_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Of all attempts together, as the user has them."""
