"""Steps whose message to the trainer is lost are resent and count once; no other step is resent."""

from common import streams
from common.bus import Bus
from scheduler_svc.base.database import Database
from scheduler_svc.upkeep.stalls import resend_lost_steps
from tests.scheduler.gated import GatedStages, forget_message_ids, is_relayed
from tests.support.scheduler.stages import Stages, running_world, spec, updated
from tests.support.waiting import eventually, eventually_equals


async def test_step_whose_message_is_lost_is_resent_and_counts_once(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)  # the trainer acknowledges the message and trains no step, as if it were lost
    async with running_world(bus, database_url, stages) as world:
        await forget_message_ids(bus)
        await world.begin("a", spec(steps=2), batches=1)
        await eventually_equals(lambda: bus.streams.backlog(streams.BATCHES), 0)
        assert not await resend_lost_steps(world.database, bus)  # it is too recent
        await world.execute("UPDATE steps SET batched_at = now() - interval '1 hour'")
        await world.execute("INSERT INTO pool_clocks (pool, parked_ms, parked_since) VALUES ('tiny', 0, now() - interval '1 hour')")
        assert not await resend_lost_steps(world.database, bus)  # its pool was parked all the time
        stages.trains = True

        async def is_resent() -> bool:
            await resend_lost_steps(world.database, bus, age_s=0)
            return len(stages.batches) > 1

        await eventually(is_resent)
        assert stages.batches[1] == stages.batches[0]
        await world.event("a", "finished")
        assert await world.rows("SELECT version, state FROM steps ORDER BY version") == [(0, "trained"), (1, "trained")]
        assert not await resend_lost_steps(world.database, bus, age_s=0)


async def test_step_that_the_trainer_is_handling_is_not_resent(bus: Bus, database_url: str) -> None:
    stages = GatedStages()
    async with running_world(bus, database_url, stages) as world:
        await forget_message_ids(bus)
        await world.submit("a", spec(steps=1))
        await eventually(lambda: is_relayed(world, backlog=1))
        assert not await resend_lost_steps(world.database, bus, age_s=0)
        stages.gate.set()
        await world.event("a", "finished")
        assert len(stages.batches) == 1


async def test_announced_step_that_is_not_settled_is_not_resent(bus: Bus, database_url: str, database: Database) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await forget_message_ids(bus)
        await world.begin("a", spec(steps=1), batches=1)
        await eventually(lambda: is_relayed(world, backlog=0))
    done = updated(stages.batches[0])  # no scheduler runs that would settle it
    await bus.publish(done)
    assert not await resend_lost_steps(database, bus, age_s=0)
    await bus.streams.purge(streams.WEIGHTS, done.subject)
    assert await resend_lost_steps(database, bus, age_s=0)
