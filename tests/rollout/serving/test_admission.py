"""Places of served requests: no seat is held for a slot, no slot for a seat, and every wait ends."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from common.fairness.fair_queue import Claimant
from rollout_svc.serving.admission import Admission


class Crowd:
    """Requests that hold their places until they are told to end."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._ends: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.begun: list[str] = []

    async def comes(self, name: str, adapter: str | None, tenant: str = "acme", weight: float = 1.0) -> None:
        self._ends[name] = asyncio.Event()
        self._running[name] = asyncio.create_task(self._hold(name, Claimant(tenant, "key", weight), adapter))
        await _settle()

    async def ends(self, name: str) -> None:
        self._ends[name].set()
        await self._running[name]
        await _settle()

    async def goes(self, name: str) -> None:
        """Its client does, while it waits or runs."""
        self._running[name].cancel()
        await asyncio.gather(self._running[name], return_exceptions=True)
        await _settle()

    async def leave(self) -> None:
        for one in self._running.values():
            one.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _hold(self, name: str, claimant: Claimant, adapter: str | None) -> None:
        async with self._admission.place(claimant, adapter) as place:
            place.tokens = 10
            self.begun.append(name)
            await self._ends[name].wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def crowd(sequences: int, adapters: int) -> AsyncGenerator[Crowd]:
    found = Crowd(Admission(sequences, adapters))
    yield found
    await found.leave()


async def test_request_that_waits_for_a_slot_holds_no_seat() -> None:
    async with crowd(sequences=2, adapters=1) as all_of_them:
        await all_of_them.comes("a1", "a")
        await all_of_them.comes("b1", "b")
        await all_of_them.comes("base", None)
        assert all_of_them.begun == ["a1", "base"]
        await all_of_them.ends("a1")
        assert all_of_them.begun == ["a1", "base", "b1"]


async def test_request_that_waits_for_a_seat_holds_no_slot() -> None:
    async with crowd(sequences=1, adapters=1) as all_of_them:
        await all_of_them.comes("base", None)
        await all_of_them.comes("a1", "a")
        await all_of_them.comes("b1", "b", tenant="globex")
        await all_of_them.ends("base")
        assert len(all_of_them.begun) == 2
        await all_of_them.ends(all_of_them.begun[-1])
        assert sorted(all_of_them.begun) == ["a1", "b1", "base"]


async def test_adapter_in_use_does_not_keep_another_waiting_for_ever() -> None:
    """While b waits, c's slot drains: the requests of a go on, and those of c wait behind b."""
    async with crowd(sequences=4, adapters=2) as all_of_them:
        for name in ("a1", "a2", "c1"):
            await all_of_them.comes(name, name[0])
        await all_of_them.comes("b1", "b", tenant="globex")
        await all_of_them.comes("c2", "c")
        await all_of_them.comes("a3", "a")
        assert all_of_them.begun == ["a1", "a2", "c1", "a3"]
        await all_of_them.ends("c1")
        assert all_of_them.begun[-1] == "b1"
        await all_of_them.ends("b1")
        assert all_of_them.begun[-1] == "c2"


async def test_seats_go_by_weight() -> None:
    async with crowd(sequences=1, adapters=1) as all_of_them:
        await all_of_them.comes("first", None, tenant="other")
        for number in range(8):
            await all_of_them.comes(f"light{number}", None, tenant="light", weight=1.0)
            await all_of_them.comes(f"heavy{number}", None, tenant="heavy", weight=3.0)
        for _ in range(8):
            await all_of_them.ends(all_of_them.begun[-1])
        assert sum(name.startswith("heavy") for name in all_of_them.begun) == 6


async def test_clients_that_go_leave_nothing_behind() -> None:
    async with crowd(sequences=1, adapters=1) as all_of_them:
        await all_of_them.comes("a1", "a")
        await all_of_them.comes("b1", "b")
        await all_of_them.comes("c1", "c")
        await all_of_them.goes("b1")
        await all_of_them.goes("a1")
        assert all_of_them.begun == ["a1", "c1"]
        await all_of_them.goes("c1")
        await all_of_them.comes("d1", "d")
        assert all_of_them.begun[-1] == "d1"


async def test_no_tenant_has_the_last_seats() -> None:
    async with crowd(sequences=16, adapters=1) as all_of_them:
        for number in range(20):
            await all_of_them.comes(f"burst{number}", None)
        assert len(all_of_them.begun) == 14
        for number in range(3):
            await all_of_them.comes(f"other{number}", None, tenant="globex")
        assert all_of_them.begun[14:] == ["other0", "other1"]
        await all_of_them.ends("burst0")
        assert all_of_them.begun[16:] == []  # both that are kept are taken
        await all_of_them.ends("burst1")
        assert len(all_of_them.begun) == 16
        await all_of_them.ends("other0")
        assert all_of_them.begun[16:] == ["other2"]
