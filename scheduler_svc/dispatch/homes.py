"""Homes: the accelerator that a task samples on and the one that it trains on, where its pool is on several (docs/pools.md).

One replica at a time looks. A task gets its homes when it is submitted, others when its executor is lost for LOST_S, and otherwise only
for a gain above what the move costs. Between, messages for a home that cannot work go to the pool's common queue.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.accelerators import Tier, executor_name
from common.leases import OWN_QUEUE
from common.messages import ExecutorOf, ReplicaReport, StepPhases
from common.pools import OnSeveral, Place, Pools, on_several, places
from scheduler_svc.decisions.accelerators.load import Profile
from scheduler_svc.decisions.accelerators.moves import Key as MoveKey
from scheduler_svc.decisions.accelerators.moves import Moves, Rates, prior_s
from scheduler_svc.decisions.accelerators.state import Quantiles
from scheduler_svc.decisions.homes import Job, moves
from scheduler_svc.store.asked import accelerators as asked
from scheduler_svc.store.database import HOMES_LOCK, Database
from scheduler_svc.store.queries.accelerators import homes
from scheduler_svc.store.queries.accelerators.homes import Key, Resident
from scheduler_svc.store.queries.training.tasks import Home
from scheduler_svc.store.transaction import Transaction

LOOK_S = 1.0
"""Seconds between looks at who reads which queue, and for tasks without a home."""
REVIEW_S = 30.0
"""Seconds between looks for better homes."""
LOST_S = 60.0
"""Seconds for which an executor cannot work until tasks leave it: a restart takes less, and what moves does not come back by itself."""
STAYS_S = 300.0
"""Minimum seconds between a task's moves for a gain: what it does at a new home is known after some steps."""
STEPS = 8
"""Latest steps of a task that its profile is the mean of."""
UNKNOWN = StepPhases(version=1, at_s=0.0, generate_s=1.0, environment_s=1.0, train_s=1.0)
"""A step of a task before any has trained one."""

log = structlog.get_logger()


class Homes:
    """Of tasks in the pools of one pools file."""

    def __init__(
        self,
        database: Database,
        pools: Pools,
        reports: Callable[[], Sequence[ReplicaReport] | None],
        now_s: Callable[[], float],
        *,
        review_s: float = REVIEW_S,
        lost_s: float = LOST_S,
    ) -> None:
        """`reports`: of live replicas; None until they were read once. `now_s`: NATS's time."""
        self._database = database
        self._several: OnSeveral = on_several(pools)
        self._places = places(pools)
        self._reports = reports
        self._now_s = now_s
        self._review_s, self._lost_s = review_s, lost_s
        self._lost_since: dict[Key, float] = {}
        """This process's time since when executors cannot work."""
        self._reviewed_s = float("-inf")
        self._profiles = _Profiles({})
        """As of the last look for better homes: a task that has come since has trained no step."""
        self._reading: set[Key] = set()
        self._in_vain = False
        """Whether the last look left tasks without a home."""

    @property
    def queues(self) -> frozenset[str]:
        """Queues of single trainers."""
        found = [(pool, names) for (service, pool), names in self._several.items() if service == "trainer"]
        return frozenset(streams.queue(pool, name) for pool, names in found for name in names)

    @property
    def look_s(self) -> float | None:
        """Seconds between looks; None where no accelerator is shared, and migration has cleared what there was. Where no pool is on several
        of them, a look only clears what an earlier pools file left: messages for a home would go to a queue without a reader."""
        if not self._places:
            return None
        return LOOK_S if self._several else REVIEW_S

    async def look(self) -> None:
        """Write who reads which queue; choose homes where there are none, and every REVIEW_S better ones. Raises: Unavailable."""
        if not self._several:
            async with self._database.transaction() as tx:
                await homes.note_queues(tx.connection, [])
            return
        if (reports := self._reports()) is None:  # taken for no reports, it would send everyone's messages to the pools' queues
            return
        reading = {key for report in reports for key in self._own_queues(report)}
        if reading != self._reading:
            self._reading, self._in_vain = reading, False
        is_due = time.monotonic() >= self._reviewed_s + self._review_s
        if is_due:
            async with self._database.transaction() as tx:
                steps = await asked.running_steps(tx.connection, {place.pool for place in self._places}, STEPS)
            self._profiles = await asyncio.to_thread(lambda: _Profiles(asked.phases_of(steps)))
        async with self._database.transaction() as tx:
            await homes.note_queues(tx.connection, reading)
            if not is_due and (self._in_vain or not await homes.any_homeless(tx.connection, self._several)):
                return
            if await homes.has_lock(tx.connection, HOMES_LOCK):
                self._in_vain = not await self._review(tx, for_gains=is_due)
        if is_due:
            self._reviewed_s = time.monotonic()

    async def _review(self, tx: Transaction, *, for_gains: bool) -> bool:
        """Whether every task has a home afterwards: else no executor reads the queue of one."""
        working = await homes.working_executors(tx.connection)
        self._note_lost(working)
        pools = {place.pool for place in self._places}
        found = await homes.residents(tx.connection, pools, STEPS)
        jobs = [job for one in found for job in self._jobs(one, working, for_gains=for_gains)]
        chosen = moves(jobs, await self._switches(tx.connection))
        for move in sorted(chosen, key=lambda one: one.job.task):  # locked in the order in which others lock them
            settled = await homes.settle(tx.connection, move.job.task, move.job.service, move.accelerator, self._now_s())
            if settled is not None:
                where = {"accelerator": move.accelerator, "before": settled.before, "from_version": settled.version}
                log.info("task_moved", task=move.job.task, service=move.job.service, why=str(move.why), **where)
        return all(job.home is not None or job.choices for job in jobs)

    def _own_queues(self, report: ReplicaReport) -> list[Key]:
        """Executors whose queues the replica has to itself. A process that reads an earlier pools file may name others yet."""
        there = self._several.get((report.service, report.pool)) if report.pool is not None else None
        if report.pool is None or there is None:
            return []
        executor = executor_name(report.service, report.pool)
        return [(name, executor) for name in there if report.busy.get(f"{OWN_QUEUE}@{name}")]

    def _note_lost(self, working: Collection[Key]) -> None:
        now_s = time.monotonic()
        for place in self._places:
            key = (place.accelerator, place.executor)
            if key in working:
                self._lost_since.pop(key, None)
            else:
                self._lost_since.setdefault(key, now_s)

    def _jobs(self, one: Resident, working: Collection[Key], *, for_gains: bool) -> list[Job]:
        found: list[Job] = []
        for service in ("rollout", "trainer"):
            executor = executor_name(service, one.pool)
            profile = self._profiles.of(one, service, executor)
            there = self._several.get((service, one.pool))
            if there is None:
                alone = [place.accelerator for place in self._places if (place.service, place.pool) == (service, one.pool)]
                found += [Job(one.task, service, profile, (name,), name) for name in alone]
                continue
            home = one.homes.get(service)
            choices = [name for name in there if (name, executor) in working]
            if home is not None and home.accelerator in there and self._is_awaited((home.accelerator, executor)):
                choices.append(home.accelerator)
            stays = not for_gains or (home is not None and self._is_settling(one, home))
            at = home.accelerator if home is not None else None
            found.append(Job(one.task, service, profile, tuple(dict.fromkeys(choices)), at, _move_s(one, service), stays))
        return found

    def _is_awaited(self, key: Key) -> bool:
        return time.monotonic() - self._lost_since.get(key, float("inf")) < self._lost_s

    def _is_settling(self, one: Resident, home: Home) -> bool:
        return home.version > one.version or self._now_s() - home.since_s < STAYS_S

    async def _switches(self, connection: AsyncConnection) -> dict[str, float]:
        """Expected seconds of a switch on each accelerator: 0 where one executor has it to itself."""
        there: dict[str, list[Place]] = {}
        for place in self._places:
            there.setdefault(place.accelerator, []).append(place)
        shared = {name: found for name, found in there.items() if len(found) > 1}
        if not shared:
            return {}
        known = {(row.accelerator, row.executor): row for row in await asked.executors(connection, None, for_operator=True)}
        measured: dict[str, dict[MoveKey, Quantiles]] = {}
        for row in await asked.moves(connection):
            key = (row.executor, row.from_tier, row.to_tier)
            measured.setdefault(row.accelerator, {})[key] = Quantiles(row.p50_s, row.p90_s)
        return {name: _switch_s(found, Moves(measured.get(name, {})), known) for name, found in shared.items()}


class _Profiles:
    """Mean steps: of tasks, and of all that have trained any."""

    def __init__(self, phases: Mapping[str, Sequence[StepPhases]]) -> None:
        self._means = {task: _mean([_Phases.of(step) for step in steps]) for task, steps in phases.items() if steps}
        self._typical = _mean([*self._means.values()]) if self._means else _Phases.of(UNKNOWN)

    def of(self, one: Resident, service: str, executor: str) -> Profile:
        mean = self._means.get(one.task, self._typical)
        busy_s, away_s, visits = mean.generate_s, mean.environment_s + mean.train_s, mean.turns
        if service == "trainer":
            busy_s, away_s, visits = mean.train_s, mean.environment_s + mean.generate_s, 1.0
        return Profile(f"{one.task}.{service}", executor, busy_s, away_s, one.steps_left, visits=visits)


@dataclass(frozen=True)
class _Phases:
    """Seconds of a step, and its visits to the sampler."""

    generate_s: float
    environment_s: float
    train_s: float
    turns: float

    @classmethod
    def of(cls, step: StepPhases) -> "_Phases":
        return cls(step.generate_s, step.environment_s, step.train_s + step.score_s, step.turns)


def _mean(steps: Sequence[_Phases]) -> _Phases:
    count = len(steps)
    return _Phases(
        sum(one.generate_s for one in steps) / count,
        sum(one.environment_s for one in steps) / count,
        sum(one.train_s for one in steps) / count,
        sum(one.turns for one in steps) / count,
    )


def _move_s(one: Resident, service: str) -> float:
    """Seconds that a move costs: of its state's restoration lately, or by bytes. Prefixes are lost with each version anyway."""
    size_bytes = one.checkpoint_bytes if service == "trainer" else one.adapter_bytes
    return max(one.restore_s if service == "trainer" else 0.0, prior_s(Tier.DISK, Tier.DEVICE, size_bytes, Rates()))


def _switch_s(there: Sequence[Place], known_moves: Moves, known: Mapping[Key, ExecutorOf]) -> float:
    """Of one executor to another, each parked in host memory."""
    seconds = 0.0
    for place in there:
        row = known.get((place.accelerator, place.executor))
        size_bytes = row.device_bytes if row is not None else 0
        seconds += known_moves.seconds(place.executor, Tier.HOST, Tier.DEVICE, size_bytes)
        seconds += known_moves.seconds(place.executor, Tier.DEVICE, Tier.HOST, size_bytes)
    return seconds / len(there)
