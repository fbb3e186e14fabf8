"""What one task, or very many, may not do to others: late messages of an old life, and more work than there is room for."""

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.messages import ControlTask
from tests.conftest import eventually
from tests.scheduler.stages import Stages, running_world, scored, spec, submission, updated


async def test_task_of_the_same_name_takes_nothing_from_the_late_messages_of_the_one_before(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.task == "sums-1" and group.group >= 2)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("sums-1", spec("sums", steps=2))
        await eventually(lambda: len(stages.batches) == 1 and len(stages.opened) >= 4)
        old, batch = list(stages.opened), stages.batches[0]
        cancel = ControlTask(task="sums-1", tenant="acme")
        await bus.publish(Outgoing(streams.control("cancel", "acme"), cancel, "cancel"))
        await world.event("sums-1", "cancelled")
        before = await world.rows("SELECT version, admitted, voided FROM tasks WHERE id = 'sums-1'")
        await world.submit("sums-2", spec("sums", steps=2))
        for group in old:
            for member in range(group.size):
                late = scored(group, member, reward=99.0)
                await bus.publish(Outgoing(late.subject, late.message, f"late:{group.group}:{member}", late.headers))
        weights = updated(batch.model_copy(update={"version": 1}))
        await bus.publish(Outgoing(weights.subject, weights.message, "late weights"))
        again = submission("sums-1", spec("sums", steps=2))
        await bus.publish(Outgoing(again.subject, again.message, "again"))
        await world.event("sums-2", "finished")

        assert await world.rows("SELECT version, admitted, voided FROM tasks WHERE id = 'sums-1'") == before
        assert await world.rows("SELECT state FROM tasks WHERE id = 'sums-1'") == [("cancelled",)]
        assert await world.rows("SELECT max(reward) FROM trajectories") == [(1.0,)]
        assert await world.rows("SELECT count(*) FROM steps WHERE task = 'sums-2' AND state = 'trained'") == [(2,)]
        names = await world.rows("SELECT adapter #>> '{blob,name}' FROM tasks WHERE id = 'sums-2'")
        assert names == [("sums-2/v2",)]


class Counting(Stages):
    """Notes the most members that were opened and not scored at any moment."""

    answered = 0
    most = 0

    async def open(self, delivery: Delivery):  # type: ignore[no-untyped-def]  # an async generator, as its base's
        async for out in super().open(delivery):
            self.most = max(self.most, len(self.opened) * 2 - self.answered)
            self.answered += 1
            yield out


async def test_forty_times_more_tasks_than_there_is_room_for_are_never_in_flight_together(bus: Bus, database_url: str) -> None:
    room = 6  # what the scheduler may have in flight for four sequences
    stages = Counting(reward=lambda group, member: float(member))
    tasks = 40
    async with running_world(bus, database_url, stages, sequences=4) as world:
        for number in range(tasks):
            await world.submit(f"t{number}", spec(tenant=f"tenant{number % 5}", steps=1, algorithm={"group_size": 2, "groups_per_step": 1}))

        async def all_ended() -> bool:
            waiting = sum((await bus.streams.subjects(streams.PROMPTS, "prompts.open.>")).values())
            assert waiting <= room  # an answer may have come before its request is acknowledged
            return await world.rows("SELECT count(*) FROM tasks WHERE state = 'finished'") == [(tasks,)]

        await eventually(all_ended)
    assert 0 < stages.most <= room
