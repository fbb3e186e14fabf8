"""One attempt at a served request: its prompt, place and adapter, and the tokens generated for it."""

import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from prometheus_client import Counter as Metric

from common.errors import Reject
from common.fairness.fair_queue import Claimant
from common.messages import AdapterRef, ServedDelta, ServedSampling, ServeRequest
from common.pools import Goals
from rollout_svc.adapters import Adapters
from rollout_svc.engine.stream import RequestGoals, StreamPart, StreamRequest
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.goals import Watch
from rollout_svc.serving.prompts import Prompt, Refused, prompt_of
from rollout_svc.serving.replies import Address, delta_of
from rollout_svc.serving.reply import Parts, Reply, schemas_of
from rollout_svc.text.chat import Chat

SERVED_TOKENS = Metric("marlaas_rollout_served_tokens_total", "Tokens that requests to versions got")

NO_KEY = "_"
"""Fairness key of requests on a server without API keys."""
Sample = Callable[[StreamRequest], AsyncGenerator[StreamPart]]
"""Type of `engine.stream.stream` bound to an engine."""


@dataclass(frozen=True)
class ServingContext:
    """Dependencies of a replica for answering served requests."""

    chat: Chat
    adapters: Adapters
    sample: Sample
    admission: Admission
    context_tokens: int
    thoughts: tuple[str, str] | None
    engine: str
    """Name of the engine, part of fingerprints."""
    goals: Goals | None = None
    """The pool's latency goals."""


async def answer(
    context: ServingContext,
    request: ServeRequest,
    address: Address,
    send: Callable[[ServedDelta], None],
    enters: Callable[[], None],
    watch: Watch,
) -> None:
    """Sample until the reply ends; `send` gets every delta, the last one with `finish`. `enters` is called at entry to the engine.
    `watch`: has the attempt's deadlines.

    Cancelling it aborts the request in the engine.
    Raises: Refused; HandedBack if the engine is closed; Fatal if it is dead; Unavailable if the blob store is unavailable.
    """
    prompt = await prompt_of(context.chat, request, context.context_tokens, context.thoughts)
    reply = _reply(context, request, prompt)
    before = np.frombuffer(request.sampled, dtype="<i4").tolist()
    fingerprint = _fingerprint(context.engine, request.pool, request.adapter)
    if (resumed := reply.resume(before)).finish or len(before) >= prompt.max_tokens:
        # The gateway already has the whole reply except its end.
        send(_begun(ServedDelta(request=address.request, attempt=address.attempt, number=0, finish=resumed.finish or "length"), prompt, ""))
        return
    name = request.adapter.engine_name if request.adapter else None
    async with context.admission.place(Claimant(request.tenant, request.key or NO_KEY, request.weight), name) as place:
        watch.is_cold = request.adapter is not None and not context.adapters.is_loaded(request.adapter)
        try:
            async with context.adapters.using(request.adapter, serving=True) as adapter:
                wanted = _stream_request(request, address, prompt, before, context.chat.stop_ids, adapter, watch.goals)
                place.tokens = len(prompt.ids)
                enters()
                async with aclosing(_deltas(context.sample(wanted), reply, address, prompt, fingerprint)) as deltas:
                    async for delta in deltas:
                        SERVED_TOKENS.inc(len(delta.ids) // 4)
                        place.tokens += len(delta.ids) // 4
                        send(delta)
        except Reject as error:
            raise Refused("version_unusable" if name and _is_about_adapter(context, request.adapter) else "invalid", str(error)) from None


def _is_about_adapter(context: ServingContext, ref: AdapterRef | None) -> bool:
    """Whether loading the version failed; otherwise the engine refused the request."""
    return ref is not None and not context.adapters.is_loaded(ref)


async def _deltas(
    parts: AsyncGenerator[StreamPart], reply: Reply, address: Address, prompt: Prompt, fingerprint: str
) -> AsyncGenerator[ServedDelta]:
    """Yield deltas until the reply ends."""
    has_begun = False
    async with aclosing(parts):
        async for part in parts:
            piece = reply.feed(part.ids, part.logprobs, part.finish)
            delta = delta_of(address, piece)
            if not has_begun:
                delta, has_begun = _begun(delta, prompt, fingerprint), True
            if piece.finish:
                yield delta.model_copy(update={"cached_tokens": min(part.cached_tokens, len(prompt.ids))})
                return
            yield delta


def _begun(delta: ServedDelta, prompt: Prompt, fingerprint: str) -> ServedDelta:
    return delta.model_copy(update={"prompt_tokens": len(prompt.ids), "fingerprint": fingerprint})


def _reply(context: ServingContext, request: ServeRequest, prompt: Prompt) -> Reply:
    """Parser of the request's reply. Raises: Refused."""
    try:
        parts = Parts(schemas_of(request.tools), context.thoughts, begins_inside=prompt.begins_inside)
    except ValueError as error:
        raise Refused("invalid", str(error)) from None
    return Reply(request.request, context.chat, parts, request.sampling.stop, parallel_calls=request.parallel_calls)


def _stream_request(
    request: ServeRequest,
    address: Address,
    prompt: Prompt,
    before: list[int],
    stop_ids: tuple[int, ...],
    adapter: str | None,
    goals: RequestGoals | None,
) -> StreamRequest:
    sampling = request.sampling
    return StreamRequest(
        request_id=f"serve:{address.gateway}:{address.request}:{address.attempt}",
        ids=[*prompt.ids, *before],
        max_tokens=prompt.max_tokens - len(before),
        seed=seed_after(sampling.seed, len(before)),
        stop_ids=stop_ids,
        adapter=adapter,
        tenant=request.tenant,
        task=request.adapter.task if request.adapter else "",
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=bias_after(sampling, before),
        top_logprobs=sampling.top_logprobs,
        goals=goals,
    )


def seed_after(seed: int, sampled: int) -> int:
    """Seed of an attempt that continues after `sampled` tokens: the original seed would repeat the same random numbers."""
    if not sampled:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{sampled}".encode()).digest()[:8], "big") >> 1


def bias_after(sampling: ServedSampling, before: list[int]) -> dict[int, float]:
    """`logit_bias` plus penalties for tokens that earlier attempts sampled: the engine treats those as prompt, without penalties.

    A token present in both parts gets the presence penalty twice.
    """
    bias = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(before).items():
            bias[token] = bias.get(token, 0.0) - sampling.presence_penalty - sampling.frequency_penalty * count
    return bias


def _fingerprint(engine: str, pool: str, ref: AdapterRef | None) -> str:
    return f"{engine}-{pool}-{ref.blob.sha256[:12] if ref else 'base'}"
