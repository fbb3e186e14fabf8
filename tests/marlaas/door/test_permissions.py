"""A client with the permissions of a tenant, and no others: jobs and asks under its name, its events, its inbox. A real nats-server."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from common.bus import Bus
from marlaas.client import Client, ClientError, TaskRejected, UnknownTask
from marlaas.stack import servers
from tests.marlaas.tasks import SPEC
from tests.support.buses import HASTY
from tests.support.paths import ROOT
from tests.support.scheduler.finished import is_slow, settled, stages
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.servers import running
from tests.support.waiting import eventually_equals

USERS = """
authorization {
  users: [
    { user: services, password: s }
    { user: acme, password: a, permissions: { publish: ["jobs.*.acme", "ask.acme.*"], subscribe: ["events.acme.>", "_INBOX.>"] } }
  ]
}
"""


@pytest.fixture
def guarded_port(tmp_path: Path) -> Iterator[int]:
    port = servers.free_port()
    command = servers.nats_command(tmp_path / "guarded", port, sync="1s")
    with (tmp_path / "guarded" / "nats.conf").open("a") as config:
        config.write(USERS)
    with running(command, port, tmp_path / "guarded.log"):
        yield port


@pytest.fixture
async def guarded(guarded_port: int, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    async with await Bus.connect(f"nats://services:s@127.0.0.1:{guarded_port}", "services", timings=HASTY) as bus:
        await bus.declare()
        made = stages(bus, tmp_path / "made", withheld=is_slow)
        async with running_world(bus, database_url, made) as world:
            yield world


@pytest.fixture
def acme_url(guarded_port: int) -> str:
    return f"nats://acme:a@127.0.0.1:{guarded_port}"


async def test_everything_that_a_user_does_goes_through_the_door(guarded: World, acme_url: str, tmp_path: Path) -> None:
    await guarded.run("theirs", spec(tenant="globex"))
    async with Client.connect(acme_url, "acme") as client:
        await eventually_equals(lambda: _environments(client), ["toy"])
        assert [pool.name for pool in await client.pools()] == ["tiny"]
        assert (await client.preview(SPEC)).reasons == []
        task = await client.submit(SPEC)
        assert [event.event async for event in client.watch(task)] == ["accepted", "step", "step", "step", "finished"]
        assert (await client.wait(task)).state == "finished"
        assert [status.task for status in await client.tasks()] == [task]
        assert (await client.pull(task, tmp_path / "adapter", 2)).version == 2
        assert (tmp_path / "adapter" / "content").read_text() == f"{task} 2 adapter "
        assert [one.tenant for one in (await client.usage()).tenants] == ["acme"]
        assert list(await client.stored()) == [task]
        assert await client.failures() == []
        assert (await client.evaluations(task)).reports == []
        assert [step.version for step in await client.steps(task, after=1)] == [2, 3]
        assert (await client.versions(task)).latest == 3
        assert (await client.spec(task))["environment"]["name"] == "toy"
        assert {one.service for one in await client.replicas()} == {"env", "rollout"}
        assert [one.task for one in await client.tasks(states=["finished"], text=task[:4].upper())] == [task]
        assert await client.tasks(states=["running"]) == []
        assert await client.submit(SPEC, "slow-1") == "slow-1"
        assert (await client.why("slow-1")).task == "slow-1"
        await client.pause("slow-1")
        await client.resume("slow-1")
        await client.cancel("slow-1", "enough")
        assert (await client.wait("slow-1")).state == "cancelled"
        with pytest.raises(TaskRejected, match="no pool 'huge'"):
            await client.submit({**SPEC, "pool": "huge"})
        with pytest.raises(ClientError, match="there is no dead letter 1;"):
            await client.resend(1)
        await settled(guarded)
        assert await client.delete(task) > 0
        [pruned] = await client.prune(dry_run=True)
        assert (pruned.tenant, pruned.task_count) == ("acme", 0)
        with pytest.raises(UnknownTask):
            await client.status("theirs")


async def _environments(client: Client) -> list[str]:
    return (await client.environments()).environments


async def test_what_is_not_permitted_is_said_at_once(guarded: World, acme_url: str) -> None:
    for tenant in ("globex", None):
        async with Client.connect(acme_url, tenant) as client:
            began = time.monotonic()
            with pytest.raises(ClientError, match="forbids this: this connection may not use 'ask"):
                await client.tasks()
            with pytest.raises(ClientError, match=r"may not use '(events|ask)"):
                await anext(aiter(client.watch()))
            with pytest.raises(ClientError, match=r"may not use '(events|jobs\.submit)\.globex"):
                await client.submit({**SPEC, "tenant": "globex"})
            assert time.monotonic() - began < 20
    async with Client.connect(acme_url, "acme") as client:
        assert await client.tasks() == [], "refused subjects end no connection"


async def test_jetstream_is_not_needed_and_not_permitted(guarded: World, acme_url: str) -> None:
    client = await nats.connect(acme_url)
    try:
        with pytest.raises(NatsTimeoutError):
            await client.request("$JS.API.STREAM.NAMES", b"", timeout=1)
    finally:
        await client.close()


async def test_command_line_and_the_bare_client(guarded: World, acme_url: str, tmp_path: Path) -> None:
    task_file = tmp_path / "task.toml"
    task_file.write_text(
        'name = "sums"\ntenant = "acme"\npool = "tiny"\nsteps = 3\nenvironment.name = "toy"\n'
        "algorithm = { group_size = 2, groups_per_step = 2, max_staleness = 1 }\n"
    )
    script = [sys.executable, str(ROOT / "examples" / "publish_job.py"), str(task_file), acme_url]
    done = await asyncio.to_thread(subprocess.run, script, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split()[0] for line in done.stdout.splitlines()]
    assert lines == ["submitted", "accepted", "step", "step", "step", "finished"]
    task = done.stdout.split()[1]

    async def run(*arguments: str) -> str:
        argv = [str(Path(sys.executable).parent / "marlaas"), *arguments, "--url", acme_url]
        env = os.environ | {"MARLAAS_TENANT": "acme"}
        result = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=env)
        assert (
            result.returncode,
            result.stderr.replace("code that policies write runs in none: tasks that need one are refused\n", ""),
        ) == (0, "")
        return result.stdout

    for command in (["ps"], ["ps", "--wide"], ["usage"], ["show", task]):
        assert task in await run(*command), command
    assert len((await run("watch", task)).splitlines()) == 5
    assert await run("failures") == "no dead letters\n"
    assert await run("envs") == "toy\n"
    assert "tiny" in await run("pools")
    assert f"version 3 of {task}" in await run("pull", task)
