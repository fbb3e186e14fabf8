"""Query on the executors of a pool that wait for their shared accelerators."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import ExecutorState, Tier
from scheduler_svc.accelerators.decisions.moves import Rates, prior_s
from scheduler_svc.accelerators.decisions.room import misfit
from scheduler_svc.accelerators.decisions.waits import AcceleratorWait

_EXECUTORS = text("""
SELECT p.service, p.accelerator, p.state, p.tier, p.wake_s, p.device_bytes, coalesce(p.held IN ('park', 'drain'), false) AS is_held,
       e.faults, coalesce(extract(epoch FROM now() - p.waiting_since), 0)::float8 AS waited_s, gaps.usual_s,
       p.waiting_since IS NOT NULL AS has_work,
       (a.spec ->> 'memory_gib')::float8 AS memory_gib
FROM pool_status p JOIN executors e ON e.accelerator = p.accelerator AND e.id = p.executor JOIN accelerators a ON a.id = p.accelerator
LEFT JOIN LATERAL (
    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY gap_s) AS usual_s
    FROM (SELECT extract(epoch FROM s.awake_at - lag(s.ended_at) OVER (ORDER BY s.epoch)) AS gap_s
          FROM (SELECT * FROM slices l WHERE l.accelerator = p.accelerator AND l.executor = p.executor ORDER BY l.epoch DESC LIMIT 20) s) g
) gaps ON true
WHERE p.pool = :pool
""")


async def accelerator_waits(connection: AsyncConnection, pool: str) -> dict[str, AcceleratorWait]:
    """By service, rollout or trainer; services with an executor that is awake are absent."""
    found: dict[str, AcceleratorWait] = {}
    awake = set[str]()
    for row in (await connection.execute(_EXECUTORS, {"pool": pool})).all():
        wake_s = prior_s(Tier(row.tier), Tier.DEVICE, row.device_bytes, Rates()) if row.wake_s is None else row.wake_s
        unfit = misfit(row.accelerator, row.service, pool, row.device_bytes, row.memory_gib)
        wait = AcceleratorWait(row.accelerator, wake_s, row.usual_s, row.waited_s, row.is_held, row.faults, unfit, row.has_work)
        if row.state == ExecutorState.AWAKE:
            awake.add(row.service)
        elif row.service not in found or wait.left_s < found[row.service].left_s:
            found[row.service] = wait
    return {service: wait for service, wait in found.items() if service not in awake}
