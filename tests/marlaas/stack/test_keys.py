"""A stack with keys: what its services are given, and where its streams are."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.access.folder import open_folder, open_or_make
from common.access.services import Deployment
from common.bus import Bus
from common.errors import Fatal
from common.messages import FILE_FAMILY, OWN_FAMILY
from common.streams import JOBS
from env_svc import registry
from marlaas.stack import control, servers
from marlaas.stack.keys import installed_families, prepared, rekey
from marlaas.stack.state_files import StackError
from tests.support.consuming import job
from tests.support.paths import ROOT
from tests.support.servers import running

POOLS = ROOT / "pools.toml"
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
    assert installed_families(None) == [*registry.families(), FILE_FAMILY, OWN_FAMILY]


async def test_streams_of_lost_keys_are_there_with_new_ones_and_the_old_ones_are_refused(tmp_path: Path) -> None:
    folder, port, lost, new = tmp_path / "data" / "nats", servers.free_port(), tmp_path / "lost", tmp_path / "new"
    with pytest.raises(StackError, match=r"no streams in .* belong to keys that could be replaced"):
        rekey(new, folder)
    with running(servers.nats_command(folder, port, accounts=prepared(lost, folder, DEPLOYMENT)), port, tmp_path / "nats.log"):
        async with await Bus.connect(servers.nats_url(port), "before", creds=open_folder(lost).credentials("scheduler")) as bus:
            await bus.declare()
            await bus.publish(job("a"))
    with pytest.raises(StackError, match=r"belong to keys that are not in .*: name their folder with --keys.*`marlaas init --rekey`"):
        control.make_plan(tmp_path / "data", POOLS)
    with pytest.raises(StackError, match=r"belong to the keys in .*lost; to replace these, move that folder away first"):
        rekey(lost, folder)
    open_or_make(new)  # as an interrupted command leaves it
    rekey(new, folder)
    with running(servers.nats_command(folder, port, accounts=prepared(new, folder, DEPLOYMENT)), port, tmp_path / "nats.log"):
        async with await Bus.connect(servers.nats_url(port), "after", creds=open_folder(new).credentials("scheduler")) as bus:
            await bus.wait_until_declared()
            assert await bus.streams.backlog(JOBS) == 1
        for key in (open_folder(lost).credentials("scheduler"), open_folder(lost).credentials("system")):
            with pytest.raises(Fatal, match="refuses"):
                await Bus.connect(servers.nats_url(port), "stolen", creds=key)


def test_new_stack_makes_its_keys_in_its_folder_and_streams_stay_with_their_keys_or_without(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert control.make_plan(data, POOLS).keys == data / "keys"
    assert control.make_plan(data, POOLS, keys=tmp_path / "others").keys == tmp_path / "others"
    assert control.make_plan(data, POOLS, without_keys=True).keys is None
    store = data / "nats" / servers.STORE / "jetstream"
    (store / "$G").mkdir(parents=True)
    assert control.make_plan(data, POOLS, without_keys=True).keys is None
    with pytest.raises(StackError, match="were made without keys, and are not there with them; start with --open"):
        control.make_plan(data, POOLS)
    (store / "$G").rename(store / f"A{'B' * 55}")
    with pytest.raises(StackError, match="belong to keys, and are not there without them; start without --open"):
        control.make_plan(data, POOLS, without_keys=True)
    open_or_make(tmp_path / "others")
    with pytest.raises(StackError, match=r"belong to keys that are not in .*others"):
        control.make_plan(data, POOLS, keys=tmp_path / "others")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    control.stop(tmp_path / "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_same_user_needs_no_option_and_another_user_is_refused(data: Path) -> None:
    plan = control.make_plan(data, POOLS).model_copy(update={"services": [], "prepare": []})
    stack = control.wait_until_ready(control.start(plan), lambda _: None)
    assert stack.operator_key is not None
    async with await Bus.connect(stack.nats_url, "operator", creds=stack.operator_key) as bus:
        assert bus.key is not None and bus.key.name == "operator"
    with pytest.raises(Fatal, match="requires a key"):
        await Bus.connect(stack.nats_url, "nobody")
    for path in (stack.operator_key, *sorted((data / "keys").rglob("*.seed"))):
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", str(path)], capture_output=True)
        assert (done.returncode, done.stdout) == (1, b"")
        assert path.stat().st_mode & 0o777 == 0o600
    folders = [data / "keys", *(path for path in (data / "keys").rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
