"""A client with a tenant's key, on a server that wants keys: what it does is done, and its jobs name the key."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from common import streams
from common.bus import Outgoing
from common.messages import SubmitTask
from marlaas.client import Client, ClientError, NoAnswer
from tests.common.access.keyed import Keyed
from tests.conftest import eventually_equals
from tests.marlaas.conftest import SPEC
from tests.scheduler.stages import World, spec

PUBLISH_JOB = Path(__file__).parents[3] / "examples" / "publish_job.py"
TASK = """\
name = "gcd"
tenant = "acme"
pool = "tiny"
steps = 3
environment.name = "toy"
algorithm = { group_size = 2, groups_per_step = 2, max_staleness = 1 }
"""


async def test_tenant_trains_with_its_key_and_sees_nobody_else(keyed_world: World, keyed: Keyed, tmp_path: Path) -> None:
    await keyed_world.run("theirs", spec(tenant="globex"))
    async with Client.connect(keyed.url, creds=keyed.key("acme", "owner")) as client:
        task = await client.submit(SPEC)
        assert [event.event async for event in client.watch(task)] == ["accepted", "step", "step", "step", "finished"]
        assert [status.task for status in await client.tasks()] == [task]
        assert (await client.pull(task, tmp_path / "adapter", 2)).version == 2
        await client.submit(SPEC, "slow-1")
        await client.cancel("slow-1", "enough")
        assert (await client.wait("slow-1")).state == "cancelled"
        assert await client.delete(task) > 0


async def test_bare_client_needs_the_file_with_its_key_and_no_other_option(keyed_world: World, keyed: Keyed, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    argv = [sys.executable, str(PUBLISH_JOB), str(tmp_path / "task.toml"), keyed.url, "--creds", str(keyed.key("acme", "member"))]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("finished ")


async def test_job_that_names_its_key_is_resent_to_its_tenant(keyed_world: World, keyed: Keyed) -> None:
    key = keyed.key("acme", "owner")
    async with Client.connect(keyed.url, creds=key) as client, await keyed.connect("scheduler") as scheduler:
        assert client.key is not None
        subject = streams.sent_by(streams.submit("acme"), client.key.public)
        await scheduler.publish_raw(subject, b"\xff", "garbage", {})
        await eventually_equals(lambda: _subjects(client), [subject])
        await client.resend(1)
        await eventually_equals(lambda: _subjects(client), [subject, subject])
    async with Client.connect(keyed.url, creds=keyed.key("globex", "owner")) as client:
        assert await client.failures() == []


async def test_no_tenant_is_registered_by_submitting(keyed_world: World, keyed: Keyed) -> None:
    """On a newcomer's subject, on one's own with a newcomer in the message, and with a newcomer in the task."""
    key = keyed.key("acme", "owner")
    job = SubmitTask(task="a", tenant="newcomer", spec=spec(tenant="newcomer"))
    async with Client.connect(keyed.url, creds=key) as client, await keyed.connect(key.stem) as bus:
        assert client.key is not None
        with pytest.raises(ClientError, match="may not"):
            await client.submit({**SPEC, "tenant": "newcomer"})
        own = streams.sent_by(streams.submit("acme"), client.key.public)
        await bus.publish(Outgoing(own, job, "a newcomer in the message"))
        await eventually_equals(lambda: _subjects(client), [own])
        assert [failure.reason for failure in await client.failures()] == ["the subject names tenant 'acme', the message 'newcomer'"]
        await bus.publish(Outgoing(own, job.model_copy(update={"tenant": "acme"}), "a newcomer in the task"))
        assert "tenant: the task says 'newcomer', its subject 'acme'" in str(await keyed_world.event("a", "rejected"))
    assert await keyed_world.rows("SELECT id FROM tenants WHERE id = 'newcomer'") == []
    assert await keyed_world.rows("SELECT id FROM tasks") == []


async def test_stored_job_names_the_key_that_has_sent_it(keyed: Keyed) -> None:
    """No scheduler: the job stays where it is."""
    key = keyed.key("acme", "owner")
    async with Client.connect(keyed.url, creds=key, patience_s=0.1) as client, await keyed.connect("scheduler") as scheduler:
        assert client.key is not None
        with pytest.raises(NoAnswer):
            await client.submit(SPEC, "a", timeout_s=1.0)
        stored = await scheduler.streams.subjects(streams.JOBS)
        assert stored == {f"jobs.submit.acme.{client.key.public}": 1}


@pytest.mark.parametrize(("role", "refused"), [("reader", "role reader may not cancel"), ("member", None)])
async def test_role_decides_who_may_cancel(keyed_world: World, keyed: Keyed, role: str, refused: str | None) -> None:
    await keyed_world.begin("slow-1", spec(), opened=4)
    async with Client.connect(keyed.url, creds=keyed.key("acme", role)) as client:  # type: ignore[arg-type]
        if refused is None:
            await client.cancel("slow-1")
            assert (await client.wait("slow-1")).state == "cancelled"
            return
        with pytest.raises(ClientError, match=refused):
            await client.cancel("slow-1")
        assert (await client.status("slow-1")).state == "running"


async def _subjects(client: Client) -> list[str]:
    return [failure.subject for failure in await client.failures()]
