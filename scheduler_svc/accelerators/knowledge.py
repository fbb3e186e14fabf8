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


class Knowledge:
    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self.standings: dict[str, Standing] = {}
        self.moves = {name: Moves() for name in deployed.accelerators}
        self._durations: dict[str, dict[Key, deque[float]]] = {name: {} for name in deployed.accelerators}
        self._last_move = 0
        self._running: list[Running] = []
        self._booked: list[Booked] = []

    async def read_rows(self, connection: AsyncConnection) -> None:
        """Executors and slices: after every change of them."""
        self.standings = await standing.standings(connection, self._deployed.accelerators)

    async def read_work(self, connection: AsyncConnection, now_s: float) -> None:
        """Moves since the last look, running tasks and what is booked to their tenants: a second late is soon enough."""
        names, pools = self._deployed.accelerators, self._deployed.pools
        self._running = await work.running_tenants(connection, pools)
        self._booked = await work.booked(connection, names, pools, now_s) if len({one.tenant for one in self._running}) > 1 else []
        if new := await moves.newest(connection, names, NEWEST, after=self._last_move):
            self._last_move = max(one.id for one in new)
            self._add(new)

    def has_running_tasks(self, pool: str) -> bool:
        return any(one.pool == pool for one in self._running)

    def claims(self, accelerator: str, pool: str) -> tuple[Claim, ...]:
        """Of tenants with running tasks in the pool. One tenant alone has no competing claim."""
        in_all, in_pool = defaultdict[str, int](int), defaultdict[str, int](int)
        for one in self._booked:
            if one.accelerator == accelerator:
                in_all[one.tenant] += one.ms
                in_pool[one.tenant] += one.ms if one.pool == pool else 0
        return tuple(
            Claim(one.tenant, one.weight, in_all[one.tenant] / 1000 / one.weight, in_pool[one.tenant] / 1000 / one.weight)
            for one in self._running
            if one.pool == pool
        )

    def _add(self, new: Sequence[Move]) -> None:
        for one in new:
            key = (one.executor, one.from_tier, one.to_tier)
            self._durations[one.accelerator].setdefault(key, deque(maxlen=NEWEST)).append(one.seconds)
        for name in {one.accelerator for one in new}:
            known: dict[Key, Quantiles] = measured(self._durations[name])
            self.moves[name] = Moves(known)
