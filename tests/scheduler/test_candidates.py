"""Candidates found by indexes lead to the admissions that the pure decision over all tasks makes."""

import random

import pytest
from sqlalchemy import text

from common.spec import parse_spec
from scheduler_svc.decisions.admission import Admission, groups_to_admit
from scheduler_svc.decisions.shares import Capacity
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import candidates, tasks
from scheduler_svc.store.queries.candidates import Candidates
from tests.scheduler.stages import spec

FEW = 4
ALL = 10**4


@pytest.mark.parametrize("seed", range(5))
async def test_few_candidates_lead_to_the_same_admissions_as_all(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    async with database.transaction() as tx:
        for number in range(60):
            tenant = f"n{rng.randrange(9)}"
            await tasks.add_task(tx.connection, f"t{number}", parse_spec(spec(name=f"t{number}", tenant=tenant, priority=rng.randrange(2))))
            progress = {"task": f"t{number}", "time": rng.randrange(5) * 100.0, "admitted": rng.choice([0, 3, 4]), "state": "running"}
            await tx.connection.execute(
                text("UPDATE tasks SET virtual_time = :time, admitted = :admitted, state = :state WHERE id = :task"), progress
            )
        await tx.connection.execute(text("UPDATE tasks SET state = 'paused' WHERE id IN ('t1', 't2')"))
        await tx.connection.execute(
            text("UPDATE tenants SET virtual_time = 100 * (right(id, 1)::int % 4), weight = 1 + (right(id, 1)::int % 2)")
        )
        few = await candidates.least_served_tasks(tx.connection, {"tiny"}, limit=FEW)
        all_waiting = await candidates.least_served_tasks(tx.connection, {"tiny"}, limit=ALL)
    assert len(few.tasks) < len(all_waiting.tasks)
    assert {claim.task for claim in all_waiting.tasks}.isdisjoint({"t1", "t2"})
    assert all(claim.allowance > 0 for claim in all_waiting.tasks)
    assert _admitted(few) == _admitted(all_waiting)


def _admitted(found: Candidates) -> list[Admission]:
    return groups_to_admit(found.tasks, found.tenants, {"tiny": Capacity(10**9, 10**12)}, {}, limit=FEW).groups
