"""Statements of a step: of tasks whose steps come together, all share them, so that eight tasks need as many as one."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from common import streams
from common.bus import Delivery, Outgoing
from common.messages import EnvironmentChecked, OpenGroup, SubmitTask, TrainBatch, WeightUpdated
from common.streams import KIND_HEADER
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training import admission, environment_checks
from scheduler_svc.training.results import scores, weight_updates
from scheduler_svc.training.submission import Catalog
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.deletion.storage import superseded_blobs
from scheduler_svc.verbs import jobs
from tests.scheduler.pool_times import never_parked
from tests.support.scheduler.stages import POOLS, scored, spec, updated

POLICY = SchedulingPolicy.ASYNCHRONOUS
CAPACITY = {"tiny": Capacity(sequences=1000, kv_tokens=10**6)}
STATEMENTS = {"admit": 10, "settle": 15, "advance": 9, "collect": 5}
"""Maximum of each of a step's transactions, BEGIN and COMMIT included."""
STEPS = 4


class Counted:
    """A scheduler's transactions, one after the other on one connection, whose messages to the server libpq writes down."""

    def __init__(self, database: Database, file: Path) -> None:
        self._database = database
        self._file = file
        self._sequence = 0
        self.statements: Counter[str] = Counter()
        self.commits = 0
        self.sent: list[outbox.OutboxRow] = []
        """What the last transaction has posted."""

    async def run(self, name: str, action: Callable[[Transaction], Awaitable[Any]]) -> Any:
        with self._file.open("w+") as trace:
            async with self._database.transaction() as tx:
                server: Any = (await tx.connection.get_raw_connection()).driver_connection
                server.pgconn.trace(trace.fileno())
                found = await action(tx)
            server.pgconn.untrace()
            trace.seek(0)
            said = [line.split("\t") for line in trace if "\tF\t" in line]
        kinds = Counter(line[3] for line in said)
        self.statements[name] += kinds["Execute"] + kinds["Query"]
        self.commits += sum("COMMIT" in line[-1] for line in said)
        return found

    async def relay(self) -> None:
        async with self._database.transaction() as tx:
            self.sent = await outbox.oldest_rows(tx.connection, 1000)
            if self.sent:
                await outbox.delivered(tx.connection, [row.id for row in self.sent])

    def stored(self, out: Outgoing) -> Delivery:
        self._sequence += 1
        return Delivery(out.subject, {KIND_HEADER: out.message.kind, **out.headers}, out.message.encode(), self._sequence, 1)


@pytest.mark.parametrize("tasks", [1, 8])
async def test_steps_of_all_tasks_share_their_statements(database: Database, tmp_path: Path, tasks: int) -> None:
    counted = Counted(database, tmp_path / "trace")
    for number in range(tasks):
        raw = spec(f"t{number}", steps=STEPS + 1, algorithm={"group_size": 2, "groups_per_step": 2, "max_staleness": 0})
        job = counted.stored(Outgoing(streams.job("submit", "acme"), SubmitTask(task=f"t{number}", tenant="acme", spec=raw), ""))
        await counted.run("begin", lambda tx, job=job: jobs.take_job(tx, job, Catalog(POOLS, {"toy"}), POLICY))
        checked = EnvironmentChecked(tenant="acme", task=f"t{number}", objection=None)
        await counted.run("begin", lambda tx, checked=checked: environment_checks.environment_checked(tx, checked))
    counted.statements.clear()
    counted.commits = 0
    for _ in range(STEPS):
        await counted.relay()
        await counted.run("admit", lambda tx: admission.admit(tx, CAPACITY, POLICY, never_parked(time.time())))
        await counted.relay()
        opened = [OpenGroup.decode(row.body).group for row in counted.sent if row.subject.startswith("prompts.open.")]
        assert len(opened) == 2 * tasks
        arrived = [counted.stored(scored(group, member, reward=member)) for group in opened for member in range(group.size)]
        await counted.run("settle", lambda tx, arrived=arrived: scores.trajectories_scored(tx, arrived, POLICY))
        await counted.relay()
        batches = [TrainBatch.decode(row.body) for row in counted.sent if row.subject.startswith("trajectories.batch.")]
        assert len(batches) == tasks
        made = [message for batch in batches if isinstance(message := updated(batch).message, WeightUpdated)]
        advanced = await counted.run("advance", lambda tx, made=made: weight_updates.weights_updated(tx, made, POLICY))
        assert len(advanced) == tasks
        await counted.run("collect", lambda tx, advanced=advanced: superseded_blobs(tx.connection, advanced))
    per_step = {name: count / STEPS for name, count in counted.statements.items()}
    assert all(per_step[name] <= most for name, most in STATEMENTS.items()), per_step
    assert counted.commits == 4 * STEPS
