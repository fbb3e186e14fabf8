"""Question: the tenant of an ask, the sources of its answer, and errors in place of an answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Table, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.blobs.chunks import BlobChunks
from common.bus import Bus, FullStream
from common.errors import Reject
from common.messages import AliasOf, ReplicaReport, TroubleOf, WebhookOf
from common.messages.asks import PAGE_BYTES
from common.messages.tenancy.named import AskNamed
from common.pools import Pools
from scheduler_svc.base.audit import Actor, Downloads
from scheduler_svc.base.database import Database
from scheduler_svc.base.samples import StoredSamples
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import rates
from scheduler_svc.tenancy.decisions.shares import Capacity

PATIENCE_S = 8.0
"""Maximum seconds of a query: a client waits a little longer."""

V = TypeVar("V", bound=BaseModel)
N = TypeVar("N", AliasOf, WebhookOf)


class Unknown(Reject):
    """The tenant has no such task, or the task no such version."""


class TooMany(Reject):
    """The tenant's asks exceed its rate."""


@dataclass(frozen=True)
class Sources:
    """Sources of all answers."""

    database: Database
    pools: Pools
    blobs: Blobs
    chunks: BlobChunks
    samples: StoredSamples
    replicas: Callable[[], Sequence[ReplicaReport]]
    """Live replicas of all services but the scheduler."""
    capacities: Callable[[], Mapping[str, Capacity]]
    """Capacity for admission, by pool."""
    full_streams: Callable[[], Awaitable[Sequence[FullStream]]]
    """Streams between services that are so full that they may refuse messages. Raises: Unavailable."""
    troubles: Callable[[], Sequence[TroubleOf]] = tuple
    """Processes of services that are not ready, or died recently."""
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
        """Sources with the bus's blobs, samples and streams."""
        full_streams = partial(bus.streams.full, streams.BETWEEN_SERVICES)
        return cls(database, pools, Blobs(bus), BlobChunks(bus), StoredSamples(bus), replicas, capacities, full_streams, troubles)


@dataclass(frozen=True)
class Question:
    tenant: str | None
    """Tenant whose data the answer may contain; None for all tenants."""
    sources: Sources
    by: Actor
    """Sender of the ask, for the audit."""

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for reads. Raises: Unavailable if PostgreSQL does not answer."""
        async with self.sources.database.statements(patience_s=PATIENCE_S) as connection:
            yield connection

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[Transaction]:
        """A transaction, for an answer that writes an audit row."""
        async with self.sources.database.transaction(patience_s=PATIENCE_S) as tx:
            yield tx

    async def count(self) -> None:
        """Count the ask in its tenant's rate. Raises: TooMany; Unavailable if PostgreSQL does not answer."""
        if self.tenant is None:
            return
        async with self.reading() as connection:
            grant = await rates.take(connection, self.tenant, "asks", 1)
        if not grant.granted:
            raise TooMany(grant.refusal("asks", self.tenant))

    def unknown(self, task: str) -> Unknown:
        """Error for an unknown task; identical for another tenant's task."""
        return Unknown(f"no task '{task}'" + (f" of tenant '{self.tenant}'" if self.tenant else ""))


def named_rows(table: Table, tenant: str | None, asked: AskNamed) -> list[ColumnElement[bool]]:
    """Conditions for the rows that a question asks for, of `tenant`, or of all (None). `table`: has the columns `tenant` and `name`."""
    last, _, name = asked.after.partition("/")
    given = ((table.c.tenant, tenant), (table.c.name, asked.name))
    return [tuple_(table.c.tenant, table.c.name) > (last, name), *(column == value for column, value in given if value is not None)]


def page(found: Sequence[V], most: int) -> tuple[list[V], bool]:
    """The first rows of `found` that fit an answer, and whether there may be more. `found`: at most `most` rows."""
    kept = fitting(found)
    return kept, len(kept) < len(found) or len(found) >= most


def fitting(found: Sequence[V]) -> list[V]:
    """The first rows of `found` that fit an answer; at least one if there is any."""
    size, kept = 0, list[V]()
    for one in found:
        size += len(one.model_dump_json())
        if kept and size > PAGE_BYTES:
            break
        kept.append(one)
    return kept


def page_of_names(found: Sequence[N], most: int) -> tuple[list[N], str | None]:
    """As `page`, for rows of `named_rows`; with the cursor after the page, None if it was the last."""
    kept, has_more = page(found, most)
    return kept, f"{kept[-1].tenant}/{kept[-1].name}" if has_more else None
