"""Intake of jobs: fair by tenant, bounded by tenant, each handled once."""

import asyncio
import json
import time
from dataclasses import replace

import nats
import psycopg
import pytest
from sqlalchemy import text

from common import streams
from common.bus import Bus, Outgoing
from common.errors import QueueFull
from common.messages import DeadLetter
from common.streams import MAX_WAITING_JOBS
from marlaas.client import Client, ClientError
from scheduler_svc.service import Scheduler
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.verbs.job_intake import JobIntake
from tests.support.buses import message_on
from tests.support.scheduler.stages import POOLS, Stages, running_world, spec, submission
from tests.support.waiting import at_work, eventually, eventually_equals

WITHOUT_BOUND = replace(streams.JOBS, max_per_subject=-1, refuses=False, announced="")


async def fill(bus: Bus, tenant: str, jobs: int) -> None:
    """Store so many submissions of one tenant."""
    await asyncio.gather(*(bus.publish(submission(f"{tenant}-{number}", spec(tenant=tenant))) for number in range(jobs)))


async def test_job_does_not_wait_behind_those_of_another_tenant(bus: Bus, database_url: str) -> None:
    await fill(bus, "acme", MAX_WAITING_JOBS)
    await bus.publish(submission("last", spec(tenant="globex")))
    with psycopg.connect(database_url.replace("+psycopg", "")) as holding:
        holding.execute("INSERT INTO tenants (id) VALUES ('acme')")  # its tasks wait until this ends
        async with running_world(bus, database_url, Stages(trains=False)) as world:
            await world.event("last", "accepted", "globex")
            assert await world.rows("SELECT id FROM tasks") == [("last",)]
            holding.rollback()
            await world.rows_become("SELECT count(*) FROM tasks", [(MAX_WAITING_JOBS + 1,)])
            await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)


async def test_job_does_not_wait_for_one_that_takes_long(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.run("slow", until="accepted")
        async with world.database.transaction() as tx:
            await tx.connection.execute(text("SELECT 1 FROM tasks WHERE id = 'slow' FOR UPDATE"))
            await world.control("pause", "slow")
            await world.run("quick", spec(tenant="globex"), until="accepted")
            await eventually_equals(lambda: bus.streams.subjects(streams.JOBS), {"jobs.pause.acme": 1})
        await world.event("slow", "paused")


async def test_more_jobs_than_may_wait_are_refused_at_once(bus: Bus, nats_url: str, database_url: str) -> None:
    await fill(bus, "acme", MAX_WAITING_JOBS)
    began = time.monotonic()
    with pytest.raises(QueueFull, match=r"as many messages wait on jobs\.submit\.acme as may"):
        await bus.publish(submission("more", spec()))
    await bus.publish(submission("acme-3", spec()))  # stored already, so it is no other job
    bare = await nats.connect(nats_url)
    answer = json.loads((await bare.request("jobs.submit.acme", b"{}")).data)
    assert answer["error"]["description"] == "maximum messages per subject exceeded"
    assert time.monotonic() - began < 20
    await fill(bus, "globex", 3)
    async with running_world(bus, database_url, Stages(trains=False)) as world, Client.connect(nats_url, "acme") as client:
        await world.rows_become("SELECT tenant, count(*) FROM tasks GROUP BY 1 ORDER BY 1", [("acme", MAX_WAITING_JOBS), ("globex", 3)])
        await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)
        async with world.database.transaction() as tx:  # the next jobs wait
            await tx.connection.execute(text("SELECT 1 FROM tasks WHERE tenant = 'acme' FOR UPDATE"))
            for number in range(MAX_WAITING_JOBS):
                await bus.publish(replace(submission("acme-1", spec()), message_id=f"again {number}"))
            began = time.monotonic()
            with pytest.raises(ClientError) as refused:
                await client.submit(spec(), "more")
            assert str(refused.value) == (
                "tenant 'acme' has as many jobs waiting as may: 100 'submit' of one key, 200 of all; send this one again later"
            )
            assert time.monotonic() - began < 20
        await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)
        assert await client.submit(spec(), "more") == "more"
    await bare.close()


async def test_two_replicas_handle_each_job_once(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world, await Bus.connect(nats_url, "second") as second:
        other = Scheduler(SchedulerSettings(database_url=database_url, tick_s=0.1), second, world.database, POOLS)
        async with at_work(other.run()):
            for tenant in ("acme", "globex", "initech"):
                await fill(bus, tenant, 20)
            await world.rows_become("SELECT count(*) FROM events WHERE event = 'accepted'", [(60,)])
            for number in range(20):
                await world.control("cancel", f"acme-{number}")
            await world.rows_become("SELECT count(*) FROM tasks WHERE state = 'cancelled'", [(20,)])
    assert await world.bus.streams.subjects(streams.FAILED) == {}


@pytest.mark.parametrize("subject", ["jobs.submit", "jobs.submit.ACME", "jobs.submit.a*b.c.d", "jobs.nothing.acme"])
async def test_subject_that_is_no_tenants_is_a_dead_letter(bus: Bus, database_url: str, subject: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        out = submission("a", spec())
        await bus.publish(Outgoing(subject, out.message, "odd"))
        letter = (await message_on(bus, streams.FAILED, "failed.jobs.none")).read(DeadLetter)
        assert letter.subject == subject
        await world.run("after", until="accepted")
        await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)


async def test_jobs_beyond_a_later_bound_are_kept_and_handled(nats_url: str, database_url: str) -> None:
    """They came while the stream had no bound, which would drop what exceeds it."""
    async with await Bus.connect(nats_url, "test") as bus:
        await bus.declare([WITHOUT_BOUND, *streams.STREAMS[1:]])
        await fill(bus, "acme", MAX_WAITING_JOBS + 20)
        await bus.declare()
        assert await bus.streams.subjects(streams.JOBS) == {"jobs.submit.acme": MAX_WAITING_JOBS + 20}
        async with running_world(bus, database_url, Stages(trains=False)) as world:
            await world.rows_become("SELECT count(*) FROM tasks", [(MAX_WAITING_JOBS + 20,)])
            await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)
        await bus.declare()
        await fill(bus, "globex", MAX_WAITING_JOBS)
        with pytest.raises(QueueFull):
            await bus.publish(submission("more", spec(tenant="globex")))


async def test_runner_ends_without_jobs_and_comes_back(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        intake = JobIntake(bus, world.scheduler._context, unused_s=0.5)
        async with at_work(intake.run()):
            for task in ("a", "b", "c"):
                await world.submit(task)
                await eventually(lambda: intake._runners)
                await world.event(task, "accepted")
                await eventually(lambda: not intake._runners)


async def test_stream_of_a_tenants_jobs_is_there_while_it_has_keys_and_goes_at_a_start_after_its_deletion(
    bus: Bus, database_url: str
) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        await world.run("a", until="accepted")
        await world.execute(f"UPDATE tenants SET account = 'A{'B' * 55}'")
        async with at_work(JobIntake(bus, world.scheduler._context).run()):
            await eventually_equals(bus.own_jobs.waiting, {"acme": 0})
            out = submission("b", spec())
            await bus.publish(replace(out, subject=streams.from_tenant("acme", out.subject)))
            await world.event("b", "rejected")  # its id has no mark of the tenant
        await world.execute("UPDATE tenants SET deleted_by = 1, deletion = '{}'")
        for is_deleted in ("NULL", "now()"):  # while it is being deleted its owner may ask for the rest
            await world.execute(f"UPDATE tenants SET deleted_at = {is_deleted}")
            async with at_work(JobIntake(bus, world.scheduler._context).run()):
                await eventually_equals(bus.own_jobs.waiting, {"acme": 0} if is_deleted == "NULL" else {})
