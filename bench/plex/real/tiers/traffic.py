"""Random sequences of a sampler's moves, with seeded requests inside, and versions and requests that arrive while it is parked.

What each request must answer is known from a run without any move. New versions have the weights of one of a few adapters under a name of
their own, so what they must answer is known, too.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from bench.plex.real.tiers.orders import Play
from bench.plex.real.tiers.versions import FILE
from common.accelerators import Tier
from common.blobs import Blobs
from common.messages import AdapterRef, BlobRef, Canary
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest

KINDS = 4
"""Requests that differ in prompt and seed."""
TOKENS = 48
TASKS = ("a", "b", "c")
TIERS = (*[Tier.DEVICE, Tier.HOST, Tier.DISK] * 8, Tier.NONE)
DRAINS: tuple[float | None, ...] = (0, 0, 0.05, None)
ARRIVALS = ("version", "version", "request", "deeper", "nothing")
_numbers = count()


def request(kind: int, adapter: str | None = None, max_tokens: int = TOKENS) -> SampleRequest:
    """A request of this kind, with a number of its own."""
    ids = [3 + (kind * 31 + token * 7) % 500 for token in range(8 + 24 * kind)]
    return SampleRequest(f"tiers-{next(_numbers)}", ids, max_tokens, temperature=1.0, seed=kind, stop_ids=[], adapter=adapter)


@dataclass(frozen=True)
class Weights:
    """An adapter's files in the blob store, and its canary."""

    blob: BlobRef
    canary: Canary
    answers: tuple[Sampled, ...]
    """Of each kind of request, undisturbed."""


@dataclass
class Tally:
    requests: int = 0
    other_tokens: int = 0
    """Requests whose tokens differ from those of the undisturbed run."""
    largest_difference: float = 0.0
    """Of two log-probabilities, in nats, up to the first token that differs."""
    moves: Counter[str] = field(default_factory=Counter[str])
    versions: int = 0

    def compare(self, found: Sampled, expected: Sampled) -> None:
        self.requests += 1
        self.other_tokens += found.ids != expected.ids
        same = next((place for place, (a, b) in enumerate(zip(found.ids, expected.ids, strict=False)) if a != b), len(expected.ids))
        for one, other in zip(found.logprobs[:same], expected.logprobs[:same], strict=True):
            self.largest_difference = max(self.largest_difference, abs(one - other))


class Traffic:
    def __init__(self, engine: Engine, sampler: Sampler, adapters: Adapters, base: tuple[Sampled, ...], weights: list[Weights]) -> None:
        self._engine = engine
        self._sampler = sampler
        self._adapters = adapters
        self._base = base
        self._weights = weights
        self._newest: dict[str, tuple[AdapterRef, Weights]] = {}
        self._tally = Tally()
        self._running: list[asyncio.Task[None]] = []

    @classmethod
    async def begin(cls, engine: Engine, sampler: Sampler, adapters: Adapters, blobs: Blobs, folder: Path) -> "Traffic":
        """Sample what each kind of request must answer."""
        base = tuple([await engine.sample(request(kind)) for kind in range(KINDS)])
        canaries: dict[str, Any] = json.loads((folder / FILE).read_text())
        ids = np.asarray(canaries["ids"], "<i4").tobytes()
        found: list[Weights] = []
        for name, logprobs in canaries["logprobs"].items():
            blob = await blobs.put_folder(f"{name}.adapter", folder / name)
            canary = Canary(ids=ids, logprobs=np.asarray(logprobs, "<f4").tobytes())
            await engine.load(name, folder / name)
            found.append(Weights(blob, canary, tuple([await engine.sample(request(kind, name)) for kind in range(KINDS)])))
            await engine.unload(name)
        return cls(engine, sampler, adapters, base, found)

    async def play(self, play: Play) -> dict[str, Any]:
        """Raises: what a move or a request raises; WrongState, say."""
        self._tally = Tally()
        for task in TASKS:
            self._announce(task, random.Random(play.seed))
        played = 0
        for number in play.numbers():
            await self._sequence(random.Random(f"{play.seed} {number}"))
            played += 1
        tally = self._tally
        return {
            "sequences": played,
            "moves": dict(tally.moves),
            "requests": tally.requests,
            "versions": tally.versions,
            "requests_with_other_tokens": tally.other_tokens,
            "largest_difference": tally.largest_difference,
            "invariant": self._engine.is_invariant,
        }

    async def _sequence(self, rng: random.Random) -> None:
        self._running = []
        for _ in range(rng.randint(4, 12)):
            self._ask(rng)
        for _ in range(rng.randint(1, 3)):
            await self._progress(rng.randrange(0, 200))
            await self._park(rng)
            match rng.choice(ARRIVALS):
                case "version":
                    task = rng.choice(TASKS)
                    self._announce(task, rng)
                    self._ask(rng, task)
                case "request":
                    self._ask(rng)
                case "deeper":
                    await self._park(rng)
                case _:
                    pass
            await self._sampler.wake()
        await asyncio.gather(*self._running)

    async def _park(self, rng: random.Random) -> None:
        await self._sampler.park(rng.choice(TIERS), rng.choice(DRAINS))
        self._tally.moves[self._sampler.tier] += 1

    def _announce(self, task: str, rng: random.Random) -> None:
        weights = rng.choice(self._weights)
        version = self._newest[task][0].version + 1 if task in self._newest else 1
        self._newest[task] = AdapterRef(task=task, version=version, rank=8, blob=weights.blob, canary=weights.canary), weights
        self._tally.versions += 1

    def _ask(self, rng: random.Random, task: str | None = None) -> None:
        """Begin a request of this task, else of any or of the base model."""
        chosen = task or rng.choice((*TASKS, ""))
        ref, answers = (self._newest[chosen][0], self._newest[chosen][1].answers) if chosen else (None, self._base)
        self._running.append(asyncio.create_task(self._compare(ref, rng.randrange(KINDS), answers)))

    async def _compare(self, ref: AdapterRef | None, kind: int, answers: tuple[Sampled, ...]) -> None:
        async with self._adapters.using(ref) as name:
            self._tally.compare(await self._engine.sample(request(kind, name)), answers[kind])

    async def _progress(self, tokens: int) -> None:
        """Until the requests inside have so many more tokens, or one of them has ended."""
        running = [one for one in self._running if not one.done()]
        goal = sum(self._engine.process.progress().values()) + tokens
        while running and not any(one.done() for one in running) and sum(self._engine.process.progress().values()) < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
