"""A stack with keys: what its services are given, and where its streams are."""

from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.access.folder import open_or_make
from common.access.services import Deployment
from common.bus import Bus
from common.errors import Fatal
from common.streams import JOBS
from env_svc import registry
from marlaas.stack import control, servers
from marlaas.stack.keys import installed_families, prepared
from marlaas.stack.state_files import StackError
from tests.common.bus.consuming import job
from tests.conftest import running

POOLS = Path(__file__).parents[3] / "pools.toml"
DEPLOYMENT = Deployment(pools=("tiny",), families=("math",))


def test_each_service_gets_its_own_key_and_the_plan_holds_no_secret(tmp_path: Path) -> None:
    plan = control.make_plan(tmp_path / "data", POOLS, keys=tmp_path / "keys")
    prepared(tmp_path / "keys", tmp_path / "nats", DEPLOYMENT)
    for service in plan.services:
        assert read_credentials(Path(service.env["MARLAAS_NATS_CREDS"])).name == service.name.partition("-")[0]
    text = plan.model_dump_json()
    seeds = [path.read_text().strip() for path in (tmp_path / "keys").glob("*.seed")]
    assert len(seeds) == 4
    assert not any(seed in text for seed in seeds)


def test_families_are_those_that_a_replica_serves() -> None:
    assert installed_families(None) == registry.families()


async def test_streams_from_before_the_keys_are_there_with_them(tmp_path: Path) -> None:
    folder, port = tmp_path / "data" / "nats", servers.free_port()
    with running(servers.nats_command(folder, port), port, tmp_path / "nats.log"):
        async with await Bus.connect(servers.nats_url(port), "before") as bus:
            await bus.declare()
            await bus.publish(job("a"))
    keys = open_or_make(tmp_path / "keys")
    accounts = prepared(tmp_path / "keys", folder, DEPLOYMENT)
    with running(servers.nats_command(folder, port, accounts=accounts), port, tmp_path / "nats.log"):
        async with await Bus.connect(servers.nats_url(port), "after", creds=keys.credentials("scheduler")) as bus:
            await bus.wait_until_declared()
            assert await bus.streams.backlog(JOBS) == 1
        with pytest.raises(Fatal, match="takes nobody without a key"):
            await Bus.connect(servers.nats_url(port), "nobody")
    with pytest.raises(StackError, match="belong to keys; name their folder with --keys"):
        control.make_plan(tmp_path / "data", POOLS)
