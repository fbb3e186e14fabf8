"""Stacks that serve, and tasks whose versions they serve."""

import asyncio
import re
import tempfile
import tomllib
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from bench.harness.keys import keys_of, measuring, operator
from bench.harness.report import ROOT
from bench.harness.services import BenchError, local_stack
from bench.harness.tenants import admin
from bench.isolation import spec
from common.client_api.errors import Unanswered
from common.spec import TaskSpec
from marlaas.client import Client
from marlaas.stack import servers
from marlaas.stack.state_files import Stack, StackPlan

TENANT = "acme"
POOL = "tiny"
SEQUENCES = 64
"""Seats for serving."""
WITHOUT_MODEL = ("rollout_svc", "trainer_svc", "env_svc")


@contextmanager
def pools_file(sequences: int = SEQUENCES, adapters: int = 4, *, kv_cache_gib: float | None = None) -> Generator[Path]:
    """The tiny pool, which serves. `kv_cache_gib`: None for that of the repository's file."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        path = Path(folder) / "pools.toml"
        text = (ROOT / "pools.toml").read_text().replace('"models/tiny"', f'"{ROOT / "models/tiny"}"')
        head, name, rest = text.partition(f"[{POOL}.serving]")
        head = head if kv_cache_gib is None else re.sub(r"kv_cache_gib = \S+", f"kv_cache_gib = {kv_cache_gib}", head, count=1)
        rest = re.sub(r"sequences = \d+\nadapters = \d+", f"sequences = {sequences}\nadapters = {adapters}", rest, count=1)
        path.write_text(head + name + rest)
        assert tomllib.loads(path.read_text())[POOL]["serving"] == {"sequences": sequences, "adapters": adapters}
        yield path


@contextmanager
def serving_stack(*, gateways: int = 1, without_model: bool = False, kv_cache_gib: float | None = None) -> Generator["Serving"]:
    """`without_model`: no replicas of the services that need one, which something else stands in for."""
    ports = [servers.free_port() for _ in range(gateways - 1)]

    def changed(plan: StackPlan) -> StackPlan:
        services = [one for one in plan.services if not (without_model and set(WITHOUT_MODEL) & set(one.argv))]
        [first] = [one for one in services if one.name == "gateway"]
        for number, port in enumerate(ports, 2):
            name = f"gateway-{number}"
            own = {"MARLAAS_GATEWAY_PORT": str(port), "MARLAAS_REPLICA": name, "MARLAAS_DATA_DIR": str(plan.data / "cache" / name)}
            services.append(first.model_copy(update={"name": name, "env": first.env | own}))
        return plan.model_copy(update={"services": services})

    with pools_file(kv_cache_gib=kv_cache_gib) as pools, local_stack(pools, changed=changed) as stack:
        yield Serving(stack, [stack.gateway.url, *(f"http://127.0.0.1:{port}" for port in ports)])


class Serving:
    """A running stack, and the addresses of its gateways."""

    def __init__(self, stack: Stack, urls: list[str]) -> None:
        self._stack = stack
        self.urls = urls
        self.nats_url, self.creds = measuring(stack)
        """For what listens, and for stand-ins of services."""
        self.key = asyncio.run(admin(stack.nats_url, keys_of(stack), urls))
        """Of HTTP clients, which name their tenant in the query."""

    def client(self) -> AbstractAsyncContextManager[Client]:
        return operator(self._stack)

    def process(self, name: str) -> psutil.Process:
        identity = self._stack.component(name).process
        if identity is None:
            raise BenchError(f"{name} does not run")
        return psutil.Process(identity.pid)

    def names(self, package: str) -> list[str]:
        """Components whose names begin so."""
        return [one.name for one in self._stack.components if one.name.startswith(package)]


def task(steps: int, *, seed: int = 1, learning_rate: float = 3e-3) -> TaskSpec:
    sections = {
        "lora": {"rank": 8},
        "algorithm": {"groups_per_step": 4, "max_staleness": 1},
        "optimizer": {"learning_rate": learning_rate},
        "keep": {"adapters": "all"},
    }
    return spec(f"served-{seed}", seed, steps, 3, sections).model_copy(update={"tenant": TENANT})


async def with_tenant(client: Client) -> None:
    """The tenant exists once it has submitted; no environment service checks the task here, so that no answer comes."""
    with suppress(Unanswered):
        await client.submit(task(1), timeout_s=3)


async def trained(client: Client, steps: int, *, seed: int = 1) -> str:
    """Id of a task that has ended with `steps` versions."""
    found = await client.submit(task(steps, seed=seed))
    status = await client.wait(found)
    if status.state != "finished":
        raise BenchError(f"the task ended otherwise: {status.state}: {status.reason}")
    return found
