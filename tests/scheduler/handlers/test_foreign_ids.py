"""Jobs about ids of other tenants' tasks: answered as those about ids that there are not, and without a row."""

import asyncio
from dataclasses import replace

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import ControlTask
from marlaas.client import Client, TaskRejected
from scheduler_svc.training.queries import tasks
from tests.support.scheduler.stages import ControlVerb, Stages, World, running_world, spec, submission

ROWS = """
SELECT 'events' FROM events WHERE tenant = 'globex' UNION ALL SELECT 'numbers' FROM event_numbers WHERE tenant = 'globex'
UNION ALL SELECT 'tasks' FROM tasks WHERE tenant = 'globex' UNION ALL SELECT 'tenants' FROM tenants WHERE id = 'globex'
UNION ALL SELECT 'letters' FROM dead_letters
"""
VERBS: list[ControlVerb] = ["cancel", "pause", "resume", "delete"]


async def test_foreign_id_is_answered_as_an_absent_one_and_leaves_no_row(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("theirs", opened=4)
        for verb in VERBS:
            answers = [await refusal(world, verb, task) for task in ("theirs", "absent")]
            assert answers[0].replace("theirs", "absent") == answers[1]
            assert "no task 'absent' of tenant 'globex'" in answers[1]
        assert await world.rows(ROWS) == []
        assert await world.rows("SELECT state FROM tasks") == [("running",)]


async def refusal(world: World, verb: ControlVerb, task: str) -> str:
    """The answer to a job of `globex`, with all that it carries but its time."""
    message = ControlTask(task=task, tenant="globex")
    before = await world.events(task, "rejected")
    await world.bus.publish(Outgoing(streams.job(verb, "globex"), message, f"{verb}:{task}"))
    async with asyncio.timeout(60):
        while (found := await world.events(task, "rejected")) == before:
            await asyncio.sleep(0.02)
    return str(found[-1])


@pytest.mark.parametrize("state", ["running", "deleted"])
async def test_submission_under_a_foreign_id_is_refused_in_one_sentence_and_leaves_no_row(
    bus: Bus, nats_url: str, database_url: str, state: str
) -> None:
    stages = Stages(withheld=lambda group, member: state == "running")
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await (world.begin("theirs", opened=4) if state == "running" else world.run("theirs"))
        if state == "deleted":
            await world.control("delete", "theirs", until="deleted")
        for raw in (spec(tenant="globex"), spec(tenant="globex", pool="nowhere")):  # also where all else is wrong
            with pytest.raises(TaskRejected) as refused:
                await client.submit(raw, "theirs")
            assert refused.value.reasons == ["task: the id 'theirs' is not available; choose another"]
        assert await world.rows(ROWS) == []
        assert await world.rows("SELECT id, tenant FROM tasks") == ([("theirs", "acme")] if state == "running" else [])


async def test_foreign_task_is_not_locked(bus: Bus, database_url: str) -> None:
    """A job of another tenant does not wait for the task's own transaction."""
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("theirs", opened=4)
        async with world.database.transaction() as tx:
            assert await tasks.lock_own_task(tx.connection, "acme", "theirs") is not None
            await refusal(world, "cancel", "theirs")
            await bus.publish(replace(submission("theirs", spec(tenant="globex")), message_id="theirs by globex"))
            async with asyncio.timeout(60):
                while "not available" not in str(await world.events("theirs", "rejected")):
                    await asyncio.sleep(0.02)
