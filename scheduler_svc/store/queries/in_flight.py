"""Query on the work in flight, of training and of evaluations: one statement."""

from sqlalchemy import func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.shares import InFlight, Load
from scheduler_svc.store.queries.sql.parameters import in_state
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.states import EvaluationGroupState, TrajectoryState
from scheduler_svc.store.tables import evaluation_groups, evaluation_members, tasks, tenants, trajectories

_training = (
    select(trajectories.c.task, func.count().label("sequences"))
    .where(in_state(trajectories.c.state, TrajectoryState.OPEN))
    .group_by(trajectories.c.task)
)
_scored = (
    select(func.count())
    .where(evaluation_members.c.task == evaluation_groups.c.task, evaluation_members.c.number == evaluation_groups.c.number)
    .scalar_subquery()
)
_evaluation = (
    select(evaluation_groups.c.task, func.sum(evaluation_groups.c.size - _scored))
    .where(in_state(evaluation_groups.c.state, EvaluationGroupState.OPEN))
    .group_by(evaluation_groups.c.task)
)
_open = union_all(_training, _evaluation).subquery("open")
_IN_FLIGHT = Statement(
    select(_open.c.task, _open.c.sequences, tasks.c.pool, tasks.c.trajectory_tokens, tasks.c.tenant, tenants.c.weight).select_from(
        _open.join(tasks, tasks.c.id == _open.c.task).join(tenants, tenants.c.id == tasks.c.tenant)
    )
)


async def work_in_flight(connection: AsyncConnection) -> dict[str, InFlight]:
    """Open members and their maximum tokens, by pool."""
    found: dict[str, InFlight] = {}
    for row in await _IN_FLIGHT.run(connection):
        load = Load(int(row.sequences), float(row.sequences * row.trajectory_tokens))
        found.setdefault(row.pool, InFlight()).add(row.tenant, row.weight, row.task, load)
    return found
