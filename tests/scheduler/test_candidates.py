"""Candidates found by indexes lead to the admissions that the pure decision over all tasks makes."""

import random

import pytest
from sqlalchemy import text

from common.spec import parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training.decisions.admission import Admission, groups_to_admit
from scheduler_svc.training.queries import candidates, tasks
from scheduler_svc.training.queries.candidates import Candidates
from scheduler_svc.training.waiting import waiting_task
from tests.support.scheduler.stages import spec

FEW = 4
ALL = 10**4


@pytest.mark.parametrize("seed", range(5))
async def test_few_candidates_lead_to_the_same_admissions_as_all(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    async with database.transaction() as tx:
        for number in range(60):
            tenant = f"n{rng.randrange(9)}"
            await tasks.add_task(
                tx.connection, f"t{number}", parse_spec(spec(name=f"t{number}", tenant=tenant, priority=rng.randrange(2))), submission=""
            )
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


TWO_TENANTS = """
UPDATE tasks SET state = 'running';
INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES ('a', 'acme', 1, 'adapter', 50), ('b', 'globex', 1, 'adapter', 500);
INSERT INTO limits (tenant, max_stored_bytes, max_adapters) VALUES ('acme', 100, 2);
INSERT INTO evaluations (task, version, state) VALUES ('acme', 0, 'running');
INSERT INTO groups (task, number, version, protocol, row, seed, size, state, charged_tokens)
VALUES ('acme', 1000000000, 0, 'main', 2147483648, 0, 1, 'planned', 0)
"""


async def test_what_others_store_uses_up_no_limit_of_a_tenant(database: Database) -> None:
    async with database.transaction() as tx:
        for tenant in ("acme", "globex"):
            await tasks.add_task(tx.connection, tenant, parse_spec(spec(tenant=tenant)), submission="")
        for statement in TWO_TENANTS.split(";"):
            await tx.connection.execute(text(statement))
        found = await candidates.least_served_tasks(tx.connection, {"tiny"}, limit=FEW)
        evaluated = await candidates.evaluation_candidates(tx.connection, {"tiny"}, limit=FEW)
        again = await candidates.candidates_for(tx.connection, {"acme": 1}, {"tiny"})
        waiting = await waiting_task(tx.connection, "acme", "acme")
        await tx.connection.execute(text("UPDATE limits SET max_stored_bytes = 50 WHERE tenant = 'acme'"))
        full = await candidates.least_served_tasks(tx.connection, {"tiny"}, limit=FEW)
    assert {claim.task for claim in found.tasks} == {"acme", "globex"}
    assert [claim.task for claim in evaluated.tasks] == ["acme"] == [claim.task for claim in again.tasks]
    assert waiting is not None
    assert {name: used for name, _, used in waiting.limits.used} == {"max_stored_bytes": 50, "max_adapters": 1}
    assert [claim.task for claim in full.tasks] == ["globex"]


def _admitted(found: Candidates) -> list[Admission]:
    return groups_to_admit(found.tasks, found.tenants, {"tiny": Capacity(10**9, 10**12)}, {}, limit=FEW).groups
