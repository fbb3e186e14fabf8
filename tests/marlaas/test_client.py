"""The SDK against a real NATS server, with a scheduler that only answers."""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from common import streams
from common.backoff import Backoff
from common.bus import Bus, Outgoing
from common.bus.timings import Timings
from common.errors import Reject
from common.messages import Event, ReplicaReport
from common.spec import TASK_ID_PATTERN
from marlaas.client import Client, ClientError, NoAnswer, TaskRejected, UnknownTask, WrongId, new_task_id
from marlaas.stack import servers
from marlaas.sync import connect
from tests.conftest import eventually, running
from tests.marlaas.conftest import SPEC, STEPS, Answering


async def test_task_is_accepted_followed_and_its_adapters_fetched(nats_url: str, scheduler: Answering, tmp_path: Path) -> None:
    async with Client.connect(nats_url) as client:
        task = await client.submit(SPEC)
        names = [event.event async for event in client.watch(task)]
        assert names == ["accepted", *["step"] * STEPS, "finished"]
        assert (await client.wait(task)).state == "finished"
        assert [status.task for status in await client.tasks()] == [task]

        latest = await client.pull(task, tmp_path / "latest")
        assert latest.version == STEPS
        assert (tmp_path / "latest" / "adapter_config.json").read_text() == f'{{"version": {STEPS}}}'
        first = await client.pull(task, tmp_path / "first", version=1)
        assert first.version == 1
        assert (tmp_path / "first" / "adapter_config.json").read_text() == '{"version": 1}'
        with pytest.raises(ClientError, match="no version 9; known are: 1 to 3"):
            await client.pull(task, tmp_path / "ninth", version=9)
        with pytest.raises(ClientError, match="first exists already"):
            await client.pull(task, tmp_path / "first", version=1)


async def test_versions_of_long_ago_are_still_found(nats_url: str, scheduler: Answering, tmp_path: Path) -> None:
    """The stream of weights keeps a few of each task; the events name all."""
    async with Client.connect(nats_url) as client:
        task = await client.submit({**SPEC, "steps": 12})
        await client.wait(task)
        assert (await client.pull(task, tmp_path / "second", version=2)).version == 2
        assert (tmp_path / "second" / "adapter_config.json").read_text() == '{"version": 2}'


async def test_rejection_carries_every_reason(nats_url: str, scheduler: Answering) -> None:
    async with Client.connect(nats_url) as client:
        with pytest.raises(TaskRejected) as caught:
            await client.submit({**SPEC, "pool": "huge"})
    assert caught.value.reasons == ["pool: no pool 'huge' here", "and another reason"]


async def test_wrong_field_is_refused_without_a_request(nats_url: str) -> None:
    async with Client.connect(nats_url) as client:
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
    "url", ["nats://user:secret@host:abc", "nats://host:99999", "nats://host:0", "nats://", "", ",", "http://host:4222", "nats://a,ws://b"]
)
async def test_what_is_no_address_is_refused_before_anything_is_tried(url: str) -> None:
    with pytest.raises(ClientError, match="is no address of NATS; one looks like nats://host:4222") as caught:
        async with Client.connect(url):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["nats://", ""])
async def test_address_of_a_cluster_names_several_nodes(scheme: str, nats_url: str, bus: Bus) -> None:
    node = nats_url.removeprefix("nats://")
    async with Client.connect(f"{scheme}{node}, {scheme}127.0.0.1:1") as client:
        assert await client.tasks() == []


async def test_nats_without_a_stack_is_recognised(nats_url: str) -> None:
    async with Client.connect(nats_url) as client:
        for ask in (client.tasks, client.replicas, client.failures, lambda: client.cancel("mine-1"), lambda: anext(aiter(client.watch()))):
            with pytest.raises(NoAnswer, match="knows no MARLaaS stack; start the services first"):
                await ask()


async def test_id_that_no_task_can_have_is_refused(nats_url: str) -> None:
    async with Client.connect(nats_url) as client:
        for task in ("my task", "a*", "a.b", "", "-a", "A", "a\n"):
            for ask in (client.status(task), client.cancel(task), client.submit(SPEC, task), anext(aiter(client.watch("mine-1", task)))):
                with pytest.raises(WrongId, match="cannot be the id of a task: small letters, digits and hyphens"):
                    await ask


async def test_unreadable_status_is_not_taken_for_an_absent_stack(nats_url: str, bus: Bus) -> None:
    await bus.publish_raw(streams.value_subject(streams.TASKS_BUCKET, "mine-1"), b"garbage", "bad", {})
    async with Client.connect(nats_url) as client:
        with pytest.raises(Reject, match="not a task-status"):
            await client.status("mine-1")


async def test_resubmitting_under_the_same_id_returns_the_same_task(
    nats_url: str, scheduler: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client.connect(nats_url) as client:
        assert await client.submit(SPEC, "mine-1") == "mine-1"
        assert await client.submit(SPEC, "mine-1") == "mine-1"
        monkeypatch.setattr("marlaas.answers.REPEATED_TIMEOUT_S", 60.0)
        with pytest.raises(TaskRejected):
            await client.submit({**SPEC, "pool": "huge"}, "mine-1")
        assert len(await client.tasks()) == 1


async def test_pause_resume_and_cancel_reach_the_scheduler(nats_url: str, scheduler: Answering) -> None:
    async with Client.connect(nats_url) as client:
        task = await client.submit({**SPEC, "name": "slow"})
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
            await client.status(task[:-1])


async def test_replicas_report_which_environments_there_are(nats_url: str, bus: Bus) -> None:
    report = ReplicaReport(replica="env-1", service="env", environments=["reasoning_gym:gcd"])
    await bus.kv.put(streams.REPLICAS_BUCKET, "env.env-1", report)
    async with Client.connect(nats_url) as client:
        assert await client.replicas() == [report]


async def test_same_without_asyncio(nats_url: str, scheduler: Answering, tmp_path: Path) -> None:
    def use() -> list[str]:
        with connect(nats_url) as client:
            task = client.submit(SPEC)
            names = [event.event for event in client.watch(task)]
            assert client.wait(task).version == STEPS
            client.pull(task, tmp_path / "adapter")
            return names

    assert await asyncio.to_thread(use) == ["accepted", *["step"] * STEPS, "finished"]


async def test_events_before_a_restart_of_nats_are_not_repeated(tmp_path: Path) -> None:
    port = servers.free_port()
    command = servers.nats_command(tmp_path / "nats", port)
    timings = Timings(reconnect_s=0.1, answer_timeout_s=1.0, backoff=Backoff(0.1, 3.2), idle_heartbeat_s=0.5)
    async with AsyncExitStack() as clients:
        with running(command, port, tmp_path / "nats.log"):
            bus = await clients.enter_async_context(await Bus.connect(servers.nats_url(port), "test", timings=timings))
            await bus.declare()
            for number in range(3):
                await bus.publish(happened(f"before-{number}", "accepted"))
            follower = await clients.enter_async_context(await Bus.connect(servers.nats_url(port), "follower", timings=timings))
            events = Client(follower, servers.nats_url(port)).watch()
            first = asyncio.ensure_future(anext(aiter(events)))
            await eventually(lambda: is_followed(bus))
        with running(command, port, tmp_path / "nats.log"):
            await bus.publish(happened("after", "accepted"))
            # The follower's position was in the server's memory; after two missed heartbeats it restarts.
            assert (await asyncio.wait_for(first, 250)).task == "after"


async def test_watch_from_now_leaves_the_past_out_and_ends_with_the_tasks(bus: Bus, nats_url: str) -> None:
    for task, event in (("a", "accepted"), ("b", "accepted"), ("b", "finished")):
        await bus.publish(happened(task, event))
    async with Client.connect(nats_url) as client:

        async def names(*tasks: str) -> list[tuple[str, str]]:
            return [(event.task, event.event) async for event in client.watch(*tasks, from_now=True)]

        following = asyncio.ensure_future(names("a", "b"))
        await eventually(lambda: is_followed(bus))
        await bus.publish(happened("a", "finished"))
        assert await asyncio.wait_for(following, 250) == [("a", "finished")]
        assert await names("a", "b") == []


def test_new_ids_are_valid_and_differ() -> None:
    ids = {new_task_id("a" * 40) for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(TASK_ID_PATTERN, one) for one in ids)


async def _names(client: Client, task: str) -> list[str]:
    return [event.event async for event in client.watch(task)]


def happened(task: str, event: str) -> Outgoing:
    return Outgoing(streams.events("acme", task), Event(tenant="acme", task=task, event=event, at_s=0), f"event:{task}:{event}")


async def is_followed(bus: Bus) -> bool:
    """Whether a client reads the events at the moment."""
    return bool((await bus.blobs_context().stream_info(streams.EVENTS.name)).state.consumer_count)
