"""Choices sampled by replicas, through the gateway's client of serving."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from common.messages.serving import ServedDelta, ServingEnded
from common.messages.tenancy.access import Key
from gateway_svc.openai.errors import RETRY_LATER
from gateway_svc.openai.sampling.order import Choice, Target, serve_request
from gateway_svc.problems import Problem
from gateway_svc.serving.client import Serving
from gateway_svc.serving.offers import Offers
from gateway_svc.serving.stream_quota import TooManyStreams

NOT_SAMPLED = ("overdue", "engine_lost")
"""Failures that a sampler which restarts explains."""


def restarting(pool: str, expected_s: float) -> Problem:
    """No sampler of the pool works now, and one is expected."""
    seconds = str(math.ceil(expected_s))
    return Problem(
        503, "Unavailable", f"the sampler of pool '{pool}' is restarting, about {seconds} s", "restarting", headers={"Retry-After": seconds}
    )


class Replicas:
    """Samples at whichever replica of the pool takes a choice."""

    def __init__(self, serving: Serving, offers: Offers, now_s: Callable[[], float], first_token_s: float) -> None:
        """`now_s`: NATS's clock. `first_token_s`: seconds after which a choice that no replica has begun is not sampled."""
        self._serving = serving
        self._offers = offers
        self._now_s = now_s
        self._first_token_s = first_token_s

    async def sample(
        self, choice: Choice, target: Target, *, request: str, key: Key | None, held: list[ServingEnded] | None = None
    ) -> AsyncGenerator[ServedDelta]:
        """As `Sampler.sample`. Raises: Problem when the pool serves nothing, or this process has as many streams as it may; as
        `Serving.deltas`."""
        self._offers.check(target.pool)
        if (expected_s := self._serving.restarts.expected_s(target.pool)) is not None and expected_s > self._first_token_s:
            raise restarting(target.pool, expected_s)
        begin_by_s = self._now_s() + self._first_token_s
        message = serve_request(choice, target, request=request, gateway=self._serving.gateway, key=key, first_token_by_s=begin_by_s)
        try:
            async with aclosing(self._serving.deltas(message, None if held is None else held.append)) as deltas:
                has_begun = False
                async for delta in deltas:
                    expected_s = self._serving.restarts.expected_s(target.pool) if delta.failure in NOT_SAMPLED else None
                    if expected_s is not None and not has_begun:
                        raise restarting(target.pool, expected_s)
                    has_begun = True
                    yield delta
        except TooManyStreams as error:
            raise Problem(503, "Unavailable", str(error), "too_many_streams", headers=RETRY_LATER) from None

    def book(self, ended: Sequence[ServingEnded]) -> None:
        for one in ended:
            self._serving.reports.send(one)
