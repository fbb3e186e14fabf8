"""Asks as a client sends them, by NATS alone."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import nats
from nats.aio.client import Client

from common import streams
from common.bus import Bus
from common.messages import AskRefused, Message
from common.pools import Pools
from common.streams import KIND_HEADER
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.question import Sources
from scheduler_svc.verbs.asks import Asks
from tests.support.scheduler.finished import stages
from tests.support.scheduler.stages import POOLS, World, running_world
from tests.support.waiting import at_work

M = TypeVar("M", bound=Message)


class Asker:
    """A plain NATS client that asks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.heard: list[bytes] = []
        """Bodies of all answers."""

    async def raw(self, tenant: str | None, verb: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[str, bytes]:
        """Kind and body of the answer."""
        answer = await self._client.request(streams.ask(tenant, verb), body, timeout=30, headers=headers)
        self.heard.append(answer.data)
        return (answer.headers or {})[KIND_HEADER], answer.data

    async def ask(self, answer: type[M], tenant: str | None, verb: str, **fields: Any) -> M:
        kind, body = await self.raw(tenant, verb, msgpack.packb(fields) or b"")
        assert kind == answer.kind, AskRefused.decode(body).reason
        return answer.decode(body)

    async def refused(self, tenant: str | None, verb: str, **fields: Any) -> tuple[str, str]:
        """Code and reason of the refusal."""
        kind, body = await self.raw(tenant, verb, json.dumps(fields).encode())
        assert kind == AskRefused.kind, body[:300]
        refused = AskRefused.decode(body)
        return refused.code, refused.reason


@asynccontextmanager
async def asker(nats_url: str) -> AsyncGenerator[Asker]:
    client = await nats.connect(nats_url)
    try:
        yield Asker(client)
    finally:
        await client.close()


@asynccontextmanager
async def world_with_blobs(bus: Bus, database_url: str, folder: Path, **hooks: Any) -> AsyncGenerator[World]:
    """A scheduler whose trainer stores adapters and checkpoints."""
    async with running_world(bus, database_url, stages(bus, folder / "made", **hooks)) as world:
        yield world


@asynccontextmanager
async def answering(bus: Bus, database: Database, pools: Pools = POOLS, *, timeout_s: float = 30.0) -> AsyncGenerator[asyncio.Task[None]]:
    """A replica that answers asks, and does nothing else."""
    async with at_work(Asks(bus, Sources.of(bus, database, pools), timeout_s=timeout_s).run()) as runner:
        yield runner
