"""Fair shares of an accelerator by what the service itself knows: what it reads, and whom that lets compute in simulated histories."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.plex.accelerator import SharedAccelerator
from bench.plex.accounts import Accounts, Place
from bench.plex.events import Events
from bench.plex.tasks import RunningTask
from bench.plex.workloads import BUDGET, pool_executors
from common.accelerators import Function
from common.accelerators.trace import ENVIRONMENT, Task
from scheduler_svc.accelerators.booking import slice_shares
from scheduler_svc.accelerators.decisions.situation import WINDOW_S, Present, Start, starting_s, within_share
from scheduler_svc.accelerators.decisions.state import Claim, Rules
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.queries.standing import Booked, Running
from scheduler_svc.accelerators.row_cache import RowCache
from scheduler_svc.base.database import Database
from tests.scheduler.decisions.accelerators import demand
from tests.support.scheduler.executors import ACCELERATORS, POOLS, task_row

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


async def known(database: Database, now_s: float, *statements: str) -> RowCache:
    knowledge = RowCache(DEPLOYED)
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
    knowledge = RowCache(DEPLOYED)
    running = [Running(*place, 1.0, has_batch=False) for place in (("one", "x"), ("one", "y"), ("two", "z"))]
    knowledge.take(running, [Booked("a", None, "one", 40_000)], 100.0)
    assert of_tenants(knowledge.claims("a", "one", trains=False)) == {"x": (20.0, 20.0), "y": (20.0, 20.0)}
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"z": (0.0, 0.0)}


# ---------------------------------------------------------------------------------------------------------- histories


class OfService(Accounts):
    """Claims of a simulated accelerator as the scheduler's leader has them: by `RowCache`, from running tasks and slices."""

    def __init__(self, events: Events, tasks: Sequence[Task]) -> None:
        super().__init__()
        self._events = events
        self._knowledge = RowCache(DEPLOYED)
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
        now_s = self._events.now_s
        present = {(one.pool, one.tenant): one.weight for one in self._tasks.values() if one.at_s <= now_s}
        running = [Running(*place, weight, has_batch=False) for place, weight in present.items()]
        self._knowledge.take(running, booked + open_, now_s)
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


def work_of(tenant: str, pool: str, *, weight: float = 1.0, environment_s: float = 0.0, tasks: int = 6, at_s: float = 0.0) -> list[Task]:
    """Tasks of a tenant that begin at `at_s`; without `environment_s` they always have work."""
    away = ((ENVIRONMENT, environment_s),) if environment_s else ()
    step = ((Function.GENERATE, 1.0), *away, (Function.TRAIN, 1.0))
    return [Task(f"{tenant}-{pool}-{number}", tenant, pool, at_s, (step,) * round(SECONDS), weight) for number in range(tasks)]


def served(*tasks: Task, begin_s: float = 0.0, until_s: float = SECONDS) -> Counter[Place]:
    """Milliseconds of the accelerator by tenant and pool, between two times."""
    events = Events()
    accelerator = SharedAccelerator(Rules(BUDGET), events, Random(0))
    accelerator.accounts = accounts = OfService(events, tasks)
    for pool in sorted({one.pool for one in tasks}):
        for table in pool_executors(pool, 0.3, Random(0)):
            accelerator.add(table)
    for one in tasks:
        events.at(one.at_s, RunningTask(one, accelerator, events).start)
    before = Counter[Place]()
    events.at(begin_s, lambda: before.update(accounts.ms))
    events.run(until_s)
    accelerator.finish()
    return accounts.ms - before


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


@pytest.mark.parametrize("seconds", [120.0, 600.0, 1200.0])
def test_tenant_that_comes_later_is_served_beside_those_that_were_there_and_not_alone(seconds: float) -> None:
    """Without what it is given it would be served alone for ten minutes."""
    tasks = [*work_of("x", "one"), *work_of("y", "two", at_s=900.0)]
    found = served(*tasks, begin_s=900.0, until_s=900.0 + seconds)
    assert ratio(found, ("y", "two"), ("x", "one")) == pytest.approx(1.0, rel=0.25 if seconds == 120.0 else 0.1)


@pytest.mark.parametrize("seconds", [180.0, 600.0])
def test_pool_that_a_tenant_begins_to_use_is_served_beside_its_other_one(seconds: float) -> None:
    tasks = [*work_of("x", "one"), *work_of("x", "two", at_s=900.0)]
    found = served(*tasks, begin_s=900.0, until_s=900.0 + seconds)
    assert ratio(found, ("x", "two"), ("x", "one")) == pytest.approx(1.0, rel=0.25 if seconds == 180.0 else 0.1)


# ------------------------------------------------------------------------------------------------- those that come later


def test_tenant_that_comes_later_has_what_the_least_served_has_until_the_window_has_passed() -> None:
    knowledge = RowCache(DEPLOYED)
    running = [Running("one", "x", 1.0, has_batch=False), Running("one", "y", 2.0, has_batch=False)]
    came = [*running, Running("two", "z", 2.0, has_batch=False)]
    booked = [Booked("a", "x", "one", 200_000), Booked("a", "y", "one", 360_000)]
    knowledge.take(running, booked, 1000.0)
    knowledge.take(came, booked, 1001.0)
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"z": (180.0, 0.0)}, "as y, by its weight"
    knowledge.take(came, [*booked, Booked("a", "z", "two", 30_000)], 1301.0)
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"z": (90.0 + 15.0, 15.0)}
    assert of_tenants(knowledge.claims("a", "one", trains=False))["x"] == (200.0, 200.0), "who was there is given nothing"
    knowledge.take(came, booked, 1601.0)
    assert of_tenants(knowledge.claims("a", "two", trains=False)) == {"z": (0.0, 0.0)}


def test_tenant_that_comes_back_is_given_what_it_lacks() -> None:
    knowledge = RowCache(DEPLOYED)
    x, y = (Running("one", tenant, 1.0, has_batch=False) for tenant in "xy")
    booked = [Booked("a", "x", "one", 300_000), Booked("a", "y", "one", 100_000)]
    knowledge.take([x, y], booked, 1000.0)
    assert of_tenants(knowledge.claims("a", "one", trains=False))["y"] == (100.0, 100.0), "whom a new leader finds came long ago"
    knowledge.take([x], booked, 1001.0)
    knowledge.take([x, y], booked, 1002.0)
    assert of_tenants(knowledge.claims("a", "one", trains=False))["y"] == (300.0, 100.0)


def test_pool_that_comes_later_is_given_time_that_weighs_nothing_among_its_tenants() -> None:
    knowledge = RowCache(DEPLOYED)
    one, two = (Running(pool, "x", 1.0, has_batch=False) for pool in ("one", "two"))
    booked = [Booked("a", "x", "one", 300_000)]
    knowledge.take([one], booked, 1000.0)
    knowledge.take([one, two], booked, 1001.0)
    (claim,) = knowledge.claims("a", "two", trains=False)
    assert claim == Claim("x", 1.0, 300.0, 300.0, given_s=300.0)


def test_who_was_given_time_stands_for_no_one_that_fills_the_pool() -> None:
    """An executor's time is its tenants', each as often as it was served: what was given to one was not served."""
    own = demand("own", claims=(Claim("heavy", 1.0, 300.0, 300.0), Claim("new", 1.0, 100.0, 100.0, given_s=100.0)))
    other = demand("other", claims=(Claim("third", 1.0, 270.0, 270.0),))
    assert within_share([own, other], lead_s=15.0) == {"other"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 600)), min_size=1, max_size=8), st.floats(0, 600), st.floats(0, 1200))
def test_who_comes_is_neither_ahead_of_all_nor_behind_all(others: list[tuple[float, float]], own_s: float, later_s: float) -> None:
    given_s = starting_s(own_s, [Present(weight, seconds) for weight, seconds in others])
    assert given_s >= 0
    if given_s:
        assert any(own_s + given_s == pytest.approx(seconds) for _, seconds in others)
    mean_s = sum(weight * seconds for weight, seconds in others) / sum(weight for weight, _ in others)
    assert own_s + given_s >= 0.5 * mean_s - 1e-6, "who has little work does not count"
    start = Start(1000.0, given_s)
    assert 0 <= start.left_s(1000.0 + later_s) <= given_s
    assert start.left_s(1000.0 + WINDOW_S) == 0
