"""Fair shares of an accelerator by what the service itself knows: what it reads, and whom that lets compute in simulated histories."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from bench.plex.accelerator import SharedAccelerator
from bench.plex.accounts import Accounts, Place
from bench.plex.events import Events
from bench.plex.tasks import RunningTask
from bench.plex.workloads import BUDGET, pool_executors
from common.accelerators import Function
from common.accelerators.trace import ENVIRONMENT, Task
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.knowledge import Knowledge
from scheduler_svc.decisions.accelerators.slice_shares import slice_shares
from scheduler_svc.decisions.accelerators.state import Claim, Rules
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries.accelerators.work import WINDOW_S, Booked, Running
from tests.scheduler.accelerators.executors import ACCELERATORS, POOLS, task_row

SECONDS = 2400.0
DEPLOYED = Deployed.of(ACCELERATORS, POOLS)


def of_tenants(claims: Sequence[Claim]) -> dict[str, tuple[float, float]]:
    return {one.tenant: (round(one.virtual_s, 3), round(one.pool_virtual_s, 3)) for one in claims}


# ------------------------------------------------------------------------------------------------------ what it knows


def slice_row(epoch: int, pool: str, began_s: float, ended_s: float | None, **ms: int) -> list[str]:
    """A slice of accelerator `a` and who paid for it; without `ms` it is not booked."""
    is_booked, whole = "NULL" if not ms else "now()", sum(ms.values())
    end = "NULL, NULL" if ended_s is None else f"to_timestamp({ended_s}), 'switched'"
    return [
        "INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at, ended_at,"
        f" ended, booked_at, switch_ms, busy_ms, idle_ms) VALUES ('a', {epoch}, 'rollout-{pool}', '{pool}', 'generate', 'ratio', '{{}}', 1,"
        f" 'host', to_timestamp({began_s}), {end}, {is_booked}, 0, {whole}, 0)",
        *(
            f"INSERT INTO slice_shares (accelerator, epoch, task, tenant, ms) VALUES ('a', {epoch}, '{tenant}', '{tenant}', {each})"
            for tenant, each in ms.items()
        ),
    ]


async def known(database: Database, now_s: float, *statements: str) -> Knowledge:
    knowledge = Knowledge(DEPLOYED)
    async with database.transaction() as tx:
        await tx.connection.exec_driver_sql("INSERT INTO accelerators (id, spec) VALUES ('a', '{}')")
        for statement in statements:
            await tx.connection.exec_driver_sql(statement)
        await knowledge.read_work(tx.connection, now_s)
    return knowledge


async def test_tenants_have_what_was_booked_in_the_window_and_their_part_of_what_is_not_booked_yet(database: Database) -> None:
    now_s = 10_000.0
    knowledge = await known(
        database,
        now_s,
        *task_row("t1", "one", "heavy"),
        *task_row("t2", "one", "light"),
        *task_row("t3", "two", "other"),
        "UPDATE tenants SET weight = 2 WHERE id = 'other'",
        *slice_row(1, "two", now_s - 5000, now_s - 4000, other=1_000_000),
        *slice_row(2, "two", now_s - WINDOW_S - 100, now_s - WINDOW_S + 100, other=200_000),
        *slice_row(3, "one", now_s - 300, now_s - 200, heavy=90_000, light=10_000),
        *slice_row(4, "two", now_s - 200, now_s - 180),
        *slice_row(5, "one", now_s - 50, None),
        "INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, first_admitted_at,"
        " first_scored_at, last_scored_at) VALUES ('t2', 0, 'batched', 0, 0, 0, 0, now(), now(), now())",
    )
    assert of_tenants(knowledge.claims("a", "one", trains=False)) == {"heavy": (135.0, 135.0), "light": (15.0, 15.0)}
    assert of_tenants(knowledge.claims("a", "one", trains=True)) == {"light": (15.0, 15.0)}, "the other has no batch"
    assert of_tenants(knowledge.claims("a", "two", trains=True)) == {"other": (60.0, 60.0)}, "half of 100 s in the window, and of 20 s"


async def test_two_pools_of_a_single_tenant_have_what_each_was_booked(database: Database) -> None:
    now_s = 10_000.0
    rows = [*task_row("t1", "one"), *task_row("t2", "two"), *slice_row(1, "one", now_s - 90, now_s - 60, acme=30_000)]
    knowledge = await known(database, now_s, *rows)
    assert of_tenants(knowledge.claims("a", "one", trains=False)) == {"acme": (30.0, 30.0)}
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"acme": (30.0, 0.0)}


def test_slice_in_progress_is_its_tenants_in_equal_parts_before_any_was_booked() -> None:
    knowledge = Knowledge(DEPLOYED)
    running = [Running(*place, 1.0, has_batch=False) for place in (("one", "x"), ("one", "y"), ("two", "z"))]
    knowledge.take(running, [Booked("a", None, "one", 40_000)])
    assert of_tenants(knowledge.claims("a", "one", trains=False)) == {"x": (20.0, 20.0), "y": (20.0, 20.0)}
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"z": (0.0, 0.0)}


# ---------------------------------------------------------------------------------------------------------- histories


class OfService(Accounts):
    """Claims of a simulated accelerator as the scheduler's leader has them: by `Knowledge`, from running tasks and slices."""

    def __init__(self, events: Events, tasks: Sequence[Task]) -> None:
        super().__init__()
        self._events = events
        self._knowledge = Knowledge(DEPLOYED)
        self._running = [
            Running(*place, weight, has_batch=False) for place, weight in {(one.pool, one.tenant): one.weight for one in tasks}.items()
        ]
        self._tasks = {one.task: one for one in tasks}
        self._slices: deque[tuple[float, dict[Place, int]]] = deque()
        """Ends and milliseconds by tenant and pool of those booked lately."""
        self._of_all = Counter[Place]()
        self.ms = Counter[Place]()

    def provisional(self, slice_s: float) -> dict[Place, float]:
        found = super().provisional(slice_s)
        while self._slices and self._slices[0][0] < self._events.now_s - WINDOW_S:
            self._of_all.subtract(self._slices.popleft()[1])
        open_ = [Booked("a", None, pool, round(1000 * slice_s)) for pool in {pool for _, pool in found}]
        booked = [Booked("a", tenant, pool, ms) for (tenant, pool), ms in self._of_all.items()]
        self._knowledge.take(self._running, booked + open_)
        return found

    def claims(self, tasks: Iterable[Task], provisional: dict[Place, float]) -> tuple[Claim, ...]:
        return self._knowledge.claims("a", next(iter(tasks)).pool, trains=False)

    def book(self, slice_ms: int, ordered_for: Iterable[str]) -> None:
        ordered_for = list(ordered_for)
        served = {task: round(1000 * seconds) for task, seconds in self._served_s.items()}
        found = Counter[Place]()
        for task, ms in slice_shares(slice_ms, served, ordered_for).items():
            found[self._tasks[task].tenant, self._tasks[task].pool] += ms
        self._slices.append((self._events.now_s, dict(found)))
        self._of_all.update(found)
        self.ms.update(found)
        super().book(slice_ms, ordered_for)


def work_of(tenant: str, pool: str, *, weight: float = 1.0, environment_s: float = 0.0, tasks: int = 6) -> list[Task]:
    """Tasks of a tenant; without `environment_s` they always have work."""
    away = ((ENVIRONMENT, environment_s),) if environment_s else ()
    step = ((Function.GENERATE, 1.0), *away, (Function.TRAIN, 1.0))
    return [Task(f"{tenant}-{pool}-{number}", tenant, pool, 0.0, (step,) * round(SECONDS), weight) for number in range(tasks)]


def served(*tasks: Task) -> Counter[Place]:
    """Milliseconds of the accelerator by tenant and pool, in SECONDS."""
    events = Events()
    accelerator = SharedAccelerator(Rules(BUDGET), events, Random(0))
    accelerator.accounts = accounts = OfService(events, tasks)
    for pool in sorted({one.pool for one in tasks}):
        for table in pool_executors(pool, 0.3, Random(0)):
            accelerator.add(table)
    for one in tasks:
        events.at(one.at_s, RunningTask(one, accelerator, events).start)
    events.run(SECONDS)
    accelerator.finish()
    return accounts.ms


def ratio(found: Counter[Place], one: Place, other: Place) -> float:
    return found[one] / found[other]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_accelerator_time_follows_the_weights_of_tenants(weight: float) -> None:
    found = served(*work_of("x", "one"), *work_of("y", "two", weight=weight))
    assert ratio(found, ("y", "two"), ("x", "one")) == pytest.approx(weight, rel=0.1)


def test_tenant_whose_tools_are_slow_does_not_shield_another_of_its_pool() -> None:
    light = work_of("light", "one", environment_s=100.0, tasks=1)
    found = served(*work_of("heavy", "one"), *light, *work_of("other", "two"))
    assert 0 < found["light", "one"] < 0.1 * found["heavy", "one"]
    assert ratio(found, ("heavy", "one"), ("other", "two")) == pytest.approx(1.0, rel=0.1)


def test_pools_of_a_single_tenant_have_equal_time() -> None:
    found = served(*work_of("x", "one"), *work_of("x", "two", tasks=1))
    assert ratio(found, ("x", "one"), ("x", "two")) == pytest.approx(1.0, rel=0.1)
