"""A connection that breaks off: one submission is one task, and no event and no part of a download is missed."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import openai

from marlaas.client import Client
from tests.marlaas.over_http.cutting import Cut, cutting
from tests.marlaas.tasks import SPEC, STEPS
from tests.support.gateway.files import rows
from tests.support.gateway.serving import gateway
from tests.support.scheduler.stages import World

TIMES = 20


def once(number: int) -> Callable[[bytes], Cut | None]:
    """Cuts the first submission that comes: each second one before its answer, the others as soon as the gateway has it."""
    left: list[Cut] = ["answer" if number % 2 else "request"]

    def cut(data: bytes) -> Cut | None:
        return left.pop() if left and re.match(rb"(POST /v1/jobs/submit|POST /v1/fine_tuning/jobs)", data) else None

    return cut


async def test_submission_whose_answer_is_lost_is_one_task_and_two_submissions_are_two(scheduler: World, nats_url: str) -> None:
    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(proxy.address) as client:
        for number in range(TIMES):
            proxy.cut_request = once(number)
            await client.submit({**SPEC, "name": "slow"})
        assert proxy.cuts == TIMES
        assert len(await client.tasks()) == TIMES
        for _ in range(2):
            await client.submit({**SPEC, "name": "slow-twice"})
        assert len(await client.tasks(name="slow-twice")) == 2


async def test_openais_client_makes_one_job_each_too(scheduler: World, nats_url: str) -> None:
    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(url) as client:
        stock = openai.AsyncOpenAI(api_key="mk-none", base_url=f"{proxy.address}/v1", default_query={"tenant": "acme"}, max_retries=3)
        async with stock:

            async def create(suffix: str) -> str:
                made = await stock.fine_tuning.jobs.create(
                    model="tiny",
                    training_file="env:toy",
                    method={"type": "reinforcement"},
                    suffix=suffix,
                    extra_body={"marlaas": SPEC_OF_JOB},
                )
                return made.id

            for number in range(TIMES):
                proxy.cut_request = once(number)
                await create(f"slow{number}")
            assert proxy.cuts == TIMES
            assert len(await client.tasks()) == TIMES
            assert await create("slow-twice") != await create("slow-twice")
            assert len(await client.tasks()) == TIMES + 2


SPEC_OF_JOB = {name: SPEC[name] for name in ("steps", "algorithm", "keep")}


async def test_events_go_on_behind_the_last_that_came(scheduler: World, nats_url: str) -> None:
    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(proxy.address) as client:
        await client.submit({**SPEC, "steps": 60}, "mine-1")
        proxy.most = 8_000  # every connection ends after so much of its answers
        seen = [event.number async for event in client.watch("mine-1")]
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) >= 62  # accepted, 60 steps, finished
        assert proxy.cuts > 3


async def test_part_of_a_download_whose_answer_is_lost_is_requested_again(scheduler: World, nats_url: str, tmp_path: Path) -> None:
    left: list[Cut] = ["answer", "request"]

    def cut(data: bytes) -> Cut | None:
        return left.pop() if left and data.startswith(b"POST /v1/ask/chunk") else None

    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(proxy.address) as client:
        task = await client.submit(SPEC)
        await client.wait(task)
        proxy.cut_request = cut
        assert (await client.pull(task, tmp_path / "adapter")).version == STEPS
        assert (tmp_path / "adapter" / "content").read_text() == f"{task} {STEPS} adapter "
        assert proxy.cuts == 2


async def test_upload_whose_answer_is_lost_is_one_file(scheduler: World, nats_url: str) -> None:
    await scheduler.run("a")  # so that there is such a tenant
    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(proxy.address, "acme") as client:
        left: list[Cut] = ["answer", "request"]
        proxy.cut_request = lambda data: left.pop() if left and data.startswith(b"POST /v1/jobs/upload-file") else None
        file = await client.files.upload(io.BytesIO(rows(9)), "rows.jsonl")
        assert (file.state, file.rows, proxy.cuts) == ("usable", 9, 2)
        assert await client.files.all() == [file]


async def test_deletions_whose_answers_are_lost_are_done(scheduler: World, nats_url: str) -> None:
    await scheduler.run("a")
    async with gateway(scheduler.bus, nats_url) as url, cutting(url) as proxy, Client.connect(proxy.address, "acme") as client:
        file = await client.files.upload(io.BytesIO(rows(2)), "rows.jsonl")
        made = await client.aliases.set("prod", "a", 2)
        left = {b"POST /v1/jobs/delete-package", b"POST /v1/jobs/delete-alias"}

        def cut(data: bytes) -> Cut | None:
            found = {one for one in left if data.startswith(one)}
            left.difference_update(found)
            return "answer" if found else None

        proxy.cut_request = cut
        assert await client.files.delete(file) == len(rows(2))
        assert await client.aliases.delete("prod") == made
        assert proxy.cuts == 2
        assert (await client.files.all(), await client.aliases.all()) == ([], [])
