"""Samples the choices of one request concurrently on replicas, and yields their deltas."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from common.messages.artifacts import AdapterRef
from common.messages.serving import ServedDelta, ServedMessage, ServedSampling, ServeRequest, ServingEnded
from common.messages.tenancy.access import Key
from gateway_svc.openai.errors import RETRY_LATER, failed_sampling
from gateway_svc.problems import Problem
from gateway_svc.serving.client import Serving
from gateway_svc.serving.places import WouldWait
from gateway_svc.serving.pools import Offers
from gateway_svc.serving.stream_quota import TooManyStreams

WAITING = 1
"""Maximum deltas queued for the client, over all choices: a queued delta is billed as delivered. Other unread deltas stay in the
sampler's own buffers."""
NOT_SAMPLED = ("overdue", "engine_lost")
"""Failures without a reply, whose cause may be that the pool's sampler restarts."""


@dataclass(frozen=True)
class Prompt:
    """Prompt of a choice: exactly one of `messages`, `text` and `ids` is set."""

    messages: Sequence[ServedMessage] | None = None
    text: str | None = None
    ids: Sequence[int] | None = None
    tools: Sequence[dict[str, JsonValue]] = ()
    parallel_calls: bool = True
    template: dict[str, JsonValue] = field(default_factory=dict)
    param: str = "messages"
    """Request field that contains the prompt."""


@dataclass(frozen=True)
class Choice:
    """One continuation of a prompt."""

    prompt: Prompt
    sampling: ServedSampling


@dataclass(frozen=True)
class Target:
    """Model that a request samples from: one version, which stays the same until the request ends."""

    model: str
    """Exact name of the model."""
    tenant: str
    """Tenant that owns the version and is billed."""
    pool: str
    adapter: AdapterRef | None
    """The version's adapter; None: the base model."""
    weight: float = 1.0
    """The tenant's weight among waiting requests."""
    asked_s: float = 0.0
    """As in `ServeRequest`."""


def serve_request(choice: Choice, target: Target, *, request: str, gateway: str, key: Key | None, first_token_by_s: float) -> ServeRequest:
    """Message that requests the first attempt at a choice. `request`: id of the choice."""
    prompt = choice.prompt
    return ServeRequest(
        request=request,
        attempt=0,
        gateway=gateway,
        tenant=target.tenant,
        key=key,
        weight=target.weight,
        pool=target.pool,
        adapter=target.adapter,
        messages=None if prompt.messages is None else list(prompt.messages),
        text=prompt.text,
        ids=None if prompt.ids is None else np.asarray(prompt.ids, dtype="<i4").tobytes(),
        tools=list(prompt.tools),
        parallel_calls=prompt.parallel_calls,
        template=prompt.template,
        sampling=choice.sampling,
        first_token_by_s=first_token_by_s,
        asked_s=target.asked_s,
    )


class Sampler(Protocol):
    """Samples choices; implemented by the gateway's client of samplers."""

    def sample(
        self, choice: Choice, target: Target, *, request: str, key: Key | None, held: list[ServingEnded] | None = None
    ) -> AsyncGenerator[ServedDelta]:
        """Deltas of one choice without repetition, over as many attempts as necessary. The last delta has `finish` or `failure`.

        `request`: id of the choice. `held`: list that receives the report of the choice's usage at its end, for a later `book`; None: the
        report is booked at the end. Closing the generator also ends the request on its replica.
        """
        ...

    def book(self, ended: Sequence[ServingEnded]) -> None:
        """Book the usage in reports that `sample` put into `held`, once the caller knows whether the client receives the answer."""
        ...


async def sampled(
    sampler: Sampler,
    choices: Sequence[Choice],
    target: Target,
    *,
    request: str,
    key: Key | None,
    held: list[ServingEnded] | None = None,
) -> AsyncGenerator[tuple[int, ServedDelta]]:
    """Yield (choice number, delta) until all choices end. `request`: id of the HTTP request. `held`: as in `Sampler.sample`.

    Raises: Problem if a choice fails, which ends the others.
    """
    if len(choices) == 1:  # without a queue, which costs a task switch per delta
        async with aclosing(sampler.sample(choices[0], target, request=id_of(request, 0), key=key, held=held)) as deltas:
            async for delta in deltas:
                yield 0, _succeeded(delta, choices[0])
        return
    waiting = asyncio.Queue[tuple[int, ServedDelta | Exception | None]](WAITING)

    async def pump(number: int, choice: Choice) -> None:
        try:
            async with aclosing(sampler.sample(choice, target, request=id_of(request, number), key=key, held=held)) as deltas:
                async for delta in deltas:
                    await waiting.put((number, delta))
            await waiting.put((number, None))
        except Exception as error:
            await waiting.put((number, error))

    pumps = [asyncio.create_task(pump(number, choice)) for number, choice in enumerate(choices)]
    running = len(pumps)
    try:
        while running:
            number, found = await waiting.get()
            if found is None:
                running -= 1
            elif isinstance(found, Exception):
                raise found
            else:
                yield number, _succeeded(found, choices[number])
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _succeeded(delta: ServedDelta, choice: Choice) -> ServedDelta:
    """The delta. Raises: Problem if it reports a failure."""
    if delta.failure is not None:
        raise failed_sampling(delta.failure, delta.reason, choice.prompt.param)
    return delta


def id_of(request: str, choice: int) -> str:
    """Id of a choice: the HTTP request's id and the choice's number, so that log lines can be matched."""
    return f"{request}n{choice}"


async def whole(deltas: AsyncGenerator[tuple[int, ServedDelta]], choices: int) -> list[list[ServedDelta]]:
    """Collect all deltas of each choice. Raises: Problem if one fails."""
    found: list[list[ServedDelta]] = [[] for _ in range(choices)]
    async with aclosing(deltas):
        async for number, delta in deltas:
            found[number].append(delta)
    return found


def restarting(pool: str, expected_s: float) -> Problem:
    """Problem for a pool without a working sampler; the first sampler is expected to work in `expected_s` seconds."""
    seconds = str(math.ceil(expected_s))
    return Problem(
        503, "Unavailable", f"the sampler of pool '{pool}' is restarting, about {seconds} s", "restarting", headers={"Retry-After": seconds}
    )


def would_wait(pool: str, error: WouldWait) -> Problem:
    """Problem for a request whose first token would come after the pool's goal."""
    headers = RETRY_LATER if math.isinf(error.late_s) else {"Retry-After": str(math.ceil(error.late_s))}
    return Problem(503, "Unavailable", f"pool '{pool}' is at its capacity: {error}; retry later", "over_capacity", headers=headers)


class Replicas:
    """Samples each choice on any replica of the pool."""

    def __init__(self, serving: Serving, offers: Offers, now_s: Callable[[], float], first_token_s: float) -> None:
        """`now_s`: NATS's clock. `first_token_s`: seconds within which a replica must begin a choice."""
        self._serving = serving
        self._offers = offers
        self._now_s = now_s
        self._first_token_s = first_token_s

    async def sample(
        self, choice: Choice, target: Target, *, request: str, key: Key | None, held: list[ServingEnded] | None = None
    ) -> AsyncGenerator[ServedDelta]:
        """As `Sampler.sample`. Raises: Problem if the pool has no serving, if its sampler restarts, if the first token would come after the
        pool's goal, or if the quota of streams is used up; other errors as `Serving.deltas`."""
        offer = self._offers.check(target.pool)
        if (expected_s := self._serving.restarts.expected_s(target.pool)) is not None and expected_s > self._first_token_s:
            raise restarting(target.pool, expected_s)
        begin_by_s = self._now_s() + self._first_token_s
        message = serve_request(choice, target, request=request, gateway=self._serving.gateway, key=key, first_token_by_s=begin_by_s)
        try:
            report = None if held is None else held.append
            async with self._serving.entered(message, offer) as begin, aclosing(self._serving.deltas(message, report)) as deltas:
                has_begun = False
                async for delta in deltas:
                    expected_s = self._serving.restarts.expected_s(target.pool) if delta.failure in NOT_SAMPLED else None
                    if expected_s is not None and not has_begun:
                        raise restarting(target.pool, expected_s)
                    has_begun = True
                    if delta.failure is None:
                        begin()
                    yield delta
        except WouldWait as error:
            raise would_wait(target.pool, error) from None
        except TooManyStreams as error:
            raise Problem(503, "Unavailable", str(error), "too_many_streams", headers=RETRY_LATER) from None

    def book(self, ended: Sequence[ServingEnded]) -> None:
        for one in ended:
            self._serving.reports.send(one)
