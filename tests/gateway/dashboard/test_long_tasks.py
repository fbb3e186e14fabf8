"""Pages of a task with many steps, and how long it takes."""

import re

from common.client_api.asking import Door
from common.client_api.training.progress import read_steps
from tests.gateway.dashboard.reading import cells, texts_of
from tests.gateway.dashboard.site import STEPS, Site, session


async def test_thinned_steps_have_their_ends_and_the_tokens_of_all(long: Site) -> None:
    door = Door(long.world.bus, long.keys.url, "acme")
    every = await read_steps(door, "letters-1")
    thinned = await read_steps(door, "letters-1", every=100)
    later = await read_steps(door, "letters-1", 1500, 100)

    assert [step.version for step in thinned] == [1, *range(100, 1601, 100), STEPS]
    assert [step.version for step in later] == [1600, STEPS]
    totals = {step.version: sum(one.sampled_tokens for one in every[: step.version]) for step in thinned}
    assert {step.version: step.total_sampled_tokens for step in thinned} == totals
    without = {"total_sampled_tokens"}
    assert [step.model_dump(exclude=without) for step in thinned] == [every[one.version - 1].model_dump(exclude=without) for one in thinned]


async def test_page_of_a_long_task_is_small_and_asks_little(long: Site) -> None:
    async with session(long, "mk-owner") as browser, long.world.bus.requests.listening("ask.*.steps") as asked:
        pages = {over: await browser.get(f"/tasks/letters-1?over={over}") for over in ("step", "tokens")}
        compared = await browser.get("/compare?task=letters-1")
        questions = [await asked.next(0.5) for _ in range(7)]
    rows = cells(pages["step"].text, "table-reward")

    assert max(len(page.content) for page in (*pages.values(), compared)) < 100_000
    assert len([one for one in questions if one is not None]) == 6, "two for each page: 234 steps"
    assert len(rows) <= 240
    assert (rows[0][0], rows[-1]) == ("1", [str(STEPS), "200.99"])
    tokens = cells(pages["tokens"].text, "table-reward")
    [last] = await read_steps(Door(long.world.bus, long.keys.url, "acme"), "letters-1", STEPS - 1, every=2)
    assert tokens[-1][0] == str(last.total_sampled_tokens)
    assert "Of 1,629 steps, 1 of 7 is in the charts" in texts_of(pages["step"].text)


async def test_stored_versions_are_paged(long: Site) -> None:
    async with session(long, "mk-reader") as browser:
        pages = [
            (await browser.get(f"/tasks/letters-1?over=tokens{query}")).text for query in ("", "&versions=2", "&versions=3", "&versions=9")
        ]
    versions = [[int(row[0].split()[0]) for row in cells(page, "versions")] for page in pages]

    assert [len(one) for one in versions] == [50, 50, 26, 26] and versions[2] == versions[3]
    assert [version for page in versions[:3] for version in page] == [*range(219, 99, -1), *range(6, 0, -1)]
    assert 'href="/ui/tasks/letters-1?over=tokens&amp;versions=2#versions"' in pages[0]


TWO_OF_102 = (
    """
    INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint, first_admitted_at,
                       first_scored_at, last_scored_at, batched_at, started_at, finished_at, trained_at)
    SELECT 'slow-1', version, 'trained', 0, 0, 0, 1, adapter, checkpoint, first_admitted_at, first_scored_at, last_scored_at, batched_at,
           started_at, finished_at, now() - interval '10 s' * (1 - version)
    FROM steps WHERE task = 'letters-1' AND version < 2
    """,
    "UPDATE tasks SET version = 2, steps = 102 WHERE id = 'slow-1'",
)
"""As if the task had taken 2 of 102 steps, 10 s apart."""


async def test_task_says_whether_it_waits_or_works_and_how_long_it_takes(played: Site) -> None:
    async with session(played, "mk-member") as browser:
        working = (await browser.get("/tasks/slow-1")).text
        async with played.world.database.transaction() as tx:
            for statement in TWO_OF_102:
                await tx.connection.exec_driver_sql(statement)
        left = (await browser.get("/tasks/slow-1")).text
        await played.world.control("pause", "slow-1", until="paused")
        paused = (await browser.get("/tasks/slow-1")).text

    assert "Now: its next step needs 2 more of its own groups" in texts_of(working) and 'id="left"' not in working
    assert re.search(r"Time left about 16 min \d\d s", texts_of(left))
    assert "It waits: it is paused" in texts_of(paused) and 'id="left"' not in paused
