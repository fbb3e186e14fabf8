"""Epochs that NATS knows: PostgreSQL may have been restored to a time before them."""

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import Lease, LeaseOrder
from scheduler_svc.accelerators.deployed import Deployed

log = structlog.get_logger()


async def known_epoch(bus: Bus, deployed: Deployed, accelerator: str) -> int:
    """The highest epoch among the lease and the newest order of each executor."""
    epochs = [await lease_epoch(bus, accelerator)]
    for name, executor in deployed.places:
        if name == accelerator:
            last = await bus.streams.last(streams.LEASES, streams.lease_order(accelerator, executor))
            try:
                epochs.append(last.read(LeaseOrder).epoch if last is not None else 0)
            except Reject as error:
                log.warning("order_unreadable", executor=executor, reason=str(error))
    return max(epochs)


async def lease_epoch(bus: Bus, accelerator: str) -> int:
    """Of the lease; 0 without one."""
    try:
        lease = await bus.kv.get(streams.LEASES_BUCKET, accelerator, Lease)
    except Reject:
        return 0
    return lease.epoch if lease is not None else 0
