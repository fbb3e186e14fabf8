"""Queries for clients: steps, evaluations and versions of one task, and its spec."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, Text, func, select, tuple_, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from common.evaluation import Asked, packed
from common.messages import AdapterRef, EvaluationOf, StepDurations, StepOf, StepTimes, VersionOf, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.base.sql import Rows, in_state
from scheduler_svc.base.states import EvaluationState, GroupState, StepState
from scheduler_svc.base.tables import evaluations, groups, ledger, steps, stored_blobs, tasks, trajectories
from scheduler_svc.training.decisions.evaluation import LATEST_STEPS, Judged, best_version, prompt_of
from scheduler_svc.training.queries.tasks import Task, accepted_spec


@dataclass(frozen=True)
class AskedTask:
    id: str
    version: int
    spec: TaskSpec
    submission: str


async def asked_task(connection: AsyncConnection, tenant: str | None, task: str) -> AskedTask | None:
    """The tenant's task; None if the tenant has no such task, even if another tenant does."""
    statement = select(tasks.c.version, tasks.c.spec, tasks.c.submission).where(tasks.c.id == task)
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    return AskedTask(task, row.version, accepted_spec(task, row.spec), row.submission) if row else None


# --------------------------------------------------------------------------------------------------------------- steps


async def steps_after(connection: AsyncConnection, task: str, version: int, every: int, *, most: int) -> list[StepOf]:
    """Up to `most` steps that produced versions above `version`, by version. `every`: as in `AskSteps`."""
    trained = (ledger.c.task == task) & (ledger.c.kind == "trained") & (ledger.c.number == steps.c.version + 1)
    statement = (
        select(steps, ledger.c.tokens.label("trained_tokens"))
        .select_from(steps.outerjoin(ledger, trained))
        .where(steps.c.task == task, steps.c.version >= version)
        .order_by(steps.c.version)
        .limit(most)
    )
    if every > 1:
        statement = _thinned(statement, task, every)
    rows = (await connection.execute(statement)).all()
    if not rows:
        return []
    numbers = await _groups_of(connection, task, [row.version for row in rows])
    return [_step(row, numbers.get(row.version, [])) for row in rows]


def _thinned(statement: Select[Any], task: str, every: int) -> Select[Any]:
    """`statement` limited to every `every`-th step, plus the first and last trained step; adds the tokens sampled up to each step."""
    trained = steps.c.task == task, in_state(steps.c.state, StepState.TRAINED)
    ends = union_all(*(select(end(steps.c.version)).where(*trained) for end in (func.min, func.max)))
    total = func.sum(steps.c.sampled_tokens).over(order_by=steps.c.version).cast(BigInteger).label("total_sampled_tokens")
    totals = select(steps.c.version, total).where(steps.c.task == task).subquery()
    kept = ((steps.c.version + 1) % every == 0) | steps.c.version.in_(ends)
    return statement.add_columns(totals.c.total_sampled_tokens).where(totals.c.version == steps.c.version, kept)


async def _groups_of(connection: AsyncConnection, task: str, versions: Sequence[int]) -> dict[int, list[int]]:
    """Numbers of the groups in the steps that train from `versions`, by version."""
    statement = (
        select(groups.c.step, func.array_agg(groups.c.number).label("numbers"))
        .where(groups.c.task == task, groups.c.step.in_(versions), in_state(groups.c.state, GroupState.BATCHED, GroupState.TRAINED))
        .group_by(groups.c.step)
    )
    return {row.step: sorted(row.numbers) for row in (await connection.execute(statement)).all()}


def _step(row: Any, numbers: list[int]) -> StepOf:
    admitted_s, first_s, last_s = (one.timestamp() for one in (row.first_admitted_at, row.first_scored_at, row.last_scored_at))
    batched_s = row.batched_at.timestamp()
    started_s, trained_s, advanced_s = (one and one.timestamp() for one in (row.started_at, row.finished_at, row.trained_at))
    return StepOf(
        version=row.version + 1,
        state=row.state,
        reward=row.reward,
        staleness_mean=row.staleness_mean,
        staleness_max=row.staleness_max,
        sampled_tokens=row.sampled_tokens,
        total_sampled_tokens=getattr(row, "total_sampled_tokens", None),
        trained_tokens=row.trained_tokens,
        groups=numbers,
        metrics=row.metrics,
        times=StepTimes(
            first_admitted_s=admitted_s,
            first_sampled_s=first_s,
            last_sampled_s=last_s,
            batched_s=batched_s,
            started_s=started_s,
            trained_s=trained_s,
            advanced_s=advanced_s,
        ),
        durations=StepDurations(
            sampling_s=last_s - admitted_s,
            wait_for_batch_s=batched_s - last_s,
            wait_for_trainer_s=_between(batched_s, started_s),
            training_s=_between(started_s, trained_s),
            publishing_s=_between(trained_s, advanced_s),
        ),
    )


def _between(first_s: float | None, last_s: float | None) -> float | None:
    return None if first_s is None or last_s is None else last_s - first_s


# ------------------------------------------------------------------------------------------------------------ versions


async def versions_after(connection: AsyncConnection, task: AskedTask, version: int, best: int | None, *, most: int) -> list[VersionOf]:
    """Up to `most` stored versions above `version`, by version. `best`: the task's best version."""
    statement = (
        select(steps.c.version, steps.c.adapter, steps.c.reward, steps.c.trained_at)
        .where(steps.c.task == task.id, steps.c.version >= version, in_state(steps.c.state, StepState.TRAINED))
        .where(select(stored_blobs.c.name).where(*_adapters_of(task.id), stored_blobs.c.version == steps.c.version + 1).exists())
        .order_by(steps.c.version)
        .limit(most)
    )
    found: list[VersionOf] = []
    for row in (await connection.execute(statement)).all():
        adapter = from_json(AdapterRef, row.adapter)
        found.append(
            VersionOf(
                version=adapter.version,
                adapter_bytes=adapter.blob.size_bytes,
                sha256=adapter.blob.sha256,
                rank=adapter.rank,
                advanced_s=row.trained_at.timestamp(),
                reward=row.reward,
                is_best=adapter.version == best,
                is_latest=adapter.version == task.version,
            )
        )
    return found


async def stored_versions(connection: AsyncConnection, task: str) -> frozenset[int]:
    """Versions whose adapters are stored."""
    return frozenset((await connection.execute(select(stored_blobs.c.version).distinct().where(*_adapters_of(task)))).scalars())


async def best_of(connection: AsyncConnection, task: AskedTask | Task, stored: Collection[int]) -> int | None:
    """The task's best version among `stored`; None if there is none."""
    wanted = task.spec.evaluation
    evaluated = select(evaluations.c.version, evaluations.c.reward, evaluations.c.lower_bound).where(
        evaluations.c.task == task.id,
        evaluations.c.protocol == wanted.protocols[0].name,
        in_state(evaluations.c.state, EvaluationState.FINISHED),
        evaluations.c.reward.is_not(None),
    )
    trained = select(steps.c.version + 1, steps.c.reward).where(steps.c.task == task.id, in_state(steps.c.state, StepState.TRAINED))
    latest = (await connection.execute(trained.order_by(steps.c.version.desc()).limit(LATEST_STEPS))).all()
    judged = [Judged(*row) for row in (await connection.execute(evaluated)).all()]
    return best_version(judged, [(version, reward) for version, reward in reversed(latest)], stored, by_mean=wanted.decide_by == "mean")


def _adapters_of(task: str) -> tuple[Any, ...]:
    """Conditions on `stored_blobs` for the task's adapters."""
    return stored_blobs.c.task == task, stored_blobs.c.kind == "adapter"


# --------------------------------------------------------------------------------------------------------- evaluations

_wanted = Rows("wanted", version=Integer, protocol=Text)


async def evaluations_after(
    connection: AsyncConnection, task: AskedTask, after: tuple[int, str], best: int | None, *, most: int
) -> list[EvaluationOf]:
    """Up to `most` finished evaluations above `after`, ordered by (version, protocol)."""
    key = tuple_(evaluations.c.version, evaluations.c.protocol)
    statement = (
        select(evaluations)
        .where(evaluations.c.task == task.id, in_state(evaluations.c.state, EvaluationState.FINISHED), key > after)
        .order_by(evaluations.c.version, evaluations.c.protocol)
        .limit(most)
    )
    rows = (await connection.execute(statement)).all()
    by_prompt = await _rewards_by_prompt(connection, task.id, [(row.version, row.protocol) for row in rows])
    return [_evaluation(task.spec, row, by_prompt.get((row.version, row.protocol), {}), best) for row in rows]


async def _rewards_by_prompt(
    connection: AsyncConnection, task: str, wanted: Collection[tuple[int, str]]
) -> dict[tuple[int, str], dict[int, float]]:
    """Mean rewards of scored attempts: by (version, protocol), then by prompt."""
    of, members = groups.c, trajectories.c
    statement = (
        select(of.version, of.protocol, of.row, func.avg(members.reward).label("reward"))
        .join(trajectories, (members.task == of.task) & (members.group == of.number))
        .where(of.task == task, tuple_(of.version, of.protocol).in_(select(_wanted.c.version, _wanted.c.protocol)))
        .where(members.reward.is_not(None))
        .group_by(of.version, of.protocol, of.row)
    )
    found: dict[tuple[int, str], dict[int, float]] = {}
    for row in (await connection.execute(statement, _wanted.of(wanted))).all() if wanted else ():
        found.setdefault((row.version, row.protocol), {})[prompt_of(row.row)] = row.reward
    return found


def _evaluation(spec: TaskSpec, row: Any, by_prompt: dict[int, float], best: int | None) -> EvaluationOf:
    protocol = spec.evaluation.named(row.protocol)
    decides = protocol == spec.evaluation.protocols[0]
    report = row.results | {
        "version": row.version,
        "protocol": row.protocol,
        "reward": row.reward,
        "took_s": (row.finished_at - row.planned_at).total_seconds(),
        "asked": as_json(Asked.by(spec, protocol)),
        "by_prompt": packed(by_prompt, protocol.prompts),
    }
    return EvaluationOf(
        version=row.version,
        protocol=row.protocol,
        finished_s=row.finished_at.timestamp(),
        is_best=decides and row.version == best,
        report=report,
    )
