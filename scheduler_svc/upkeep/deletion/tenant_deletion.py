"""Deletion of tenants: every step is idempotent and repeated until done, so that a crash at any point only delays the end.

Revokes the tenant's keys, cancels its tasks, counts its data for the receipt, deletes its aliases, webhooks and the tasks' rows,
erases their data from NATS, then its packages and data of no task: events, dead letters of jobs, and keys, including gateways'
copies. The tenant's row stays, with the receipt; `deleted_tasks` keeps its consumption. Its PostgreSQL role and its NATS account
are removed by the operator: this service has no right to.
"""

import asyncio
from collections.abc import Callable

import structlog

from common import streams
from common.bus import Bus
from common.periodic import run_forever
from common.resilience import crashpoints
from scheduler_svc.base import deleted
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.audit import Actor, accepted
from scheduler_svc.base.database import Database
from scheduler_svc.base.deleted import DeletedTenant
from scheduler_svc.base.states import TaskState
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.keys import revoke_all
from scheduler_svc.training.aliases import remove_all
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.termination import end_task
from scheduler_svc.upkeep.deletion.deletion import PATIENCE_S, delete_ended
from scheduler_svc.upkeep.deletion.garbage_collector import POSTPONED_S, GarbageCollector
from scheduler_svc.uploads.package_jobs import delete_packages_of

REASON = "its tenant is deleted"

log = structlog.get_logger()


class TenantDeletion:
    """Deletes marked tenants. Idempotent, so that every replica may run one."""

    def __init__(self, database: Database, bus: Bus, collector: GarbageCollector, wake_relay: Callable[[], None]) -> None:
        self._database = database
        self._bus = bus
        self._collector = collector
        self._wake_relay = wake_relay
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Check for marked tenants now."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        await run_forever(self._delete_when_woken, POSTPONED_S, "tenant_deletion_postponed")

    async def _delete_when_woken(self) -> None:
        while True:
            await self.delete_pending()  # first, since a deletion may have been interrupted
            await self._woken.wait()
            self._woken.clear()

    async def delete_pending(self) -> None:
        """Delete all marked tenants. Raises: Retry if NATS or PostgreSQL is unavailable."""
        async with self._database.transaction() as tx:
            pending = await deleted.pending_tenants(tx.connection)
        for tenant in pending:
            for step in (
                self._end_keys,
                self._end_tasks,
                self._count,
                self._delete_names,
                self._delete_tasks,
                self._erase_tasks,
                self._delete_packages,
                self._erase_reports,
                self._erase_http_keys,
                self._finish,
            ):
                await step(tenant)
                self._wake_relay()
                crashpoints.reached("tenant_deletion")

    async def _end_keys(self, tenant: DeletedTenant) -> None:
        async with self._database.transaction() as tx:
            revoked = await revoke_all(tx, tenant.id)
            tx.record(*(accepted(Actor(tenant.id, one.verb, "scheduler"), one.target) for one in revoked))

    async def _end_tasks(self, tenant: DeletedTenant) -> None:
        for task in await self._tasks(tenant):
            async with self._database.transaction() as tx:
                for found in await tasks.lock_tasks(tx.connection, [task]):
                    await end_task(tx, found, TaskState.CANCELLED, reason=REASON)

    async def _count(self, tenant: DeletedTenant) -> None:
        reports = [(streams.EVENTS, streams.events(tenant.id, ">"))]
        for task in await self._tasks(tenant):
            reports += [(stream, subject) for stream, subject in streams.stored_reports(task) if stream is not streams.EVENTS]
        messages = sum([sum((await self._bus.streams.subjects(stream, subject)).values()) for stream, subject in reports])
        async with self._database.transaction() as tx:
            await deleted.count_tenant(tx.connection, tenant.id, messages)

    async def _delete_names(self, tenant: DeletedTenant) -> None:
        async with self._database.transaction() as tx:
            await remove_all(tx, tenant.id)
            await webhooks.remove_all(tx.connection, tenant.id)

    async def _delete_tasks(self, tenant: DeletedTenant) -> None:
        for task in await self._tasks(tenant):
            async with self._database.transaction(patience_s=PATIENCE_S) as tx:
                await delete_ended(tx, task, tenant.by)
            crashpoints.reached("tenant_deletion")

    async def _erase_tasks(self, tenant: DeletedTenant) -> None:
        await self._collector.erase_deleted()
        stayed = await self._collector.surplus(tenant.id)  # adapters kept for other tasks of the tenant
        await self._collector.delete_blobs([blob.name for blob in stayed])

    async def _delete_packages(self, tenant: DeletedTenant) -> None:
        await delete_packages_of(self._database, self._bus, tenant.id)
        await self._collector.wait_until_published([tenant.id])
        for stream, subject in streams.about_packages(tenant.id):
            await self._bus.streams.erase(stream, subject)

    async def _erase_reports(self, tenant: DeletedTenant) -> None:
        await self._collector.wait_until_published([tenant.id])
        async with self._database.transaction() as tx:
            letters = await deleted.letters_about_jobs(tx.connection, tenant.id)
        for sequence in letters:
            await self._bus.streams.erase_one(streams.FAILED, sequence)
        await self._bus.streams.erase(streams.EVENTS, streams.events(tenant.id, ">"))

    async def _erase_http_keys(self, tenant: DeletedTenant) -> None:
        async with self._database.transaction() as tx:
            digests = [each.value.digest for each in await keys.http_keys(tx.connection, tenant=tenant.id)]
        if digests:
            await self._collector.wait_until_published(digests)
            await self._bus.kv.erase(streams.HTTP_KEYS_BUCKET, digests)

    async def _finish(self, tenant: DeletedTenant) -> None:
        async with self._database.transaction() as tx:
            if (done := await deleted.finish_tenant(tx.connection, tenant.id)) is not None:
                tx.emit_event(tenant.id, "none", "tenant-deleted", done.deletion)
                receipt = {name: count for name, count in done.deletion.items() if name != "request"}
                tx.record(accepted(Actor(tenant.id, "tenant-deleted", "scheduler"), tenant.id, receipt))
                log.info("tenant_deleted", tenant=tenant.id)

    async def _tasks(self, tenant: DeletedTenant) -> list[str]:
        async with self._database.transaction() as tx:
            return await deleted.tasks_of_tenant(tx.connection, tenant.id)
