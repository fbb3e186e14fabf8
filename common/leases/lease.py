"""The lease of an accelerator in NATS: permits one executor to compute there.

A lease is one entry of the bucket `leases`, changed by compare-and-set only. To take it, an executor must hold compute.lock (`locks.py`).
The entry names the lock under which the lease's holder computes. An executor that has this lock, and an order of a newer epoch, replaces
the entry: the former holder has lost the lock, and so computes nothing. Otherwise the executor waits until the holder deletes the entry,
or the entry expires.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common.bus import FollowedBucket
from common.errors import Retry, Unavailable
from common.leases.context import ExecutorContext
from common.leases.watchdog import FENCE_S
from common.messages import Lease
from common.resilience import crashpoints
from common.streams import LEASES_BUCKET

log = structlog.get_logger()


class Superseded(Exception):
    """The accelerator was granted with a newer epoch."""


@dataclass
class _Held:
    epoch: int
    revision: int
    confirmed_s: float
    """When the last confirmed renewal was sent, by this process's monotonic clock."""


class LeaseHolder:
    """This executor's access to the lease."""

    def __init__(self, context: ExecutorContext, stir: Callable[[], None]) -> None:
        """`stir` is called when the entry changes."""
        self._bus = context.bus
        self._me = context.me
        self._clock = context.clock
        self._locks = context.locks
        self._renew_s = context.renew_s
        self._stir = stir
        self._held: _Held | None = None
        self._is_lost = False
        self.is_elsewhere = False
        """Whether another process had the lease when its entry last changed; an expiry is not reported as a change."""
        self._changing = asyncio.Lock()

    @property
    def epoch(self) -> int | None:
        """Epoch of the lease that this process holds; None without a lease."""
        return self._held.epoch if self._held else None

    def is_overdue(self) -> bool:
        """Whether this process holds the lease and must stop computing: another process has it, or no renewal was confirmed for FENCE_S."""
        return self._held is not None and (self._is_lost or self._clock() - self._held.confirmed_s > FENCE_S)

    async def take(self, epoch: int) -> bool:
        """Take the lease for `epoch`, or update its epoch; False while another process holds it, or NATS does not answer.

        Raises: Superseded.
        """
        async with self._changing:
            try:
                return await self._take(epoch)
            except Retry as error:
                log.info("lease_not_taken", epoch=epoch, reason=str(error))
                return False

    async def _take(self, epoch: int) -> bool:
        found = await self._bus.kv.find(LEASES_BUCKET, self._me.accelerator, Lease)
        if found is not None and found.value.epoch > epoch:
            raise Superseded(f"{found.value.executor} has the accelerator with epoch {found.value.epoch}")
        if found is not None and not self._is_mine(found.value):
            if not self._may_replace(found.value, epoch):
                return False
            log.info("lease_taken_over", epoch=epoch, of=found.value.executor, their_epoch=found.value.epoch)
        sent_s = self._clock()
        revision = await self._set(epoch, found.revision if found else 0)
        self._held, self._is_lost = _Held(epoch, revision, sent_s), False
        return True

    async def release(self) -> None:
        """Delete the lease, if this process holds it. If NATS is unreachable, the lease expires later."""
        async with self._changing:
            held, self._held, self._is_lost = self._held, None, False
            if held is None or not self._bus.is_connected:
                return
            try:
                await self._bus.kv.release(LEASES_BUCKET, self._me.accelerator, revision=held.revision)
            except Unavailable as error:
                log.warning("lease_not_released", epoch=held.epoch, reason=str(error))
            except Retry:  # the next executor, which holds compute.lock, was faster
                return

    async def keep(self) -> None:
        """Renew the lease periodically while it is held, until cancelled."""
        while True:
            await asyncio.sleep(self._renew_s)
            await self.renew()

    async def renew(self) -> None:
        """Renew once. Does nothing while NATS is unavailable: a renewal buffered and sent late would renew a lease that has ended."""
        async with self._changing:
            held = self._held
            if held is None or self._is_lost or not self._bus.is_connected:
                return
            crashpoints.reached("lease_before_renew")
            sent_s = self._clock()
            try:
                held.revision = await self._set(held.epoch, held.revision)
                held.confirmed_s = sent_s
            except Unavailable as error:
                log.warning("lease_not_renewed", epoch=held.epoch, reason=str(error))
            except Retry:
                await self._look_again(held)

    async def _look_again(self, held: _Held) -> None:
        """Reread the entry after a revision conflict: a renewal's answer was lost, the lease expired, or another process holds it."""
        sent_s = self._clock()
        try:
            found = await self._bus.kv.find(LEASES_BUCKET, self._me.accelerator, Lease)
            if found is not None and not self._is_mine(found.value):
                log.warning("lease_lost", epoch=held.epoch, to=found.value.executor, their_epoch=found.value.epoch)
                self._is_lost = True
                self._stir()
                return
            held.revision = await self._set(held.epoch, found.revision if found else 0)
            held.confirmed_s = sent_s
        except Retry as error:
            log.warning("lease_not_renewed", epoch=held.epoch, reason=str(error))

    async def watch(self) -> None:
        """Report changes of the entry, until cancelled. Expiry is noticed late: a waiting executor must also check by its own clock."""
        await FollowedBucket(self._bus, LEASES_BUCKET, Lease, self._note).follow()

    def _note(self, key: str, lease: Lease | None) -> None:
        if key == self._me.accelerator:
            self.is_elsewhere = lease is not None and not self._is_mine(lease)
            if lease is not None and self._held is not None and lease.epoch > self._held.epoch and not self._is_mine(lease):
                self._is_lost = True
            self._stir()

    async def _set(self, epoch: int, revision: int) -> int:
        me, now_s = self._me, self._bus.clock.now_s()
        lease = Lease(executor=me.executor, replica=me.replica, epoch=epoch, renewed_s=now_s, lock=self._locks.identity)
        return await self._bus.kv.replace(LEASES_BUCKET, me.accelerator, lease, revision=revision)

    def _may_replace(self, theirs: Lease, epoch: int) -> bool:
        """Whether this process has a newer order than the entry, and holds the lock that the entry's holder needs to compute."""
        return theirs.epoch < epoch and self._locks.computes and theirs.lock is not None and theirs.lock == self._locks.identity

    def _is_mine(self, lease: Lease) -> bool:
        return lease.executor == self._me.executor and lease.replica == self._me.replica
