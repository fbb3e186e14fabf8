"""Question: whose an ask is, what it is answered from, and what is no answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.blobs.chunks import BlobChunks
from common.bus import Bus, FullStream
from common.errors import Reject
from common.messages import AliasOf, ReplicaReport, TroubleOf, WebhookOf
from common.messages.asks import PAGE_BYTES
from common.pools import Pools
from scheduler_svc.base.audit import Actor, Downloads
from scheduler_svc.base.database import Database
from scheduler_svc.base.samples import StoredSamples
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import rates
from scheduler_svc.tenancy.decisions.shares import Capacity

PATIENCE_S = 8.0
"""Time limit of a query: a client waits a little longer."""

V = TypeVar("V", bound=BaseModel)


class Unknown(Reject):
    """The tenant has no such task, or the task no such version."""


class TooMany(Reject):
    """The tenant asks more than its rate allows."""


@dataclass(frozen=True)
class Sources:
    """What all questions are answered from."""

    database: Database
    pools: Pools
    blobs: Blobs
    chunks: BlobChunks
    samples: StoredSamples
    replicas: Callable[[], Sequence[ReplicaReport]]
    """Live replicas of the other services."""
    capacities: Callable[[], Mapping[str, Capacity]]
    """What admission allows in each pool."""
    full_streams: Callable[[], Awaitable[Sequence[FullStream]]]
    """Streams between services that may refuse messages. Raises: Unavailable."""
    troubles: Callable[[], Sequence[TroubleOf]] = tuple
    """Processes of services that are not ready, or died lately."""
    downloads: Downloads = field(default_factory=Downloads)

    @classmethod
    def of(
        cls,
        bus: Bus,
        database: Database,
        pools: Pools,
        replicas: Callable[[], Sequence[ReplicaReport]] = tuple,
        capacities: Callable[[], Mapping[str, Capacity]] = dict,
        troubles: Callable[[], Sequence[TroubleOf]] = tuple,
    ) -> "Sources":
        """With what a bus has: blobs, samples and streams."""
        full_streams = partial(bus.streams.full, streams.BETWEEN_SERVICES)
        return cls(database, pools, Blobs(bus), BlobChunks(bus), StoredSamples(bus), replicas, capacities, full_streams, troubles)


@dataclass(frozen=True)
class Question:
    tenant: str | None
    """Whose data the answer may hold; None for everybody's."""
    sources: Sources
    by: Actor
    """Who asks, for the audit."""

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Raises: Unavailable when PostgreSQL does not answer."""
        async with self.sources.database.statements(patience_s=PATIENCE_S) as connection:
            yield connection

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[Transaction]:
        """A transaction, for an answer that leaves a row in the audit."""
        async with self.sources.database.transaction(patience_s=PATIENCE_S) as tx:
            yield tx

    async def count(self) -> None:
        """Count the ask in its tenant's rate. Raises: TooMany; Unavailable when PostgreSQL does not answer."""
        if self.tenant is None:
            return
        async with self.reading() as connection:
            grant = await rates.take(connection, self.tenant, "asks", 1)
        if not grant.granted:
            raise TooMany(grant.refusal("asks", self.tenant))

    def unknown(self, task: str) -> Unknown:
        """The same for a task of another tenant and for one that there never was."""
        return Unknown(f"no task '{task}'" + (f" of tenant '{self.tenant}'" if self.tenant else ""))


def names_after(cursor: str) -> tuple[str, str]:
    """Tenant and name of the last that the asker has; inverse of `cursor_of_names`."""
    tenant, _, name = cursor.partition("/")
    return tenant, name


def cursor_of_names(kept: Sequence[AliasOf | WebhookOf], found: int, most: int) -> str | None:
    """Cursor behind the page `kept`. `found`: rows that were read, at most `most`."""
    return f"{kept[-1].tenant}/{kept[-1].name}" if len(kept) < found or found == most else None


def page(found: Sequence[V]) -> list[V]:
    """The first of `found`, as many as an answer holds, one at least."""
    size, kept = 0, list[V]()
    for one in found:
        size += len(one.model_dump_json())
        if kept and size > PAGE_BYTES:
            break
        kept.append(one)
    return kept
