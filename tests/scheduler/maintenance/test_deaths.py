"""Deaths of services, as the operator, tenants, the command line and the dashboard see them."""

import asyncio
from pathlib import Path

from common import streams
from common.bus import Bus
from common.messages import ProcessLife, ReplicasAnswer, WhyAnswer
from common.messages.lives import LIVES, life_key
from scheduler_svc.upkeep.replicas import KEPT_S, forget_lives
from tests.support.gateway.serving import client, gateway
from tests.support.marlaas.command import marlaas
from tests.support.scheduler.asking import asker
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.waiting import eventually, eventually_equals

CAUSE = "key 'trainer' may not publish $JS.FC.OBJ_blobs"
DEATHS = "SELECT data->>'replica', data->>'cause', (data->>'deaths')::int, (data->>'faulty')::bool FROM events WHERE event = 'death'"


async def dies(world: World, before: ProcessLife) -> ProcessLife:
    """The process as it began after one more death."""
    now_s = world.bus.clock.now_s()
    life = before.dead(CAUSE, now_s).model_copy(update={"began_s": now_s, "ready_s": None})
    await world.bus.kv.put(streams.HISTORY_BUCKET, life_key(life.service, life.replica), life)
    return life


async def test_each_death_is_one_event_and_the_third_alike_is_a_fault(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world, asker(nats_url) as door:
        await world.begin("a", spec(), batches=1)
        life = ProcessLife(service="trainer", replica="host-t", pool="tiny", began_s=1.0, start_s=40.0)
        for number in (1, 2, 3):
            life = await dies(world, life)
            await world.rows_become(f"SELECT count(*) FROM ({DEATHS}) d", [(number,)])
        assert await world.rows(f"{DEATHS} ORDER BY id") == [("host-t", CAUSE, number, number == 3) for number in (1, 2, 3)]
        assert await world.rows("SELECT DISTINCT tenant, task FROM events WHERE event = 'death'") == [("_all", "none")]

        async def is_faulty() -> bool:
            troubles = (await door.ask(ReplicasAnswer, None, "replicas")).troubles
            return [(one.replica, one.state, one.cause) for one in troubles] == [("host-t", "faulty", CAUSE)]

        await eventually(is_faulty)
        of_tenant = await door.ask(ReplicasAnswer, "acme", "replicas")
        assert [(one.service, one.pool, one.state) for one in of_tenant.troubles] == [("trainer", "tiny", "faulty")]
        assert b"host-t" not in of_tenant.encode() and b"may not" not in of_tenant.encode()

        why = await door.ask(WhyAnswer, None, "why", task="a")
        assert why.sentence.startswith("0 trainers serve pool 'tiny'; 1 is needed; host-t is faulty: it died 3 times alike: key 'trainer'")
        of_owner = await door.ask(WhyAnswer, "acme", "why", task="a")
        assert "trainer is faulty" in of_owner.sentence and "may not" not in of_owner.sentence and "host-t" not in of_owner.sentence

        for command in ("ps", "pools"):
            said = await asyncio.to_thread(marlaas, command, "--url", nats_url, cwd=tmp_path)
            assert said.returncode == 0 and f"host-t is faulty: it died 3 times alike: {CAUSE}" in said.stdout
        async with gateway(bus, nats_url) as address, client(f"{address}/ui") as browser:
            page = (await browser.get("/stages")).text
        assert "host-t is faulty" in page and "$JS.FC.OBJ_blobs" in page


async def test_process_that_starts_is_named_with_the_time_that_it_takes(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world, asker(nats_url) as door:
        await world.begin("a", spec(), batches=1)
        life = ProcessLife(service="trainer", replica="host-t", pool="tiny", began_s=bus.clock.now_s(), start_s=40.0)
        await bus.kv.put(streams.HISTORY_BUCKET, "trainer.host-t", life)

        async def is_named() -> bool:
            return "trainer starts, about" in (await door.ask(WhyAnswer, "acme", "why", task="a")).sentence

        await eventually(is_named)
        await bus.kv.put(streams.HISTORY_BUCKET, "trainer.host-t", life.model_copy(update={"ended": ""}))

        async def why() -> str:
            return (await door.ask(WhyAnswer, None, "why", task="a")).sentence

        await eventually_equals(why, "0 trainers serve pool 'tiny'; 1 is needed")
        assert await world.rows(DEATHS) == []


async def test_lives_of_processes_that_are_gone_are_forgotten_after_a_day(bus: Bus) -> None:
    old = ProcessLife(service="trainer", replica="old", began_s=1.0)
    lives = [
        old,
        old.model_copy(update={"replica": "reports"}),
        old.model_copy(update={"service": "scheduler"}),
        old.model_copy(update={"replica": "new", "began_s": 2.0}),
    ]
    for life in lives:
        await bus.kv.put(streams.HISTORY_BUCKET, life_key(life.service, life.replica), life)
    await forget_lives(bus, lives, {"trainer.reports"}, 1.5 + KEPT_S)
    kept = await bus.kv.entries(streams.HISTORY_BUCKET, ProcessLife, LIVES)
    assert set(kept) == {"trainer.reports", "scheduler.old", "trainer.new"}
