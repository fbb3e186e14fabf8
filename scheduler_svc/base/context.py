"""Dependencies of the handlers. Each handler is `async def handle_…(context: HandlerContext, deliveries: Sequence[Delivery]) -> None`."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import streams
from common.bus import Bus, Delivery
from common.pools import Pools
from common.resilience import crashpoints
from scheduler_svc.accelerators.deployed import NOTHING_SHARED, Deployed
from scheduler_svc.base.audit import Actor, actor_of
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.webhooks.addresses import NO_WEBHOOK_RULES, WebhookRules

if TYPE_CHECKING:
    from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
    from scheduler_svc.upkeep.replicas import ReplicaRegistry


@dataclass(frozen=True)
class HandlerContext:
    bus: Bus
    database: Database
    pools: Pools
    policy: SchedulingPolicy
    replicas: "ReplicaRegistry"
    collector: "GarbageCollector"
    wake_relay: Callable[[], None]
    wake_admission: Callable[[], None]
    wake_tenant_deletion: Callable[[], None]
    webhooks: WebhookRules = NO_WEBHOOK_RULES
    deployed: Deployed = NOTHING_SHARED
    """Shared accelerators and their executors."""
    wake_slices: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def transaction(self, *, patience_s: float | None = None) -> AsyncGenerator[Transaction]:
        """A transaction whose commit wakes the outbox relay and admission. `patience_s`: as in `Database.transaction`."""
        async with self.database.transaction(patience_s=patience_s) as tx:
            yield tx
        crashpoints.reached("after_commit")
        self.wake_relay()
        self.wake_admission()


def verb_of(delivery: Delivery) -> str:
    """Verb in the subject of a job."""
    return streams.token(delivery.subject, 1) or ""


def sender_of(delivery: Delivery) -> Actor:
    """Sender of a job, for the audit."""
    return actor_of(delivery.subject, delivery.sequence)
