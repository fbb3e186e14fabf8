"""Aliases on the task page and in the playground, from a real scheduler."""

from html import unescape

from sqlalchemy import text

from marlaas.client import Client
from tests.support.gateway.deltas import Source
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.stages import World

HOSTILE = '"><script>window.broken = 1</script>\u202e'


async def record(world: World, name: str) -> None:
    """An alias whose name no job would set."""
    async with world.database.transaction() as tx:
        await tx.connection.execute(
            text(
                "INSERT INTO aliases (tenant, name, task, version, pool, adapter, request)"
                " SELECT 'acme', :name, task, version + 1, 'tiny', adapter, 'r' FROM steps WHERE task = 'a' AND version = 0"
            ),
            {"name": name},
        )


async def test_aliases_are_shown_at_the_task_and_at_models_and_are_text(world: World, nats_url: str) -> None:
    for task in ("a", "b"):
        await world.run(task)
    async with Client.connect(nats_url, "acme") as marlaas:
        await marlaas.aliases.set("prod", "a", 2)
        await marlaas.aliases.set("theirs", "b", 1)
    await record(world, HOSTILE)
    async with gateway(world.bus, nats_url, sampler=Source(lambda _: None)) as address, client(f"{address}/ui") as browser:
        named, playground = (await browser.get("/tasks/a")).text, (await browser.get("/playground")).text
        other = (await browser.get("/tasks/b")).text
    shown = unescape(named.partition('<dd id="aliases">')[2].partition("</dd>")[0])
    assert sorted(shown.split(", ")) == sorted(["prod (version 2)", f"{HOSTILE[:-1]}⟨U+202E⟩ (version 1)"])
    assert "theirs (version 1)" in other and "prod" not in other
    assert '<option value="prod">prod: a@2</option>' in playground
    for page in (named, playground):
        assert "<script>window" not in page and "\u202e" not in page.replace(f'value="{escaped(HOSTILE)}"', "")


def escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
