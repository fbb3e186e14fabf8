"""What the leader keeps of PostgreSQL between decisions: rows, measured moves, and tenants' claims."""

from collections import defaultdict, deque
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.decisions.accelerators.moves import NEWEST, Key, Moves, measured
from scheduler_svc.decisions.accelerators.state import Claim, Quantiles
from scheduler_svc.store.queries.accelerators import moves, standing, work
from scheduler_svc.store.queries.accelerators.moves import Move
from scheduler_svc.store.queries.accelerators.standing import Standing
from scheduler_svc.store.queries.accelerators.work import Booked, Running

Place = tuple[str, str, str]
"""Accelerator, pool, tenant."""


class Knowledge:
    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self.standings: dict[str, Standing] = {}
        self.moves = {name: Moves() for name in deployed.accelerators}
        self._durations: dict[str, dict[Key, deque[float]]] = {name: {} for name in deployed.accelerators}
        self._last_move = 0
        self._running: list[Running] = []
        self._served_ms: dict[Place, float] = {}

    async def read_rows(self, connection: AsyncConnection) -> None:
        """Executors and slices: after every change of them."""
        self.standings = await standing.standings(connection, self._deployed.accelerators)

    async def read_work(self, connection: AsyncConnection, now_s: float) -> None:
        """Moves since the last look, running tasks and what is booked to their tenants: a second late is soon enough."""
        names, pools = self._deployed.accelerators, self._deployed.pools
        running = await work.running_tenants(connection, pools)
        self.take(running, await work.booked(connection, names, pools, now_s) if len(running) > 1 else [])
        if new := await moves.newest(connection, names, NEWEST, after=self._last_move):
            self._last_move = max(one.id for one in new)
            self._add(new)

    def has_running_tasks(self, pool: str) -> bool:
        return any(one.pool == pool for one in self._running)

    def take(self, running: Sequence[Running], booked: Sequence[Booked]) -> None:
        """Know who has running tasks, and what they were served lately."""
        self._running = list(running)
        self._served_ms = served_ms(running, booked)

    def claims(self, accelerator: str, pool: str, *, trains: bool) -> tuple[Claim, ...]:
        """Of tenants with running tasks in the pool; those of its trainer, of tenants with batches, as far as any is known.

        A single claim on an accelerator competes with none.
        """
        running = [one for one in self._running if one.pool == pool]
        if trains:
            running = [one for one in running if one.has_batch] or running
        in_all: defaultdict[str, float] = defaultdict(float)
        for (name, _, tenant), ms in self._served_ms.items():
            if name == accelerator:
                in_all[tenant] += ms
        return tuple(
            Claim(
                one.tenant,
                one.weight,
                in_all[one.tenant] / 1000 / one.weight,
                self._served_ms.get((accelerator, pool, one.tenant), 0.0) / 1000 / one.weight,
            )
            for one in running
        )

    def _add(self, new: Sequence[Move]) -> None:
        for one in new:
            key = (one.executor, one.from_tier, one.to_tier)
            self._durations[one.accelerator].setdefault(key, deque(maxlen=NEWEST)).append(one.seconds)
        for name in {one.accelerator for one in new}:
            known: dict[Key, Quantiles] = measured(self._durations[name])
            self.moves[name] = Moves(known)


def served_ms(running: Sequence[Running], booked: Sequence[Booked]) -> dict[Place, float]:
    """Milliseconds of accelerators by tenant.

    What is not booked yet is in proportion to what the pool's tenants were booked lately; in equal parts where that is nothing.
    """
    found: dict[Place, float] = {(one.accelerator, one.pool, one.tenant): one.ms for one in booked if one.tenant is not None}
    for one in booked:
        if one.tenant is None:
            known = {place: ms for place, ms in found.items() if place[:2] == (one.accelerator, one.pool) and ms}
            known = known or {(one.accelerator, one.pool, each.tenant): 1.0 for each in running if each.pool == one.pool}
            whole = sum(known.values())
            found |= {place: found.get(place, 0.0) + one.ms * part / whole for place, part in known.items()}
    return found
