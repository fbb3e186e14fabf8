"""Answers questions about shared accelerators: executors, slices with their payers, measured moves, steps for a trace, parked pools."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import ExecutorState, Tier
from common.errors import Reject
from common.messages import (
    AskExecutors,
    AskMoves,
    AskSlices,
    AskTrace,
    ExecutorOf,
    ExecutorsAnswer,
    MoveOf,
    MovesAnswer,
    ShareOf,
    SliceOf,
    SlicesAnswer,
    StepPhases,
    TraceAnswer,
    TracedTask,
)
from common.messages.accelerators import MAX_STEPS
from common.messages.asks import PAGE_BYTES
from scheduler_svc.accelerators.decisions.load import Trajectory, occupancy
from scheduler_svc.accelerators.decisions.tiers import Rates, prior_s
from scheduler_svc.accelerators.decisions.waits import AcceleratorWait, misfit
from scheduler_svc.tenancy.question import Question, fitting, page


async def answer_executors(question: Question, request: AskExecutors) -> ExecutorsAnswer:
    async with question.reading() as connection:
        found = await shown_executors(connection, request.pool, for_operator=question.tenant is None)
    deepest = {name: pool.deepest_tier for name, pool in question.sources.pools.items()}
    return ExecutorsAnswer(executors=fitting([one.model_copy(update={"deepest": deepest.get(one.pool)}) for one in found]))


async def answer_slices(question: Question, request: AskSlices) -> SlicesAnswer:
    """Slices, newest first. A tenant gets the slices that served its tasks, with its own shares only."""
    async with question.reading() as connection:
        found = await _slices(connection, question.tenant, request)
    kept, has_more = page(found, request.most)
    return SlicesAnswer(slices=kept, before=kept[-1].number if has_more else None)


async def answer_moves(question: Question, _: AskMoves) -> MovesAnswer:
    """All measured moves. Raises: Reject for a tenant."""
    _require_operator(question, "moves")
    async with question.reading() as connection:
        return MovesAnswer(moves=fitting(await _moves(connection)))


async def answer_trace(question: Question, request: AskTrace) -> TraceAnswer:
    """A page of traced tasks, which ends with the task that fills half of PAGE_BYTES. Raises: Reject for a tenant."""
    _require_operator(question, "trace")
    kept, cursor, size = list[TracedTask](), request.cursor, 0
    while size < PAGE_BYTES // 2:
        async with question.reading() as connection:
            rows = await steps_of_next(connection, after=cursor, since_s=request.since_s, most=MAX_STEPS)
        if not rows:
            return TraceAnswer(tasks=kept, cursor=None)
        one = await asyncio.to_thread(traced_task, rows)
        kept.append(one)
        cursor, size = one.task, size + len(one.model_dump_json())
    return TraceAnswer(tasks=kept, cursor=cursor)


def _require_operator(question: Question, verb: str) -> None:
    if question.tenant is not None:
        raise Reject(f"{verb}: only operators may ask this; `executors` and `slices` have what concerns tenant '{question.tenant}'")


_S = "extract(epoch FROM {0})::float8 AS {1}"
_EXECUTORS = text(f"""
SELECT accelerator, executor, pool, service, state, tier, held, is_holder, {_S.format("since", "since_s")},
       {_S.format("waiting_since", "waiting_since_s")}, wake_s, switch_share::float8, parked_s::float8, device_bytes, host_bytes, fault,
       {_S.format("retry_at", "retry_s")}, (a.spec ->> 'memory_gib')::float8 AS memory_gib
FROM pool_status JOIN accelerators a ON a.id = accelerator
WHERE CAST(:pool AS text) IS NULL OR pool = :pool ORDER BY accelerator, executor
""")


async def shown_executors(connection: AsyncConnection, pool: str | None, *, for_operator: bool) -> list[ExecutorOf]:
    """Executors by accelerator and name. Bytes and faults, which contain paths, are shown only to operators."""
    found: list[ExecutorOf] = []
    for row in (await connection.execute(_EXECUTORS, {"pool": pool})).mappings():
        tier, is_measured = Tier(row["tier"]), row["wake_s"] is not None
        wake_s = row["wake_s"] if is_measured else prior_s(tier, Tier.DEVICE, row["device_bytes"], Rates())
        values = {**row, "wake_s": None if row["state"] == "awake" else wake_s, "is_measured": is_measured}
        if (unfit := misfit(row["accelerator"], row["service"], row["pool"], row["device_bytes"], row["memory_gib"])) is not None:
            values |= {"fault": unfit.sentence, "wake_s": None, "retry_s": None}
        if not for_operator:
            values |= {"device_bytes": 0, "host_bytes": 0, "fault": None, "retry_s": None}
        found.append(ExecutorOf.model_validate(values))
    return found


_MOMENTS = ", ".join(_S.format(f"s.{name}_at", f"{name}_s") for name in ("ordered", "awake", "asked", "ended"))
_SLICES = text(f"""
SELECT s.number, s.accelerator, s.epoch, s.executor, s.pool, s.function, s.reason, s.from_tier, s.to_tier, {_MOMENTS}, s.ended,
       s.expected_s, s.switch_ms, s.busy_ms, s.idle_ms, s.score_ms,
       (SELECT coalesce(json_agg(json_build_object('task', h.task, 'ms', h.ms) ORDER BY h.ms DESC, h.task), '[]') FROM slice_shares h
        WHERE h.accelerator = s.accelerator AND h.epoch = s.epoch
          AND (CAST(:tenant AS text) IS NULL OR h.tenant = :tenant)) AS shares
FROM slices s
WHERE (CAST(:before AS int) IS NULL OR s.number < :before) AND (CAST(:accelerator AS text) IS NULL OR s.accelerator = :accelerator)
  AND (CAST(:since_s AS float8) IS NULL OR s.ordered_at >= to_timestamp(:since_s))
  AND (CAST(:tenant AS text) IS NULL OR EXISTS (
      SELECT FROM slice_shares h WHERE h.accelerator = s.accelerator AND h.epoch = s.epoch AND h.tenant = :tenant))
ORDER BY s.number DESC LIMIT :most
""")


async def _slices(connection: AsyncConnection, tenant: str | None, asked: AskSlices) -> list[SliceOf]:
    """Slices, newest first. `tenant`: only slices that served its tasks, with its own shares only; None: all slices."""
    given = {"tenant": tenant, "before": asked.before, "accelerator": asked.accelerator, "since_s": asked.since_s, "most": asked.most}
    rows = (await connection.execute(_SLICES, given)).mappings()
    return [SliceOf.model_validate({**row, "shares": [ShareOf(**one) for one in row["shares"]]}) for row in rows]


_MOVES = text(f"""
SELECT accelerator, executor, from_tier, to_tier, n, p50_s, p90_s, bytes_per_s::float8, {_S.format("latest_at", "latest_s")}
FROM move_costs ORDER BY accelerator, executor, from_tier, to_tier
""")


async def _moves(connection: AsyncConnection) -> list[MoveOf]:
    return [MoveOf.model_validate(dict(row)) for row in (await connection.execute(_MOVES)).mappings()]


# generate_s: on a shared accelerator, busy time of the slices that served the step, prorated to their overlap with the step. Latencies of
# its trajectories would include waiting for other pools. On an exclusive accelerator it is NULL and derived from the latencies instead.
_STEPS_OF = """
SELECT t.id AS task, t.tenant, t.pool, n.weight, extract(epoch FROM t.submitted_at)::float8 AS submitted_s, s.version,
       extract(epoch FROM s.first_admitted_at)::float8 AS at_s,
       extract(epoch FROM s.last_scored_at - s.first_admitted_at)::float8 - (s.parked_ms - s.first_parked_ms) / 1000.0 AS rollout_s,
       extract(epoch FROM s.finished_at - s.started_at)::float8 AS trained_s, (s.metrics ->> 'score_s')::float8 AS score_s,
       played.trajectories, shared.generate_s
FROM ({}) t
JOIN tenants n ON n.id = t.tenant
JOIN LATERAL (SELECT * FROM steps d WHERE d.task = t.id AND d.state = 'trained' AND d.finished_at IS NOT NULL
              ORDER BY d.version DESC LIMIT :most) s ON true
LEFT JOIN LATERAL (
    SELECT json_agg(json_build_array(j.turns, greatest(j.away_ms, j.env_ms) / 1000.0,
                                     extract(epoch FROM j.scored_at - g.admitted_at)::float8)) AS trajectories
    FROM groups g JOIN trajectories j ON j.task = g.task AND j."group" = g.number
    WHERE g.task = t.id AND g.step = s.version AND j.scored_at IS NOT NULL) played ON true
LEFT JOIN LATERAL (
    SELECT sum(h.ms::float8 * i.busy_ms / nullif(i.switch_ms + i.busy_ms + i.idle_ms, 0)
               * extract(epoch FROM least(i.ended_at, s.last_scored_at) - greatest(i.awake_at, s.first_admitted_at))::float8
               / nullif(extract(epoch FROM i.ended_at - i.awake_at)::float8, 0)) / 1000 AS generate_s
    FROM slice_shares h JOIN slices i ON i.accelerator = h.accelerator AND i.epoch = h.epoch
    WHERE h.task = t.id AND i.function = 'generate' AND i.awake_at < s.last_scored_at AND i.ended_at > s.first_admitted_at) shared ON true
ORDER BY t.id, s.version
"""
_STEPS = text(
    _STEPS_OF.format("""SELECT * FROM tasks WHERE (CAST(:after AS text) IS NULL OR id > :after) AND EXISTS (
    SELECT FROM steps d WHERE d.task = tasks.id AND d.state = 'trained' AND d.finished_at IS NOT NULL
    AND (CAST(:since_s AS float8) IS NULL OR d.trained_at >= to_timestamp(:since_s))) ORDER BY id LIMIT 1""")
)
_RUNNING_STEPS = text(_STEPS_OF.format("SELECT * FROM tasks WHERE state = 'running' AND pool = ANY(CAST(:pools AS text[]))"))


StepRows = Sequence[RowMapping]
"""Steps with their trajectories. Computing phases from them is slow: do it outside of transactions and off the event loop."""


async def steps_of_next(connection: AsyncConnection, *, after: str | None, since_s: float | None, most: int) -> StepRows:
    """Up to `most` latest steps of the first task by id after `after` that trained a step since `since_s`; empty if no task did."""
    return (await connection.execute(_STEPS, {"after": after, "since_s": since_s, "most": most})).mappings().all()


def traced_task(rows: StepRows) -> TracedTask:
    """Trace of the task that has these steps; `rows` is not empty."""
    first = rows[0]
    named = {name: first[name] for name in ("task", "tenant", "pool", "weight")}
    return TracedTask(**named, at_s=first["submitted_s"], steps=[_phases(row) for row in rows])


async def running_steps(connection: AsyncConnection, pools: Collection[str], most: int) -> StepRows:
    """Latest trained steps, up to `most`, of each running task of these pools; ordered by task and version."""
    return (await connection.execute(_RUNNING_STEPS, {"pools": sorted(pools), "most": most})).mappings().all()


def phases_of(rows: StepRows) -> dict[str, list[StepPhases]]:
    """Phases of steps by task, in the order of `rows`."""
    found: dict[str, list[StepPhases]] = {}
    for row in rows:
        found.setdefault(row["task"], []).append(_phases(row))
    return found


def _phases(row: RowMapping) -> StepPhases:
    rollout_s = max(0.0, float(row["rollout_s"]))
    played = [Trajectory(turns, away_s, min(took_s, rollout_s)) for turns, away_s, took_s in row["trajectories"] or []]
    sampled = occupancy(played, None if row["generate_s"] is None else float(row["generate_s"]))
    trained_s = max(0.0, float(row["trained_s"]))
    score_s = min(trained_s, max(0.0, float(row["score_s"] or 0)))
    return StepPhases(
        version=row["version"],
        at_s=row["at_s"],
        turns=max(1, sampled.visits),
        generate_s=sampled.generate_s,
        environment_s=sampled.environment_s,
        train_s=trained_s - score_s,
        score_s=score_s,
    )


_POOLS = text("""
SELECT e.pool, array_agg(DISTINCT e.accelerator ORDER BY e.accelerator) AS accelerators, bool_and(e.state <> 'awake') AS is_parked,
       max(extract(epoch FROM c.parked_since))::float8 AS parked_since_s
FROM executors e LEFT JOIN pool_clocks c ON c.pool = e.pool
WHERE e.service = 'rollout' AND e.pool = ANY(CAST(:pools AS text[])) GROUP BY e.pool
""")


@dataclass(frozen=True)
class PoolState:
    """State of a pool whose samplers share accelerators."""

    accelerators: list[str]
    is_parked: bool
    parked_since_s: float | None
    wakes_in_s: float | None
    """Seconds until a sampler is expected to wake; None if a sampler is awake, has no work, or does not fit on its accelerator."""


async def pool_states(connection: AsyncConnection, pools: Collection[str]) -> dict[str, PoolState]:
    """State by pool, for pools with recorded samplers."""
    found: dict[str, PoolState] = {}
    for row in (await connection.execute(_POOLS, {"pools": sorted(pools)})).all():
        wait = (await accelerator_waits(connection, row.pool)).get("rollout") if row.is_parked else None
        parked_since_s = row.parked_since_s if row.is_parked else None
        wakes_in_s = wait.left_s if wait is not None and wait.has_work and wait.misfit is None else None
        found[row.pool] = PoolState(row.accelerators, row.is_parked, parked_since_s, wakes_in_s)
    return found


_WAITING = text("""
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
    """Shortest wait by service, rollout or trainer; omits services with an awake executor."""
    found: dict[str, AcceleratorWait] = {}
    awake = set[str]()
    for row in (await connection.execute(_WAITING, {"pool": pool})).all():
        wake_s = prior_s(Tier(row.tier), Tier.DEVICE, row.device_bytes, Rates()) if row.wake_s is None else row.wake_s
        unfit = misfit(row.accelerator, row.service, pool, row.device_bytes, row.memory_gib)
        wait = AcceleratorWait(row.accelerator, wake_s, row.usual_s, row.waited_s, row.is_held, row.faults, unfit, row.has_work)
        if row.state == ExecutorState.AWAKE:
            awake.add(row.service)
        elif row.service not in found or wait.left_s < found[row.service].left_s:
            found[row.service] = wait
    return {service: wait for service, wait in found.items() if service not in awake}
