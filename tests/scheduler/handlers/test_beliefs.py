"""Forged messages on the scheduler's subjects, as a stolen service key could send them: none counts, and the honest ones still do."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import EnvironmentChecked, TrainBatch, WeightUpdated
from scheduler_svc.upkeep.stalls import resend_lost_steps
from tests.scheduler.gated import forget_message_ids, is_forgotten
from tests.support.scheduler.dead_letters import recorded
from tests.support.scheduler.stages import Stages, World, running_world, scored, spec, updated
from tests.support.waiting import eventually

LETTERS = "SELECT reason FROM dead_letters ORDER BY sequence"


async def reason_of(world: World) -> str:
    """Reason of the one dead letter."""
    await recorded(world, 1)
    [(reason,)] = await world.rows(LETTERS)
    return reason


def update(batch: TrainBatch, **changes: object) -> Outgoing:
    """The honest announcement of the batch, with other fields."""
    message = updated(batch).message
    assert isinstance(message, WeightUpdated)
    return replace(updated(batch), message=message.model_copy(update=changes), message_id="forged")


def of_the_next_version(batch: TrainBatch) -> Outgoing:
    return replace(updated(batch.model_copy(update={"version": batch.version + 1})), message_id="forged")


def on_anothers_subject(batch: TrainBatch) -> Outgoing:
    return replace(updated(batch), subject=streams.weight_updated("tiny", "b"), message_id="forged")


UPDATES: dict[str, tuple[Callable[[TrainBatch], Outgoing], str]] = {
    "of another batch": (lambda batch: update(batch, trained="f" * 64), "is of another batch than was sent to the trainer"),
    "of another tenant": (lambda batch: update(batch, tenant="globex"), "names tenant 'globex' and pool 'tiny', which are not the task's"),
    "of a step that was not sent": (of_the_next_version, "is of no step that is with the trainer; the task has version 0"),
    "on another task's subject": (on_anothers_subject, "the subject names task 'b', the message 'a'"),
}


@pytest.mark.parametrize("forged", UPDATES)
async def test_forged_update_moves_no_task(bus: Bus, database_url: str, forged: str) -> None:
    make, reason = UPDATES[forged]
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(steps=1), batches=1)
        [batch] = stages.batches
        await bus.publish(make(batch))
        assert reason in await reason_of(world)
        assert await world.rows("SELECT version, state FROM tasks") == [(0, "running")]
        assert await world.rows("SELECT count(*) FROM ledger WHERE kind = 'trained'") == [(0,)]
        await bus.publish(updated(batch))
        await world.event("a", "finished")
        assert await world.rows("SELECT tenant FROM ledger WHERE kind = 'trained'") == [("acme",)]


async def test_repeated_updates_and_scores_are_no_dead_letters(bus: Bus, database_url: str) -> None:
    """Also those that come when their step and their task are over."""
    stages = Stages()
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", spec(steps=2))
        repeated = [updated(batch) for batch in stages.batches] + [scored(group, 0, reward=0.0) for group in stages.opened]
        for number, out in enumerate(repeated):
            await bus.publish(replace(out, message_id=f"once more {number}"))
        await eventually(lambda: handled(bus))
        assert await world.rows(LETTERS) == []
        assert await bus.streams.subjects(streams.FAILED) == {}


async def handled(bus: Bus) -> bool:
    """Whether the scheduler has acknowledged all updates."""
    return await bus.streams.acknowledged(streams.SCHEDULER_WEIGHTS) == sum([1 async for _ in bus.streams.stored(streams.WEIGHTS, ">")])


async def test_forged_update_that_hides_the_true_one_does_not_keep_the_step_from_being_resent(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(steps=1), batches=1)
        true = updated(stages.batches[0])
        forged = await bus.publish(replace(update(stages.batches[0], trained="f" * 64), message_id=true.message_id))
        await recorded(world, 1)
        assert await bus.publish(true) == forged  # NATS drops it as a duplicate
        assert not await is_forgotten(bus, true)
        await forget_message_ids(bus)
        await eventually(lambda: is_forgotten(bus, true))  # or NATS would also drop the resent step's
        stages.trains = True

        async def is_resent() -> bool:
            await resend_lost_steps(world.database, bus, age_s=0)
            return len(stages.batches) > 1

        await eventually(is_resent)
        assert stages.batches[0].digest == stages.batches[1].digest
        await world.event("a", "finished")


async def test_score_of_another_version_settles_nothing(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group == 0)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(steps=1), opened=2)
        first = next(group for group in stages.opened if group.group == 0)
        for out in (scored(first.model_copy(update={"version": 7}), 0, reward=9.0), scored(first, 0, reward=0.0)):
            await bus.publish(replace(out, message_id=f"score {out.message}"))
        assert "the score says that version 7 sampled group 0 of task a; it was version 0" in await reason_of(world)
        await world.rows_become('SELECT reward FROM trajectories WHERE "group" = 0 AND member = 0', [(0.0,)])
        await bus.publish(scored(first, 1, reward=1.0))
        await world.event("a", "finished")


async def test_header_about_another_task_settles_nothing(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.submit("b", spec(tenant="globex"))
        await eventually(lambda: {group.task for group in stages.opened} == {"a", "b"})
        victim = next(group for group in stages.opened if group.task == "b")
        await bus.publish(replace(scored(victim, 0, reward=9.0), subject=streams.scored("a", victim.trajectory(0))))
        assert "the subject names task 'a', the message 'b'" in await reason_of(world)
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state <> 'open'") == [(0,)]


@pytest.mark.parametrize(
    ("task", "tenant", "reason"),
    [
        ("b", "acme", "the subject names task 'a', the message 'b'"),
        ("a", "globex", "the check names tenant 'globex', which is not that of task a"),
    ],
)
async def test_forged_check_starts_and_rejects_no_task(bus: Bus, database_url: str, task: str, tenant: str, reason: str) -> None:
    stages = Stages()
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec())
        await eventually(lambda: len(stages.checks) == 1)
        await world.event("a", "accepted")
        await world.execute("UPDATE tasks SET state = 'submitted'")
        await bus.publish(Outgoing(streams.checked("a"), EnvironmentChecked(tenant=tenant, task=task, objection="no"), "forged"))
        assert reason in await reason_of(world)
        assert await world.rows("SELECT state FROM tasks") == [("submitted",)]
