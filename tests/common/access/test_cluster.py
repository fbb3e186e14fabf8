"""A cluster of three NATS nodes that wants keys: the configuration that is shipped, and what `marlaas keys server-config` writes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.access.claims import AccountLimits, tenant_token
from common.access.folder import SYSTEM, SigningKeys, issue_service_keys, open_or_make
from common.bus import Bus
from common.errors import Fatal
from marlaas.client import Client
from tests.common.cluster import NODES, Cluster, running_cluster
from tests.support.buses import HASTY
from tests.support.keyed import DEPLOYMENT, tenants_key
from tests.support.scheduler.stages import spec, submission
from tests.support.waiting import eventually

MARLAAS = Path(sys.executable).parent / "marlaas"


@pytest.fixture
def signing(tmp_path: Path) -> SigningKeys:
    keys = open_or_make(tmp_path / "keys")
    issue_service_keys(keys, DEPLOYMENT)
    return keys


def written(keys: SigningKeys, to: Path) -> Callable[[Path], str]:
    """What the command writes for a node with that folder of accounts."""

    def access(accounts: Path) -> str:
        arguments = ["keys", "server-config", "--keys", str(keys.folder), "--to", str(to), "--accounts", str(accounts)]
        subprocess.run([MARLAAS, *arguments], check=True, capture_output=True, timeout=250)
        return to.read_text()

    return access


@pytest.fixture
def cluster(signing: SigningKeys, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, written(signing, tmp_path / "access" / "nats.conf")) as cluster:
        for node in range(NODES):
            cluster.start(node)
        yield cluster


async def test_account_that_one_node_is_told_of_works_at_each_and_without_one(cluster: Cluster, signing: SigningKeys) -> None:
    async with await Bus.connect(cluster.url, "scheduler", creds=signing.credentials("scheduler"), timings=HASTY) as scheduler:
        await scheduler.declare(replicas=NODES)
        await scheduler.own_jobs.declare(["acme"])
    async with await Bus.connect(cluster.urls[0], SYSTEM, creds=signing.credentials(SYSTEM), timings=HASTY) as system:
        account, services, at_s = signing.new_tenant("acme").public, signing.services.public, int(time.time())
        await system.accounts.push(tenant_token(signing.operator, account, "acme", services, at_s, limits=AccountLimits(), revoked={}))
    key = tenants_key(signing, "acme", "owner")

    async def submits(node: int, task: str) -> bool:
        try:
            async with await Bus.connect(cluster.urls[node], "client", creds=key, timings=HASTY, until_accepted=False) as client:
                await client.publish(submission(task, spec()))
        except Fatal:  # this node has not heard of the account yet
            return False
        return True

    for node in range(NODES):
        await eventually(lambda node=node: submits(node, f"by-{node}"), 120)
    with pytest.raises(Fatal):
        async with Client.connect(cluster.urls[1]):
            pass
    await cluster.caught_up()
    cluster.kill(0)
    await eventually(lambda: submits(1, "without-0"), 120)
    async with await Bus.connect(cluster.urls[2], "scheduler", creds=signing.credentials("scheduler"), timings=HASTY) as scheduler:
        await eventually(lambda: _has_jobs(scheduler, NODES + 1), 120)


async def _has_jobs(scheduler: Bus, jobs: int) -> bool:
    return await scheduler.own_jobs.waiting() == {"acme": jobs}
