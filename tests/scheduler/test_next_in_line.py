"""Who admits next, found by indexes, is who the pure decision over all tasks would choose."""

import random

import pytest
from sqlalchemy import text

from common.spec import parse_spec
from scheduler_svc.decisions.admission import Admission, groups_to_admit
from scheduler_svc.decisions.min_share import Capacity
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import tasks
from scheduler_svc.store.queries.tasks import Candidates
from tests.scheduler.stages import spec

MOST = 4
EVERYBODY = 10**4


@pytest.mark.parametrize("seed", range(5))
async def test_a_look_at_few_tasks_admits_what_a_look_at_all_would(database_url: str, seed: int) -> None:
    rng = random.Random(seed)
    database = await Database.connect(database_url)
    try:
        async with database.transaction() as connection:
            for number in range(60):
                tenant = f"n{rng.randrange(9)}"
                await tasks.add_task(
                    connection, f"t{number}", parse_spec(spec(name=f"t{number}", tenant=tenant, priority=rng.randrange(2)))
                )
                progress = {"task": f"t{number}", "time": rng.randrange(5) * 100.0, "admitted": rng.choice([0, 3, 4]), "state": "running"}
                await connection.execute(
                    text("UPDATE tasks SET virtual_time = :time, admitted = :admitted, state = :state WHERE id = :task"), progress
                )
            await connection.execute(text("UPDATE tasks SET state = 'paused' WHERE id IN ('t1', 't2')"))
            await connection.execute(
                text("UPDATE tenants SET virtual_time = 100 * (right(id, 1)::int % 4), weight = 1 + (right(id, 1)::int % 2)")
            )
            few = await tasks.least_served_tasks(connection, {"tiny"}, most=MOST)
            everybody = await tasks.least_served_tasks(connection, {"tiny"}, most=EVERYBODY)
        assert len(few.tasks) < len(everybody.tasks)
        assert {claim.task for claim in everybody.tasks}.isdisjoint({"t1", "t2"})
        assert all(claim.allowance > 0 for claim in everybody.tasks)
        assert _admitted(few) == _admitted(everybody)
    finally:
        await database.close()


def _admitted(claims: Candidates) -> list[Admission]:
    return groups_to_admit(claims.tasks, claims.tenants, {"tiny": Capacity(10**9, 10**12)}, {}, most=MOST)
