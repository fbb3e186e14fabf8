"""Work of a sampler that parks: versions that come late, turns that are handed back."""

import asyncio
from pathlib import Path

from common.blobs import Blobs
from common.bus import Bus
from common.bus.metrics import HANDLED
from common.messages import AdapterRef, SampledTurn
from rollout_svc.adapters import Adapters


class SlowBlobs(Blobs):
    """Blobs that come when they may."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.may_come = asyncio.Event()
        self.asked = 0

    async def fetch_folder(self, ref: object, into: Path) -> Path:
        self.asked += 1
        await self.may_come.wait()
        return await super().fetch_folder(ref, into)  # pyright: ignore[reportArgumentType]


def returned() -> float:
    """Requests that were handed back."""
    return HANDLED.labels("sample", "returned")._value.get()


def ids_of(turns: dict[int, SampledTurn]) -> dict[int, list[int]]:
    return {member: turn.transcript.ids_T().tolist() for member, turn in turns.items()}


async def use(adapters: Adapters, ref: AdapterRef) -> None:
    async with adapters.using(ref):
        pass
