"""The target of faults: a running stack, with connections, clocks and a disk that can fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from bench.harness.keys import measuring_key
from common.bus import Bus
from marlaas.stack.state_files import read_plan, read_stack
from tests.support.clock import Clocks
from tests.support.proxy import Wire

SERVICES = ("scheduler", "env", "rollout-tiny", "trainer-tiny", "gateway")
SERVERS = ("nats", "postgres")


@dataclass(frozen=True)
class Target:
    """One stack, and the tools."""

    data: Path
    nats_url: str
    """NATS's address, without a proxy."""
    random: Random
    wires: dict[str, Wire]
    """Proxies by name: `<service>-nats` of each service, and `scheduler-postgres`."""
    clocks: Clocks | None
    """None where there is no C compiler."""
    disk: Path | None
    """NATS's own file system; None where none could be mounted."""
    points_reached: list[str]
    """Crash points at which a service died, one entry each time."""

    def armed(self, service: str) -> Path:
        return self.data / "armed" / service

    def restarts(self, name: str) -> int:
        stack = read_stack(self.data)
        return stack.component(name).restarts if stack else 0

    def start_s(self, name: str) -> float:
        """Seconds of the component's latest start until it was ready; 0 where unknown."""
        stack = read_stack(self.data)
        return (stack.component(name).took_s if stack else None) or 0.0

    def tree(self, name: str) -> list[psutil.Process]:
        """The component's process and its descendants; empty while it restarts."""
        stack = read_stack(self.data)
        process = stack.component(name).process if stack else None
        if process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            return [root, *root.children(recursive=True)]
        return []

    async def pass_time(self, min_s: float, max_s: float) -> None:
        await asyncio.sleep(self.random.uniform(min_s, max_s))

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A connection of the harness's own, which may do everything."""
        folder = read_plan(self.data).keys
        assert folder is not None
        async with await Bus.connect(self.nats_url, "chaos", creds=measuring_key(folder)) as bus:
            yield bus
