"""Environments of tenants' packages: their processes, and the places for processes that tenants share.

A process plays one environment of one package of one tenant, and starts at its first call. While its calls wait or run, it holds one of
the replica's places. Places are granted in fair order, by the tenants' weights, and no tenant has all of them. After its time slice a
process accepts no more calls while another environment waits for a place. A process without a place stays idle until its idle timeout, the
end of its last task, or eviction, least recently used first. States travel with messages, so nothing is lost with the process.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from common.errors import MarlaasError, Unavailable
from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots
from common.messages import BlobRef
from common.resilience.event_loop import TaskSet, is_set_within
from env_svc.calls import EnvironmentJob, Outcome, failed
from env_svc.completion import as_completed_batches
from env_svc.errors import WrongOptions
from env_svc.hosted.start import HostFailed, HostUnavailable
from env_svc.hosted.wire import Hello
from env_svc.packages.processes import OwnEnvironmentKey, OwnHost, OwnSandboxes
from env_svc.packages.wheel import WheelRefused

FAILURE_TTL_S = 5.0
"""Seconds for which further calls fail with the error of a failed start."""
CheckWeights = Callable[[Sequence[str]], None]
"""Check of a task's weights against an environment's components. Raises: WrongOptions if a weight names none of them."""


@dataclass(frozen=True)
class OwnBounds:
    """Bounds on the number and lifetime of packages' processes."""

    places: int = 4
    tenant_places: int = 3
    """Maximum places of one tenant."""
    idle_s: float = 300.0
    slice_s: float = 5.0
    """Seconds that a process keeps its place while others wait for one."""


class OwnHosts:
    """Packages' environments that this replica plays."""

    def __init__(self, sandboxes: OwnSandboxes, bounds: OwnBounds) -> None:
        self._sandboxes = sandboxes
        self._bounds = bounds
        self._places = FairSlots(bounds.places, bounds.tenant_places)
        self._by_key: dict[OwnEnvironmentKey, OwnHost] = {}
        self._all: set[OwnHost] = set()
        """Hosts in `_by_key`, and hosts under examination."""
        self._holders = TaskSet()
        self._ending = TaskSet()
        """Stops of processes; each completes even if its caller is cancelled."""

    @property
    def processes(self) -> int:
        return sum(one.process is not None for one in self._all)

    @property
    def waiting(self) -> int:
        """Number of environments that wait for a place."""
        return self._places.waiting

    def run(
        self, key: OwnEnvironmentKey, wheel: BlobRef, job: EnvironmentJob, check_weights: CheckWeights
    ) -> AsyncGenerator[list[tuple[int, Outcome]], None]:
        """(position in `job.calls`, outcome) of every call, in lists as they become ready. Raises: Unavailable without the wheel."""
        return as_completed_batches(self._run_one(key, wheel, job, position, check_weights) for position in range(len(job.calls)))

    async def examine(self, key: OwnEnvironmentKey, wheel: BlobRef, claimant: Claimant) -> Hello:
        """An environment's description of itself, from a process started only for this. Raises: as `OwnSandboxes.start`."""
        host = OwnHost(key, wheel)
        place = _of_tenant(claimant.tenant, claimant.weight)
        await self._places.acquire(place)
        began = time.monotonic()
        self._all.add(host)
        host.has_place = True
        try:
            await self._make_room()
            host.process = await self._sandboxes.start(key, wheel)
            return host.process.hello
        finally:
            await self._stop(host)
            self._all.discard(host)
            self._places.release(place, time.monotonic() - began)

    def end_task(self, task: str) -> None:
        """Stop the processes that this task was the last to use."""
        for host in list(self._by_key.values()):
            if task in host.tasks:
                host.tasks.discard(task)
                self._ending.start(self._stop_unless_used(host))

    async def stop_idle(self) -> None:
        """Stop processes past their idle timeout, and forget environments without a process."""
        before = time.monotonic() - self._bounds.idle_s
        for key, host in list(self._by_key.items()):
            if host.calls or host.has_place:
                continue
            if host.process is None:
                if host.failure is None or host.failed_at < time.monotonic() - FAILURE_TTL_S:
                    self._forget(key)
            elif host.used_at <= before:
                await self._stop(host)

    async def stop(self) -> None:
        for one in self._holders:
            one.cancel()
        await asyncio.gather(*self._holders, return_exceptions=True)
        await asyncio.gather(*(self._stop(one) for one in self._all))
        await asyncio.gather(*self._ending)

    async def _run_one(
        self, key: OwnEnvironmentKey, wheel: BlobRef, job: EnvironmentJob, position: int, check_weights: CheckWeights
    ) -> tuple[int, Outcome]:
        host = self._host(key, wheel)
        host.tasks.add(job.claimant.task)
        host.weight = job.claimant.weight
        row = job.calls[position].row
        with host.calling():
            try:
                self._serve(host)
                async with asyncio.timeout(job.ends_at - time.monotonic()):
                    process = await host.enter(job.claimant)
            except TimeoutError:
                reason = f"environment '{job.name}' had no process before the deadline (row {row})"
                return position, failed(reason, is_infrastructure=True, is_late=True)
            except Unavailable:
                raise
            except (WrongOptions, WheelRefused, HostFailed, MarlaasError) as error:
                return position, failed(f"environment '{job.name}' (row {row}): {error}")
            except HostUnavailable as error:
                return position, failed(f"environment '{job.name}' is unavailable (row {row}): {error}", is_infrastructure=True)
            began = time.monotonic()
            try:
                check_weights(process.hello.components)
                outcome = await process.host.ask(job, position)
            except WrongOptions as error:
                outcome = failed(str(error))
            finally:
                host.leave(job.claimant, time.monotonic() - began)
            return position, replace(outcome, worked_s=time.monotonic() - began)

    def _host(self, key: OwnEnvironmentKey, wheel: BlobRef) -> OwnHost:
        if key not in self._by_key:
            self._by_key[key] = OwnHost(key, wheel)
            self._all.add(self._by_key[key])
        return self._by_key[key]

    def _serve(self, host: OwnHost) -> None:
        """Request a place for an environment's calls, unless one was requested already. Raises: the error of a recent failed start."""
        if host.failure is not None and time.monotonic() - host.failed_at < FAILURE_TTL_S:
            raise host.failure.with_traceback(None)
        if host.holder is None:
            host.failure = None
            host.holder = self._holders.start(self._hold(host))

    async def _hold(self, host: OwnHost) -> None:
        """While `host` has calls, hold one of the replica's places, acquired again for each time slice; then stop its process if unused."""
        try:
            while host.calls and host.failure is None:
                claimant, served_s = _of_tenant(host.key.tenant, host.weight), 0.0
                await self._places.acquire(claimant)
                host.has_place = True
                try:
                    served_s = await self._lend(host) if host.calls else 0.0
                finally:
                    host.has_place = False
                    self._places.release(claimant, served_s)
        finally:
            host.holder = None
        await self._stop_unless_used(host)

    async def _lend(self, host: OwnHost) -> float:
        """Admit the host's calls until there are none, or its slice is over and other environments wait. Returns the seconds to charge.

        The slice begins when the process has started: otherwise a process that starts for longer than a slice would never run a call.
        The start is charged. Time beyond the slice is free while no other environment waits. Once no more calls are admitted, the time
        until the running ones end is charged.
        """
        began = time.monotonic()
        try:
            await self._make_room()
            if host.process is None:
                host.process = await self._sandboxes.start(host.key, host.wheel)
        except OSError as error:
            host.fail(Unavailable(f"no process can be prepared for '{host.key.name}': {error}"))
            return time.monotonic() - began
        except Exception as error:  # of the calls, which raise it
            host.fail(error)
            return time.monotonic() - began
        host.open()
        opened = time.monotonic()
        ends_at = opened + self._bounds.slice_s
        while host.calls and (time.monotonic() < ends_at or not self._places.waiting):
            await is_set_within(host.idle, min(1.0, self._bounds.slice_s))
        host.close()
        closed = time.monotonic()
        await host.vacant.wait()
        return opened - began + min(closed - opened, self._bounds.slice_s) + time.monotonic() - closed

    async def _make_room(self) -> None:
        """Stop idle processes until there are no more processes than places."""
        while sum(one.has_place or one.process is not None for one in self._all) > self._bounds.places:
            idle = [one for one in self._all if one.process is not None and not one.has_place]
            await self._stop(min(idle, key=lambda one: one.used_at))

    async def _stop(self, host: OwnHost) -> None:
        process, host.process = host.process, None
        if process is not None:
            await asyncio.shield(self._ending.start(process.stop()))

    async def _stop_unless_used(self, host: OwnHost) -> None:
        """Stop the host's process if its tasks have ended, and it has neither calls nor a place."""
        if not (host.tasks or host.calls or host.has_place):
            await self._stop(host)

    def _forget(self, key: OwnEnvironmentKey) -> None:
        self._all.discard(self._by_key.pop(key))


def _of_tenant(tenant: str, weight: float) -> Claimant:
    """Claimant of a place; places are bounded and shared by tenant only."""
    return Claimant(tenant, "packages", weight)
