"""Streams one request's tokens from the engine, with all sampling settings of served requests."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from common.errors import Fatal
from common.pools import precision_on
from rollout_svc.engine.config import GOALS, URGENT_PRIORITY
from rollout_svc.engine.engine import Engine


@dataclass(frozen=True)
class RequestGoals:
    """Latency goals of one request."""

    first_due_s: float
    """Time by which its first token is due, on `time.monotonic()` of this host."""
    tpot_s: float
    """Mean seconds from one further token to the next."""


@dataclass(frozen=True)
class StreamRequest:
    """A `SampleRequest` with the settings of `ServedSampling`."""

    request_id: str
    ids: Sequence[int]
    max_tokens: int
    seed: int
    stop_ids: Sequence[int]
    adapter: str | None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    top_logprobs: int | None = None
    tenant: str = ""
    """Tenant whose prefix cache is used: a shared cache would reveal other tenants' prompts. Empty: the shared cache."""
    task: str = ""
    """Task that its tokens are counted for; empty: none."""
    goals: RequestGoals | None = None
    """None: the request is urgent, but holds no rollout back."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position."""

    chosen: float
    top: list[tuple[int, float]]
    """(token id, log-probability) pairs, highest first."""


@dataclass(frozen=True)
class StreamPart:
    """Tokens of one or a few engine steps."""

    ids: list[int]
    logprobs: list[TokenLogprobs]
    """One per token if log-probabilities were requested, else empty."""
    finish: str | None
    """`stop` or `length` in the last part, else None."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""


async def stream(engine: Engine, request: StreamRequest) -> AsyncGenerator[StreamPart]:
    """Yield parts as they are sampled. Closing the generator aborts the request and frees its KV cache.

    The request is urgent: it preempts rollouts if no place is free. Raises: as `Engine.sample`.
    """
    outputs = engine.generate(
        request.request_id, request.ids, _params(request), request.adapter, URGENT_PRIORITY, apart=request.tenant, task=request.task
    )
    async with aclosing(outputs):
        async for output in outputs:
            answer = output.outputs[0]
            if answer.finish_reason == "abort":
                raise Fatal("the inference engine has aborted a request")
            logprobs = [] if request.top_logprobs is None else logprobs_of(answer.logprobs, request.top_logprobs)
            yield StreamPart(list(answer.token_ids), logprobs, answer.finish_reason, output.num_cached_tokens or 0)


def engine_name(engine: Engine) -> str:
    """Name of the engine's version, device and precision; on a CPU equal names mean equal tokens."""
    import vllm

    device = "cpu" if engine.is_cpu else "gpu"
    return f"vllm-{vllm.__version__}-{device}-{precision_on(engine.settings.precision, cpu=engine.is_cpu)}"


def _params(request: StreamRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=dict(request.logit_bias) or None,
        max_tokens=request.max_tokens,
        seed=request.seed,
        stop_token_ids=list(request.stop_ids),
        ignore_eos=True,  # as for rollouts
        logprobs=request.top_logprobs,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
        extra_args={GOALS: asdict(request.goals)} if request.goals is not None else None,
    )


def logprobs_of(flat: Any, top: int) -> list[TokenLogprobs]:
    """Log-probabilities of each position. `flat`: vLLM's FlatLogprobs, which lists the sampled token first, then the top tokens.

    The sampled token may be repeated among the top tokens; it is not if vLLM merged the outputs of several steps.
    """
    found: list[TokenLogprobs] = []
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        of = dict(zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True))
        highest = sorted(of.items(), key=lambda pair: -pair[1])
        found.append(TokenLogprobs(flat.logprobs[start], highest[:top]))
    return found
