"""A client with a tenant's key, on a server that wants keys: what it does is done, and its jobs name the key."""

import asyncio
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from common import streams
from common.access.credentials import read_credentials
from common.bus import Bus, Outgoing
from common.messages import SubmitTask
from common.spec import mark_of, marked
from marlaas.client import Client, ClientError, TaskRejected
from tests.marlaas.tasks import SPEC
from tests.marlaas.verbs import TASK
from tests.support.buses import HASTY
from tests.support.keyed import Keyed
from tests.support.paths import ROOT
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import at_work, eventually_equals

PUBLISH_JOB = ROOT / "examples" / "publish_job.py"


async def test_tenant_trains_with_its_key_and_sees_nobody_else(keyed_world: World, keyed: Keyed, tmp_path: Path) -> None:
    await keyed_world.run("theirs", spec(tenant="globex"))
    async with Client.connect(keyed.url, creds=keyed.key("acme", "owner")) as client:
        task = await client.submit(SPEC)
        assert [event.event async for event in client.watch(task)] == ["accepted", "step", "step", "step", "finished"]
        assert [status.task for status in await client.tasks()] == [task]
        assert (await client.pull(task, tmp_path / "adapter", 2)).version == 2
        slow = await client.submit(SPEC, marked("slow-1", "acme"))
        await client.cancel(slow, "enough")
        assert (await client.wait(slow)).state == "cancelled"
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
        subject = streams.sent_by(streams.job("submit", "acme"), client.key.public)
        await scheduler.publish_raw(subject, b"\xff", "garbage", {})
        await eventually_equals(lambda: _subjects(client), [subject])
        await client.resend(1)
        await eventually_equals(lambda: _subjects(client), [subject, subject])
    async with Client.connect(keyed.url, creds=keyed.key("globex", "owner")) as client:
        assert await client.failures() == []


async def test_no_tenant_is_registered_by_submitting(keyed_world: World, keyed: Keyed) -> None:
    """On a newcomer's subject, on one's own with a newcomer in the message, and with a newcomer in the task."""
    key = keyed.key("acme", "owner")
    task = marked("a", "acme")
    job = SubmitTask(task=task, tenant="newcomer", spec=spec(tenant="newcomer"))
    async with Client.connect(keyed.url, creds=key) as client, await keyed.connect(key.stem) as bus:
        assert client.key is not None
        with pytest.raises(ClientError, match="may not"):
            await client.submit({**SPEC, "tenant": "newcomer"})
        own = streams.sent_by(streams.job("submit", "acme"), client.key.public)
        await bus.publish(Outgoing(own, job, "a newcomer in the message"))
        await eventually_equals(lambda: _subjects(client), [own])
        assert [failure.reason for failure in await client.failures()] == ["the subject names tenant 'acme', the message 'newcomer'"]
        await bus.publish(Outgoing(own, job.model_copy(update={"tenant": "acme"}), "a newcomer in the task"))
        assert "tenant: the task says 'newcomer', its subject 'acme'" in str(await keyed_world.event(task, "rejected"))
    assert await keyed_world.rows("SELECT id FROM tenants WHERE id = 'newcomer'") == []
    assert await keyed_world.rows("SELECT id FROM tasks") == []


async def test_stored_job_names_the_key_that_has_sent_it(keyed: Keyed) -> None:
    """No scheduler: the job stays where it is."""
    key = keyed.key("acme", "owner")
    async with Client.connect(keyed.url, creds=key, patience_s=0.1) as client, await keyed.connect("scheduler") as scheduler:
        assert client.key is not None
        async with at_work(client.submit(SPEC, "a", timeout_s=200)):
            await eventually_equals(scheduler.own_jobs.waiting, {"acme": 1, "globex": 0})
    async with await Bus.connect(keyed.url, "reading", creds=keyed.stages_key(), timings=HASTY) as bus:
        assert await bus.streams.subjects(streams.own_jobs("acme")) == {f"jobs.submit.acme.{client.key.public}": 1}


@pytest.mark.parametrize("state", ["running", "deleted"])
async def test_id_of_another_tenant_is_refused_by_its_form_whether_there_is_such_a_task(
    keyed_world: World, keyed: Keyed, state: str
) -> None:
    async with Client.connect(keyed.url, creds=keyed.key("acme", "owner")) as acme:
        theirs = await acme.submit(SPEC, marked("slow-theirs" if state == "running" else "theirs", "acme"))
        if state == "deleted":
            await acme.wait(theirs)
            await acme.delete(theirs)
    async with Client.connect(keyed.url, creds=keyed.key("globex", "member")) as globex:
        for task in (theirs, marked("absent", "acme"), marked("absent", "stranger"), "absent", mark_of("globex")):
            for wrong in ({}, {"pool": "nowhere"}):
                with pytest.raises(TaskRejected) as refused:
                    await globex.submit({**SPEC, **wrong, "tenant": "globex"}, task)
                end = mark_of("globex")
                assert refused.value.reasons == [f"task: an id that 'globex' makes ends in '-{end}'; not '{task}'"]
        assert await globex.tasks() == []
        assert await globex.submit({**SPEC, "tenant": "globex"}, marked("slow-1", "globex"))
    assert await keyed_world.rows("SELECT count(*) FROM events WHERE tenant = 'globex' AND event = 'rejected'") == [(0,)]


async def test_answer_that_is_sent_among_jobs_is_dropped(keyed_world: World, keyed: Keyed) -> None:
    """By a key that may send none: the reply subject of its question is a job's, of another key."""
    reader, owner = keyed.key("acme", "reader"), keyed.key("acme", "owner")
    client = await nats.connect(keyed.url, user_credentials=str(reader), inbox_prefix=read_credentials(reader).inbox)
    try:
        for verb in ("cancel", "submit", "delete-tenant"):
            for end in ("", f".{read_credentials(owner).public}"):
                await client.publish("ask.acme.tasks", b"", reply=f"jobs.{verb}.acme{end}")
        assert (await client.request("ask.acme.tasks", b"", timeout=60)).data
    finally:
        await client.close()
    async with Client.connect(keyed.url, creds=owner) as asking:
        task = await asking.submit(SPEC)
        await asking.wait(task)
        assert await asking.failures() == []
    await eventually_equals(keyed_world.bus.own_jobs.waiting, {"acme": 0, "globex": 0})


async def test_submission_that_failed_is_not_sent_again_by_another(keyed_world: World, keyed: Keyed) -> None:
    """The scheduler would be its sender, who may make any id."""
    key = keyed.key("acme", "owner")
    async with Client.connect(keyed.url, creds=key) as client, await keyed.connect(key.stem) as bus:
        await bus.publish_raw(streams.job("submit", "acme"), b"\xff", "garbage", {})
        await eventually_equals(lambda: _subjects(client), ["jobs.submit.acme"])
        with pytest.raises(ClientError, match="a job 'submit' is not sent again"):
            await client.resend(1)


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
