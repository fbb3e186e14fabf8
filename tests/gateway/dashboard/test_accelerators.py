"""Shared accelerators on the dashboard's pages, as tables that are read without scripts."""

from common.bus import Bus
from scheduler_svc.base.database import Database
from tests.gateway.dashboard.reading import cells
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.asking import answering
from tests.support.scheduler.shared_accelerator import SHARED, fill


async def test_stages_and_timeline_show_executors_and_slices(bus: Bus, nats_url: str, database_url: str) -> None:
    async with await Database.connect(database_url) as database:
        await fill(database)
        async with answering(bus, database, SHARED), gateway(bus, nats_url) as address, client(f"{address}/ui") as browser:
            stages, timeline = (await browser.get("/stages")).text, (await browser.get("/timeline")).text
            of_tenant = (await browser.get("/stages?tenant=acme")).text
    executors = {row[1].split()[0]: row for row in cells(stages, "executors")}
    assert set(executors) == {"rollout-other", "rollout-tiny", "trainer-other", "trainer-tiny"}
    assert executors["rollout-tiny"][2:5] == ["awake", "device", "yes"]
    assert "/srv/secret" in executors["trainer-other"][1]
    for page in (stages, timeline):
        slices = cells(page, "slices")
        assert [row[-2] for row in slices] == ["open", "switched", "switched"]
        assert slices[2][5:9] == ["1.00", "3.00", "", "1.00"] and "y: 1.00 s" in slices[2][-1] and "x: 4.00 s" in slices[2][-1]
    [own] = cells(of_tenant, "slices")
    assert "x: 4.00 s" in own[-1] and "y" not in own[-1]
    assert "/srv/secret" not in of_tenant


async def test_pages_without_shared_accelerators_say_nothing_of_them(bus: Bus, nats_url: str, database_url: str) -> None:
    async with (
        await Database.connect(database_url) as database,
        answering(bus, database),
        gateway(bus, nats_url) as address,
        client(f"{address}/ui") as browser,
    ):
        for page in ("/stages", "/timeline"):
            assert "accelerator" not in (await browser.get(page)).text
