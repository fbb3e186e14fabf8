"""The leader's cache of PostgreSQL state between decisions: rows, measured moves, and tenants' claims."""

from collections import deque
from collections.abc import Collection, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.accelerators.decisions.situation import Present, Start, starting_s
from scheduler_svc.accelerators.decisions.state import Claim, Quantiles
from scheduler_svc.accelerators.decisions.tiers import NEWEST, Key, Moves, measured
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.queries import executors, standing
from scheduler_svc.accelerators.queries.executors import MeasuredMove
from scheduler_svc.accelerators.queries.standing import AcceleratorState, Booked, Running

Place = tuple[str, str, str]
"""(accelerator, pool, tenant)."""
WHOLE = ""
"""Value in place of a pool: all pools of a tenant together."""


class RowCache:
    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self.standings: dict[str, AcceleratorState] = {}
        self.moves = {name: Moves() for name in deployed.accelerators}
        self._durations: dict[str, dict[Key, deque[float]]] = {name: {} for name in deployed.accelerators}
        self._last_move = 0
        self._running: list[Running] = []
        self._times = Times(deployed)

    async def read_rows(self, connection: AsyncConnection) -> None:
        """Reload executors and slices; called after every change of them."""
        self.standings = await standing.standings(connection, self._deployed.accelerators)

    async def read_work(self, connection: AsyncConnection, now_s: float) -> None:
        """Load new moves, running tasks, and their tenants' booked time. Decisions may use data that was loaded up to a second before."""
        names, pools = self._deployed.accelerators, self._deployed.pools
        running = await standing.running_tenants(connection, pools)
        self.take(running, await standing.booked(connection, names, pools, now_s) if len(running) > 1 else [], now_s)
        if new := await executors.newest_moves(connection, names, NEWEST, after=self._last_move):
            self._last_move = max(one.id for one in new)
            self._add(new)

    def has_running_tasks(self, pool: str) -> bool:
        return any(one.pool == pool for one in self._running)

    def take(self, running: Sequence[Running], booked: Sequence[Booked], now_s: float) -> None:
        """Set the tenants with running tasks, and the time booked to them within the fairness window."""
        self._running = list(running)
        self._times.note(running, booked, now_s)

    def claims(self, accelerator: str, pool: str, *, trains: bool) -> tuple[Claim, ...]:
        """Claims of tenants with running tasks in the pool; for a trainer, only of tenants with a batch, if there are any.

        A claim that is alone on its accelerator has no competitor.
        """
        running = [one for one in self._running if one.pool == pool]
        if trains:
            running = [one for one in running if one.has_batch] or running
        return tuple(self._times.claim(accelerator, one) for one in running)

    def _add(self, new: Sequence[MeasuredMove]) -> None:
        for one in new:
            key = (one.executor, one.from_tier, one.to_tier)
            self._durations[one.accelerator].setdefault(key, deque(maxlen=NEWEST)).append(one.seconds)
        for name in {one.accelerator for one in new}:
            known: dict[Key, Quantiles] = measured(self._durations[name])
            self.moves[name] = Moves(known)


class Times:
    """Tenants' weighted seconds on each accelerator, and in each of their pools there.

    A tenant that arrives later than others is credited time. Tenants that are present when this replica begins to lead count as
    established, and get no credit.
    """

    def __init__(self, deployed: Deployed) -> None:
        self._accelerators = {pool: {one.accelerator for one in deployed.places.values() if one.pool == pool} for pool in deployed.pools}
        self._present: dict[Place, Running] | None = None
        self._starts: dict[Place, Start] = {}
        """Credits by tenant and pool, and by tenant under the pool WHOLE."""
        self._served_ms: dict[Place, float] = {}
        self._of_tenant_ms: dict[tuple[str, str], float] = {}
        self._now_s = 0.0

    def note(self, running: Sequence[Running], booked: Sequence[Booked], now_s: float) -> None:
        """Set the running tasks, and the time booked to their tenants within the fairness window; credits newcomers."""
        self._served_ms, self._now_s = served_ms(running, booked), now_s
        self._of_tenant_ms = {}
        for (name, _, tenant), ms in self._served_ms.items():
            self._of_tenant_ms[name, tenant] = self._of_tenant_ms.get((name, tenant), 0.0) + ms
        present = {(name, one.pool, one.tenant): one for one in running for name in self._accelerators.get(one.pool, ())}
        before, self._present = self._present, present
        kept = present.keys() | {(name, WHOLE, tenant) for name, _, tenant in present}
        self._starts = {place: start for place, start in self._starts.items() if place in kept and start.left_s(now_s)}
        if before is not None:
            self._starts |= self._new_credits(before)

    def claim(self, accelerator: str, one: Running) -> Claim:
        place = (accelerator, one.pool, one.tenant)
        return Claim(one.tenant, one.weight, self._virtual_s(accelerator, one), self._pool_s(place, one), self._left_s(place))

    def _new_credits(self, before: Collection[Place]) -> dict[Place, Start]:
        """Credits of newcomers: tenants that are absent from `before`, and further pools of the tenants in it."""
        present = self._present or {}
        stayed = {place: one for place, one in present.items() if place in before}
        known = {(name, tenant) for name, _, tenant in before}
        found: dict[Place, Start] = {}
        for (name, pool, tenant), one in present.items():
            if (name, tenant) not in known:
                others = {each.tenant: each for (there, _, _), each in stayed.items() if there == name}
                times = [Present(each.weight, self._virtual_s(name, each)) for each in others.values()]
                found[name, WHOLE, tenant] = Start(self._now_s, starting_s(self._virtual_s(name, one), times))
            elif (name, pool, tenant) not in before:
                own = [(place, each) for place, each in stayed.items() if (place[0], place[2]) == (name, tenant)]
                times = [Present(1.0, self._pool_s(place, each)) for place, each in own]
                found[name, pool, tenant] = Start(self._now_s, starting_s(self._pool_s((name, pool, tenant), one), times))
        return found

    def _left_s(self, place: Place) -> float:
        """Part of a place's credited seconds that still counts."""
        start = self._starts.get(place)
        return start.left_s(self._now_s) if start is not None else 0.0

    def _pool_s(self, place: Place, one: Running) -> float:
        return self._served_ms.get(place, 0.0) / 1000 / one.weight + self._left_s(place)

    def _virtual_s(self, accelerator: str, one: Running) -> float:
        ms = self._of_tenant_ms.get((accelerator, one.tenant), 0.0)
        return ms / 1000 / one.weight + self._left_s((accelerator, WHOLE, one.tenant))


def served_ms(running: Sequence[Running], booked: Sequence[Booked]) -> dict[Place, float]:
    """Accelerator milliseconds by place.

    Unbooked time is split among the pool's tenants in proportion to the time booked to them, or equally if none is.
    """
    found: dict[Place, float] = {(one.accelerator, one.pool, one.tenant): one.ms for one in booked if one.tenant is not None}
    for one in booked:
        if one.tenant is None:
            known = {place: ms for place, ms in found.items() if place[:2] == (one.accelerator, one.pool) and ms}
            known = known or {(one.accelerator, one.pool, each.tenant): 1.0 for each in running if each.pool == one.pool}
            whole = sum(known.values())
            found |= {place: found.get(place, 0.0) + one.ms * part / whole for place, part in known.items()}
    return found
