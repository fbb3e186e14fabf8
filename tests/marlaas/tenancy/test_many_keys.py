"""Keys are created, rotated and revoked while jobs flow from other keys, and NATS is killed in between."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.client_api.errors import NoAnswer
from common.errors import Fatal, QueueFull, Unavailable
from common.messages import ControlTask
from marlaas.tenancy import accounts, keys, recording
from marlaas.tenancy.keys import Receiver
from marlaas.tenancy.recording import Operator
from tests.support.buses import HASTY
from tests.support.keyed import TENANTS, Keyed, keyed_server
from tests.support.scheduler.stages import World
from tests.support.servers import running
from tests.support.waiting import at_work, eventually

SENDERS = 2
"""Keys of each tenant that send jobs."""
OFFLINE_S = 1.0
"""Bound of the median of a hundred, by the clock, so only where they run alone; the work in PostgreSQL counts too."""


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncGenerator[Keyed]:
    """A server that has on its disk what it confirms, since it is killed."""
    async with keyed_server(tmp_path, sync="always") as server:
        yield server


@dataclass
class Flow:
    """Jobs that NATS has confirmed, by senders that are never disturbed on purpose."""

    sent: int = 0
    clients: list[Bus] = field(default_factory=list[Bus])

    async def send(self, client: Bus, tenant: str, name: str) -> None:
        """Cancel tasks that there are not, one after the other; each is answered by an event of its own."""
        number = 0
        while True:
            job = ControlTask(task=f"{name}-{number}", tenant=tenant)
            with suppress(QueueFull, Unavailable):  # then the same one again
                await client.publish(Outgoing(streams.job("cancel", tenant), job, f"{name}-{number}"))
                self.sent, number = self.sent + 1, number + 1
            await asyncio.sleep(0.02)


async def closed_after(client: Bus, began: float) -> float:
    await eventually(lambda: not client.is_connected, 60)
    return time.monotonic() - began


async def connect(keyed: Keyed, file: Path) -> Bus:
    return await Bus.connect(keyed.url, "client", creds=file, timings=HASTY)


async def turn_over(operator: Operator, keyed: Keyed, tenant: str, folder: Path, numbers: range) -> tuple[list[float], list[Path]]:
    """Seconds from each revocation's begin to its connection's end, the work in PostgreSQL included, and files of revoked keys."""
    took, files = list[float](), list[Path]()
    for number in numbers:
        name, first, second = f"k{number}", folder / f"{tenant}-{number}.creds", folder / f"{tenant}-{number}-next.creds"
        await keys.create_key(operator, tenant, name, "member", Receiver(first, print), None)
        old = await connect(keyed, first)
        await keys.rotate_key(operator, tenant, name, Receiver(second, print), keep_old=False)
        await eventually(lambda old=old: not old.is_connected, 60)
        new = await connect(keyed, second)
        began = time.monotonic()
        ended = asyncio.create_task(closed_after(new, began))
        await keys.revoke_key(operator, tenant, name)
        took.append(await ended)
        files += [first, second]
        for client in (old, new):
            await client.close()
    return took, files


async def is_refused(keyed: Keyed, file: Path) -> bool:
    try:
        await (await connect(keyed, file)).close()
    except Fatal:
        return True
    return False


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.acceptance)])
async def test_revoked_keys_are_offline_at_once_and_others_lose_nothing(
    keyed: Keyed, keyed_world: World, tmp_path: Path, count: int
) -> None:
    flow, half = Flow(), count // 2 // len(TENANTS)
    folder = tmp_path / "held"
    folder.mkdir()
    async with AsyncExitStack() as entered:
        async with AsyncExitStack() as sending:
            async with recording.connected(keyed.keys, keyed.url) as operator:
                for tenant in TENANTS:
                    await accounts.create_tenant(operator, tenant)
                    for number in range(SENDERS):
                        file = folder / f"{tenant}-sender-{number}.creds"
                        await keys.create_key(operator, tenant, f"sender-{number}", "member", Receiver(file, print), None)
                        client = await sending.enter_async_context(await connect(keyed, file))
                        flow.clients.append(client)
                        await sending.enter_async_context(at_work(flow.send(client, tenant, f"{tenant}-{number}")))
                before = await asyncio.gather(*(turn_over(operator, keyed, tenant, folder, range(half)) for tenant in TENANTS))
                assert all(client.is_connected for client in flow.clients)
            keyed.process.kill()
            keyed.process.wait()
            entered.enter_context(running(keyed.command, keyed.port, tmp_path / "nats.log"))
            await eventually(lambda: all(client.is_connected for client in flow.clients), 30)
            async with recording.connected(keyed.keys, keyed.url) as operator:
                await eventually(lambda: _answers(operator), 60)
                numbers = range(half, count // len(TENANTS))
                after = await asyncio.gather(*(turn_over(operator, keyed, tenant, folder, numbers) for tenant in TENANTS))
            await eventually(lambda: all(client.is_connected for client in flow.clients), 30)
            sent = flow.sent
            await eventually(lambda: flow.sent > sent + len(flow.clients), 30)
            files = [file for _, made in (*before, *after) for file in made]
            assert len(files) == 2 * count
            assert [file.name for file in files if not await is_refused(keyed, file)] == []
        await eventually(lambda: _handled(keyed_world, flow), 240)
    took = sorted(seconds for part, _ in (*before, *after) for seconds in part)
    found = {"keys": count, "p50_s": statistics.median(took), "p99_s": took[int(0.99 * (len(took) - 1))], "max_s": took[-1]}
    print(json.dumps(found | {"jobs": flow.sent}))
    assert count < 100 or found["p50_s"] < OFFLINE_S


async def _answers(operator: Operator) -> bool:
    with suppress(NoAnswer):
        await recording.read_all(operator.door)
        return True
    return False


async def _handled(world: World, flow: Flow) -> bool:
    """Whether every job that NATS has confirmed was handled; one may be stored whose confirmation was lost."""
    answered = {subject for subject in await world.bus.streams.subjects(streams.EVENTS) if subject.split(".")[2].startswith(TENANTS)}
    handled = len(answered)
    return flow.sent <= handled <= flow.sent + len(flow.clients)
