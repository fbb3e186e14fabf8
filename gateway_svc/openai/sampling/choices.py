"""Choices of one request, sampled concurrently: their deltas as they come, or all of them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from common.messages.serving import ServedDelta, ServingEnded
from common.messages.tenancy.access import Key
from gateway_svc.openai.errors import failed_sampling
from gateway_svc.openai.sampling.order import Choice, Target

WAITING = 1
"""Maximum deltas of all choices that wait to be taken: they are booked as given. The sampler's own buffers are behind it."""


class Sampler(Protocol):
    """Whatever samples: the gateway's client of samplers."""

    def sample(
        self, choice: Choice, target: Target, *, request: str, key: Key | None, held: list[ServingEnded] | None = None
    ) -> AsyncGenerator[ServedDelta]:
        """Deltas of one choice, without repetition, over as many attempts as it takes. The last one has `finish` or `failure`.

        `request`: id of the choice. `held`: gets the report of its end; None: that is booked. Closing the generator ends the request
        everywhere.
        """
        ...

    def book(self, ended: Sequence[ServingEnded]) -> None:
        """Book reports that were held."""
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
    """Deltas with the number of their choice, until all have ended. Raises: Problem when one fails; the others end then."""
    if len(choices) == 1:  # without a queue, which costs a switch of tasks for each delta
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
    """Raises: Problem when it reports a failure."""
    if delta.failure is not None:
        raise failed_sampling(delta.failure, delta.reason, choice.prompt.param)
    return delta


def id_of(request: str, choice: int) -> str:
    """Id of a choice, which begins with that of the HTTP request: so do log lines about it."""
    return f"{request}n{choice}"


async def whole(deltas: AsyncGenerator[tuple[int, ServedDelta]], choices: int) -> list[list[ServedDelta]]:
    """All deltas of each choice. Raises: Problem when one fails."""
    found: list[list[ServedDelta]] = [[] for _ in range(choices)]
    async with aclosing(deltas):
        async for number, delta in deltas:
            found[number].append(delta)
    return found
