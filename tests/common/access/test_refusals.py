"""What NATS refuses a service: it is said and counted, ends no other work, and what cannot work without it says so in one error."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common import streams
from common.access.services import service_permissions
from common.bus import Bus, Delivery, Outgoing
from common.bus.delivery import Slots
from common.errors import Unavailable, Undeclared
from common.messages import Message, ReplicaReport
from tests.support.buses import HASTY
from tests.support.keyed import DEPLOYMENT, Keyed, keyed_server, services_key
from tests.support.waiting import at_work, eventually

REPORT = ReplicaReport(replica="one", service="env")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path, refuses=True) as server:
        yield server


@asynccontextmanager
async def env_without(server: Keyed, subject: str) -> AsyncGenerator[Bus]:
    """An env service whose key, made by an older version, does not permit `subject`."""
    allowed = service_permissions("env", DEPLOYMENT)
    assert subject in allowed.publish
    older = services_key(server.keys, "older", replace(allowed, publish=tuple(each for each in allowed.publish if each != subject)))
    async with await Bus.connect(server.url, "env", creds=older, timings=replace(HASTY, answer_timeout_s=250)) as bus:
        yield bus


async def test_refusal_is_said_and_counted_and_ends_nothing(keyed: Keyed) -> None:
    async with await keyed.connect("env") as env, at_work(env.wait_fatal()) as fatal:
        with capture_logs() as logs:
            for _ in range(2):
                await env._connection.client.publish("weight-updated.tiny.a", b"")
            await eventually(lambda: env.forbidden == 2)
        said = [line["reason"] for line in logs if line["event"] == "nats_forbids"]
        assert said == ["key 'env' may not publish weight-updated.tiny.a"] * 2
        await env.kv.put(streams.REPLICAS_BUCKET, "env.one", REPORT)
        assert not fatal.done()


async def test_refused_request_fails_with_the_reason_and_is_not_taken_for_an_outage(keyed: Keyed) -> None:
    async with env_without(keyed, "$KV.replicas.env.*") as env, at_work(env.wait_fatal()) as fatal, asyncio.timeout(60):
        with pytest.raises(Unavailable, match=r"key 'older' may not publish \$KV\.replicas\.env\.one"):
            await env.kv.replace(streams.REPLICAS_BUCKET, "env.one", REPORT, revision=0)
        with pytest.raises(Unavailable, match=r"key 'older' may not publish weight-updated\.tiny\.a"):
            await env.publish(Outgoing("weight-updated.tiny.a", REPORT, "a"))
        assert not fatal.done()


@pytest.mark.parametrize("request_", ["CONSUMER.CREATE.{place}.{subject}", "CONSUMER.MSG.NEXT.{place}"])
async def test_consumer_that_the_key_does_not_permit_ends_the_service_with_one_error(keyed: Keyed, request_: str) -> None:
    consumer = streams.env_checks("math")
    subject = "$JS.API." + request_.format(place=f"{consumer.stream}.{consumer.name}", subject=consumer.subject)

    async def handler(_: Delivery) -> AsyncIterator[Message]:
        return
        yield

    async with env_without(keyed, subject) as env, asyncio.timeout(60):
        with pytest.raises(BaseExceptionGroup if "NEXT" in request_ else Undeclared) as ended:
            await env.consume(consumer, handler, Slots(1))  # type: ignore[arg-type]
    [error] = ended.value.exceptions if isinstance(ended.value, BaseExceptionGroup) else [ended.value]
    assert isinstance(error, Undeclared)
    assert re.fullmatch(re.escape(f"NATS forbids this: key 'older' may not publish {subject}"), str(error))


@pytest.mark.parametrize("bucket", ["tasks"])
async def test_followed_stream_that_the_key_does_not_permit_ends_its_reader_with_one_error(keyed: Keyed, bucket: str) -> None:
    subject = f"$JS.API.CONSUMER.CREATE.KV_{bucket}"
    async with env_without(keyed, subject) as env, asyncio.timeout(60):
        with pytest.raises(Undeclared, match=rf"key 'older' may not publish \$JS\.API\.CONSUMER\.CREATE\.KV_{bucket}"):
            async for _ in env.kv.watch(bucket, ReplicaReport):
                pass
