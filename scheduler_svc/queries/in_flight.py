"""How much work is in flight, of training and of evaluations: one statement."""

from sqlalchemy import func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.admission import InFlight
from scheduler_svc.queries.parameters import in_state
from scheduler_svc.queries.statement import Statement
from scheduler_svc.states import EvaluationGroupState, TrajectoryState
from scheduler_svc.tables import evaluation_groups, evaluation_members, tasks, trajectories

_training = (
    select(tasks.c.pool, func.count().label("sequences"), func.sum(tasks.c.trajectory_tokens).label("tokens"))
    .join(trajectories, trajectories.c.task == tasks.c.id)
    .where(in_state(trajectories.c.state, TrajectoryState.OPEN))
    .group_by(tasks.c.pool)
)
_scored = (
    select(func.count())
    .where(evaluation_members.c.task == evaluation_groups.c.task, evaluation_members.c.number == evaluation_groups.c.number)
    .scalar_subquery()
)
_missing = evaluation_groups.c.size - _scored
_evaluation = (
    select(tasks.c.pool, func.sum(_missing), func.sum(_missing * tasks.c.trajectory_tokens))
    .join(tasks, tasks.c.id == evaluation_groups.c.task)
    .where(in_state(evaluation_groups.c.state, EvaluationGroupState.OPEN))
    .group_by(tasks.c.pool)
)
_IN_FLIGHT = Statement(union_all(_training, _evaluation))


async def work_in_flight(connection: AsyncConnection) -> dict[str, InFlight]:
    """Per pool: open members, and the tokens that they may still come to."""
    found: dict[str, InFlight] = {}
    for row in await _IN_FLIGHT.run(connection):
        found[row.pool] = found.get(row.pool, InFlight()) + InFlight(int(row.sequences), float(row.tokens))
    return found
