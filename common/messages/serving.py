"""Serving: requests from gateway to sampler, tokens back; and the end of a request, from gateway to scheduler, for billing.

`prompts.serve.<pool>.<shard>.<task>.<request>` is acknowledged when a replica accepts it: the gateway owns retries, with the tokens so far.
Tokens arrive by core NATS on `replies.<gateway>`; a gap in their numbers, or a silent replica, counts as a failed attempt. Only the
attempt that ends a request reports it, with the tokens delivered to the user; earlier failed attempts are not reported.
"""

from typing import Literal

from pydantic import Field, JsonValue, field_serializer

from common.messages.artifacts import AdapterRef
from common.messages.base import Message, Sentence, Value
from common.messages.tenancy.access import Key
from common.spec import TASK_ID_PATTERN, Name

REQUEST_PATTERN = r"^[a-z0-9]{1,63}$"
GATEWAY_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"
"""Pattern of gateways' names, as of other replicas."""
ALIVE_S = 0.5
"""Seconds between two heartbeats of a replica to each gateway whose requests it has."""

Finish = Literal["stop", "length", "tool_calls"]
Failure = Literal["invalid", "context_length_exceeded", "version_unusable", "overdue", "engine_lost", "slow_reader", "internal"]
"""`invalid`: the chat template, or the engine, refuses the request. `overdue`: no token until `first_token_by_s`. `engine_lost`: no
replica completed it. `slow_reader`: the client left too much unread.
"""


class ServedCall(Value):
    """A tool call sampled by the policy. `arguments`: JSON text, as sampled."""

    id: str
    name: str
    arguments: str


class ServedMessage(Value):
    """One message of a conversation, in the format of chat templates."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: list[ServedCall] = []
    """Calls made by the assistant."""
    tool_call_id: str | None = None
    """For a tool's message: id of the call that it answers."""


class ServedSampling(Value):
    """Sampling parameters. The defaults leave the model's distribution unchanged."""

    max_tokens: int | None = Field(default=None, ge=1)
    """None: up to the context's limit."""
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    """0: greedy decoding."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: all tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10, allow_inf_nan=False)
    logit_bias: dict[int, float] = {}
    """Bias added to a token's logit, -100 to 100, by token id."""
    seed: int = Field(ge=0, lt=2**63)
    stop: list[str] = Field(default=[], max_length=4)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Alternatives per token; None: no log-probabilities."""

    @field_serializer("logit_bias")
    def _text_keys(self, value: dict[int, float]) -> dict[str, float]:
        """MessagePack and JSON require texts as keys."""
        return {str(token): bias for token, bias in value.items()}


class ServeRequest(Message, kind="serve-request.1"):
    """Sample one continuation. Exactly one of `messages`, `text` and `ids` is given."""

    request: str = Field(pattern=REQUEST_PATTERN)
    """Id chosen by the gateway; part of every log line about the request."""
    attempt: int = Field(ge=0)
    gateway: str = Field(pattern=GATEWAY_PATTERN)
    """Gateway replica to whose subject the tokens are sent."""
    tenant: str
    key: Key | None
    """Public key of the sender; None on a server without keys."""
    weight: float = Field(default=1.0, gt=0)
    """The tenant's weight, by which waiting requests are ordered."""
    pool: Name
    adapter: AdapterRef | None
    """None: the base model."""
    messages: list[ServedMessage] | None = None
    text: str | None = None
    """Prompt to which no chat template is applied."""
    ids: bytes | None = None
    """Prompt as tokens, control tokens included. Shape: (T,) int32."""
    tools: list[dict[str, JsonValue]] = []
    """For the chat template: `{"type": "function", "function": {"name": …, "parameters": …}}`. If there are any, calls are parsed from the
    reply and removed from its text.
    """
    parallel_calls: bool = True
    """False: the reply ends after its first call."""
    template: dict[str, JsonValue] = {}
    """Variables of the chat template."""
    sampling: ServedSampling
    sampled: bytes = b""
    """Tokens sampled by earlier attempts, which are not sent again. Shape: (N,) int32."""
    first_token_by_s: float
    """Unix time on NATS's clock; a request accepted later is not sampled."""
    asked_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Unix time on NATS's clock at which the gateway had received the request, for the pool's latency goals. 0: unknown."""


MIN_LOGPROB = -9999.0
"""Log-probability in place of minus infinity, which JSON cannot express."""


class TopToken(Value):
    token: str
    logprob: float
    bytes: list[int]


class ServedToken(Value):
    """One sampled token. If `token` is an incomplete character, its bytes are in `bytes`."""

    token: str
    logprob: float
    """Log-probability after penalties, temperature (1 if the request's is 0), top_p, top_k and min_p.
    MIN_LOGPROB if the token has no probability.
    """
    bytes: list[int]
    top: list[TopToken] = []


class ServedDelta(Value):
    """Output of one request since its previous delta."""

    request: str
    attempt: int
    number: int = Field(ge=0)
    """Sequence number of an attempt's deltas, from 0."""
    ids: bytes = b""
    """Tokens sampled since the previous delta, including stop tokens and those of stop strings. Shape: (T,) int32."""
    text: str = ""
    """Text that later tokens and stop strings cannot change."""
    reasoning: str = ""
    """Final text of the model's reasoning, if the pool defines its markers."""
    tokens: list[ServedToken] = []
    """Tokens with log-probabilities, if requested."""
    calls: list[ServedCall] = []
    """Complete calls, in the order of the text."""
    finish: Finish | None = None
    """Set in the last delta of an attempt that succeeded."""
    failure: Failure | None = None
    """Set in the last delta of an attempt that failed."""
    reason: Sentence = ""
    prompt_tokens: int | None = None
    """Set in the first delta of an attempt."""
    cached_tokens: int | None = None
    """Prompt tokens from the prefix cache; in the last delta."""
    fingerprint: str = ""
    """Engine, pool and digest of the adapter; in the first delta of an attempt."""


MAX_TEXT_TOKENS = 32_768


class TextsRequest(Message, kind="texts-request.1"):
    """Request for the texts of single tokens, because only samplers have the tokenizer. Sent on a subject of `serve`."""

    request: str = Field(pattern=REQUEST_PATTERN)
    gateway: str = Field(pattern=GATEWAY_PATTERN)
    pool: Name
    ids: bytes = Field(max_length=4 * MAX_TEXT_TOKENS)
    """Shape: (T,) int32."""
    answer_by_s: float
    """Unix time on NATS's clock; a request accepted later is not answered."""


class Opening(Value):
    """Text that the chat template writes before a message of a role, without trailing whitespace. It starts with a control token."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str


class TokenTexts(Value):
    request: str
    texts: list[bytes]
    """Bytes of each token, possibly a part of a character."""
    control: bytes
    """Shape: (T,) uint8, 1 for a control token: untrusted text is never encoded as one."""
    openings: list[Opening]
    """Openings of roles whose messages start with a control token."""


class ServedAttempt(Value):
    request: str
    attempt: int


class Served(Message, kind="served.1"):
    """One flush of one replica to one gateway. Without deltas it is a heartbeat: the replica is alive, and has accepted these requests."""

    replica: str
    deltas: list[ServedDelta] = []
    alive: list[ServedAttempt] = []
    """The gateway's requests that the replica has, sent every ALIVE_S."""
    texts: list[TokenTexts] = []
    """Answers to `TextsRequest`; requests with ids outside the vocabulary are not answered."""


class CancelServing(Message, kind="cancel-serving.1"):
    """Cancel these requests of this gateway; unknown ones are ignored."""

    gateway: str = Field(pattern=GATEWAY_PATTERN)
    requests: list[ServedAttempt]
    """For each request, the latest attempt to cancel; earlier ones are cancelled too, later ones continue."""


MAX_TOKENS = 2**31 - 1


class ServingEnded(Message, kind="serving-ended.1"):
    """Tokens delivered for a request, even if it was cut short. Idempotent: the first report of a request counts."""

    request: str = Field(pattern=r"^[a-z0-9]{1,63}$")
    """Id chosen by the gateway, globally unique."""
    attempt: int = Field(ge=0, le=MAX_TOKENS)
    """Number of the attempt that ended the request."""
    tenant: Name
    """Tenant that is billed."""
    key: Key | None
    """Public key of the sender; None on a server without keys."""
    pool: Name
    task: str | None = Field(pattern=TASK_ID_PATTERN)
    """None, like `version`, for the base model. The task may have ended, or been deleted."""
    version: int | None = Field(ge=0, le=MAX_TOKENS)
    prompt_tokens: int = Field(ge=0, le=MAX_TOKENS)
    cached_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Tokens of the prompt that came from the prefix cache."""
    sampled_tokens: int = Field(ge=0, le=MAX_TOKENS)
    """Tokens of all attempts together, as delivered to the user."""
