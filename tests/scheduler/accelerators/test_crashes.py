"""A scheduler that is killed at each decision about a shared accelerator, as a process; the next one continues."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.resilience.crashpoints import SLICES
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.database_rules import examine_database
from tests.support.scheduler.executors import Device, Executor, a_scheduler, open_group, task_row
from tests.support.scheduler.statements import execute
from tests.support.services import service_process, without_settings
from tests.support.waiting import at_work, eventually

POOLS_FILE = """
[accelerator.a]
device = "cpu"
cores = "1"
memory_gib = 1.0
[one]
model = "{model}"
on = "a"
[two]
model = "{model}"
on = "a"
"""


@pytest.mark.parametrize("point", SLICES)
async def test_scheduler_killed_at_a_decision_is_followed_by_another(
    bus: Bus, database_url: str, nats_url: str, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "pools.toml"
    file.write_text(POOLS_FILE.format(model=Path("models/tiny").resolve()))
    settings = without_settings() | {"MARLAAS_NATS_URL": nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": database_url}
    settings |= {"MARLAAS_POOLS_FILE": str(file), "MARLAAS_HTTP_PORT": "0", "MARLAAS_CRASH_POINT": f"{point}:1"}
    async with await Database.connect(database_url) as database, executors_at_work(bus) as (device, one, two):
        await execute(database, *task_row("t2", "two"), open_group("t2"))
        with service_process("scheduler_svc", settings, tmp_path / "log") as scheduler:
            await one.has_work(1)
            if point.endswith("_end"):  # its pool has no running task, so that its slice ends without a next one
                await one.wakes()
                await one.works()
            await eventually(lambda: scheduler.poll() is not None)
            assert scheduler.returncode == -signal.SIGKILL
        await one.has_work(0)
        await two.has_work(1)
        async with a_scheduler(bus, database_url):
            await two.wakes()
            await two.works(t2=1)
            await one.wakes_for(1)
            await eventually(lambda: _is_booked(database))
        assert device.awake[-2:] == ["rollout-two", "rollout-one"]
        async with database.transaction() as tx:
            shares = "SELECT count(*), sum(tokens) = (SELECT sum(ms) FROM slice_shares WHERE task = 't2') FROM ledger WHERE task = 't2'"
            assert tuple((await tx.connection.execute(text(shares))).one()) == (1, True)
            assert [each for each in await examine_database(tx.connection) if "slice" in each.rule or "clock" in each.rule] == []


@asynccontextmanager
async def executors_at_work(bus: Bus) -> AsyncGenerator[tuple[Device, Executor, Executor]]:
    device = Device()
    one, two = Executor(bus, device, "rollout", "one"), Executor(bus, device, "rollout", "two")
    async with at_work(one.run()), at_work(two.run()):
        yield device, one, two


async def _is_booked(database: Database) -> bool:
    async with database.transaction() as tx:
        unbooked = text("SELECT count(*) FROM slices WHERE ended_at IS NOT NULL AND booked_at IS NULL")
        return (await tx.connection.execute(unbooked)).scalar_one() == 0
