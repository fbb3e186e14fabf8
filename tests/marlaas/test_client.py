"""The SDK against a real scheduler."""

import asyncio
import re
import time
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus
from common.client_api.tenancy.packages import Packages
from common.client_api.tenancy.tenants import Billing
from common.messages import SetPrice
from common.spec import TASK_ID_PATTERN, is_marked
from marlaas.client import Client, ClientError, NoAnswer, TaskRejected, UnknownTask, WrongId, new_task_id
from marlaas.sync import SyncBilling, SyncPackages, connect
from tests.marlaas.tasks import SPEC, STEPS
from tests.support.scheduler.stages import Stages, World, running_world
from tests.support.waiting import eventually, eventually_equals


async def test_task_is_accepted_followed_and_its_adapters_fetched(address: str, scheduler: World, tmp_path: Path) -> None:
    async with Client.connect(address) as client:
        task = await client.submit(SPEC)
        names = [event.event async for event in client.watch(task)]
        assert names == ["accepted", *["step"] * STEPS, "finished"]
        assert (await client.wait(task)).state == "finished"
        assert [status.task for status in await client.tasks()] == [task]

        named = await client.pull(task, lambda adapter: tmp_path / f"v{adapter.version}")
        assert (tmp_path / f"v{named.version}").is_dir(), "a step may have come since the status was read"
        latest = await client.pull(task, tmp_path / "latest")
        assert latest.version == STEPS
        assert (tmp_path / "latest" / "content").read_text() == f"{task} {STEPS} adapter "
        first = await client.pull(task, tmp_path / "first", version=1)
        assert first.version == 1
        assert (tmp_path / "first" / "content").read_text() == f"{task} 1 adapter "
        with pytest.raises(ClientError, match="no version 9; known are: 1 to 3"):
            await client.pull(task, tmp_path / "ninth", version=9)
        with pytest.raises(ClientError, match="first exists already"):
            await client.pull(task, tmp_path / "first", version=1)


async def test_versions_of_long_ago_are_still_found(address: str, scheduler: World, tmp_path: Path) -> None:
    """The stream of weights keeps a few of each task; the events name all."""
    async with Client.connect(address) as client:
        task = await client.submit({**SPEC, "steps": 12})
        await client.wait(task)
        assert (await client.pull(task, tmp_path / "second", version=2)).version == 2
        assert (tmp_path / "second" / "content").read_text() == f"{task} 2 adapter "


async def test_rejection_carries_every_reason(address: str, scheduler: World) -> None:
    async with Client.connect(address) as client:
        await eventually(lambda: scheduler.scheduler._replicas.families)
        with pytest.raises(TaskRejected) as caught:
            await client.submit({**SPEC, "pool": "huge", "environment": {"name": "absent"}})
    reasons = ["pool: no pool 'huge' here; offered: tiny"]
    reasons += ["environment.name: no environment 'absent' here; `marlaas envs` lists those installed"]
    assert caught.value.reasons == reasons


async def test_wrong_field_is_refused_without_a_request(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.client_api.training.jobs.REASONS_S", 0.1)  # which no scheduler adds here
    async with Client.connect(address) as client:
        with pytest.raises(TaskRejected, match=r"lora\.rnak: no such field; did you mean 'rank'\?"):
            await client.submit({**SPEC, "lora": {"rnak": 4}})


async def test_silent_scheduler_is_said_to_be_silent(nats_url: str, bus: Bus) -> None:
    async with Client.connect(nats_url) as client:
        with pytest.raises(NoAnswer, match="the scheduler does not answer"):
            await client.submit(SPEC, timeout_s=0.5)


async def test_absent_nats_is_named() -> None:
    with pytest.raises(NoAnswer, match=r"NATS does not answer at .*127\.0\.0\.1:1;"):
        async with Client.connect("nats://127.0.0.1:1", timeout_s=0.5):
            pass


@pytest.mark.parametrize(
    "url", ["nats://user:secret@host:abc", "nats://host:99999", "nats://host:0", "nats://", "", ",", "ftp://host:4222", "nats://a,ws://b"]
)
async def test_what_is_no_address_is_refused_before_anything_is_tried(url: str) -> None:
    with pytest.raises(ClientError, match="is no address of NATS; one looks like nats://host:4222") as caught:
        async with Client.connect(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["nats://", ""])
async def test_address_of_a_cluster_names_several_nodes(scheme: str, nats_url: str, scheduler: World) -> None:
    node = nats_url.removeprefix("nats://")
    async with Client.connect(f"{scheme}{node}, {scheme}127.0.0.1:1") as client:
        assert await client.tasks() == []


async def test_scheduler_that_is_away_is_said_to_be_away_in_bounded_time(nats_url: str, bus: Bus) -> None:
    async with Client.connect(nats_url, patience_s=0.3) as client:
        asks = (client.tasks, client.environments, client.failures, client.usage, client.pools, lambda: client.status("mine-1"))
        for ask in (*asks, lambda: client.cancel("mine-1"), lambda: client.preview(SPEC), lambda: anext(aiter(client.watch()))):
            began = time.monotonic()
            with pytest.raises(NoAnswer, match=r"no scheduler answers at .*127\.0\.0\.1:\d+; is the stack running\?"):
                await ask()
            assert time.monotonic() - began < 20


async def test_job_is_taken_while_the_scheduler_is_away(address: str, bus: Bus, database_url: str) -> None:
    async with Client.connect(address, patience_s=0.1) as client:
        submitting = asyncio.create_task(client.submit(SPEC, "mine-1", timeout_s=200))
        await eventually(lambda: bus.streams.last(streams.JOBS, streams.job("submit", "acme")))
        async with running_world(bus, database_url, Stages()):
            assert await submitting == "mine-1"


async def test_id_that_no_task_can_have_is_refused(address: str) -> None:
    async with Client.connect(address) as client:
        for task in ("my task", "a*", "a.b", "", "-a", "A", "a\n"):
            for ask in (client.status(task), client.cancel(task), client.submit(SPEC, task), anext(aiter(client.watch("mine-1", task)))):
                with pytest.raises(WrongId, match="cannot be the id of a task: small letters, digits and hyphens"):
                    await ask


async def test_resubmitting_under_the_same_id_returns_the_same_task(
    address: str, scheduler: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client.connect(address) as client:
        assert await client.submit(SPEC, "mine-1") == "mine-1"
        assert await client.submit(SPEC, "mine-1") == "mine-1"
        monkeypatch.setattr("common.client_api.asking.REPEATED_TIMEOUT_S", 60.0)
        with pytest.raises(TaskRejected):
            await client.submit({**SPEC, "pool": "huge"}, "mine-1")
        assert len(await client.tasks()) == 1


async def test_pause_resume_and_cancel_reach_the_scheduler(address: str, scheduler: World) -> None:
    async with Client.connect(address) as client:
        task = await client.submit({**SPEC, "name": "slow"}, "slow-1")
        seen = asyncio.create_task(_names(client, task))
        await client.pause(task)
        await client.resume(task)
        await client.cancel(task, "enough")
        assert await asyncio.wait_for(seen, 250) == ["accepted", "paused", "resumed", "cancelled"]
        ended = await client.wait(task)
        assert (ended.state, ended.reason) == ("cancelled", "enough")
        with pytest.raises(ClientError, match="is cancelled already; there is nothing to pause"):
            await client.pause(task)
        with pytest.raises(UnknownTask, match=f"did you mean '{task}'"):
            await client.status("slow-2")


async def test_deployment_says_what_a_task_may_name(address: str, scheduler: World) -> None:
    async with Client.connect(address) as client:

        async def names() -> list[str]:
            return (await client.environments()).environments

        await eventually_equals(names, ["toy"])
        assert [pool.name for pool in await client.pools()] == ["tiny"]


async def test_same_without_asyncio(address: str, scheduler: World, tmp_path: Path) -> None:
    def use() -> list[str]:
        with connect(address) as client:
            task = client.submit(SPEC)
            names = [event.event for event in client.watch(task)]
            assert client.wait(task).version == STEPS
            client.pull(task, tmp_path / "adapter")
            return names

    assert await asyncio.to_thread(use) == ["accepted", *["step"] * STEPS, "finished"]


async def test_bill_and_packages_without_asyncio(nats_url: str, scheduler: World) -> None:
    def use() -> None:
        with connect(nats_url) as client:
            client.wait(client.submit(SPEC))
            client.billing.set_price(SetPrice(request="one", of="sampled", price=Decimal(2)))
            assert [(one.of, one.price) for one in client.billing.prices()] == [("sampled", 2)]
            client.billing.set_budget("acme", "total", "money", Decimal(500))
            assert [(one.tenant, one.amount) for one in client.billing.budgets()] == [("acme", 500)]
            assert "sampled" in {line.kind for line in client.billing.invoice() if line.tenant == "acme"}
            assert client.billing.invoice(last=date(2000, 1, 1)) == []

            with pytest.raises(ClientError, match="say whose package it is"):
                client.packages.upload(b"wheel")
            assert client.packages.all() == []
            with pytest.raises(ClientError, match="no package 'games'"):
                client.packages.find("games")

    await asyncio.to_thread(use)


@pytest.mark.parametrize(("blocking", "client"), [(SyncBilling, Billing), (SyncPackages, Packages)])
def test_blocking_groups_have_what_the_others_have(blocking: type, client: type) -> None:
    assert {name for name in vars(client) if name[0] != "_"} == {name for name in vars(blocking) if name[0] != "_"}


def test_new_ids_are_valid_and_differ() -> None:
    ids = {new_task_id("a" * 40, "acme") for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(TASK_ID_PATTERN, one) for one in ids)
    assert all(is_marked(one, "acme") and not is_marked(one, "globex") for one in ids)


async def _names(client: Client, task: str) -> list[str]:
    return [event.event async for event in client.watch(task)]
