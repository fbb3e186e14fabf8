"""What JetStream sends on for a service's key: NATS does not compare replies and subjects of delivery with the key's permissions."""

import asyncio
import json
from contextlib import suppress

import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from common import streams
from common.access.services import SERVICES, service_permissions
from common.bus import Delivery
from common.errors import Reject
from common.message_consistency import SAYS
from common.messages import CancelServing, Message
from common.streams import value_subject
from tests.common.access.raw_clients import raw
from tests.support.keyed import DEPLOYMENT, Keyed
from tests.support.matching import covers

SERVICES_OF_WORK = [name for name in SERVICES if name != "scheduler"]
MARK = b"chosen by the holder of the key"
API = "$JS.API"
TARGETS = {
    "JOBS": "jobs.delete-tenant.acme",
    "PROMPTS": streams.sample("other", "t", "0-0"),
    "TURNS": streams.turn("other", "t", "0-0"),
    "SCORED": streams.scored("t", "0-0"),
    "BATCHES": streams.batch("tiny", "t"),
    "WEIGHTS": streams.weight_updated("other", "t"),
    "EVENTS": streams.events("acme", "t"),
    "LEASES": streams.lease_order("a", "rollout-tiny"),
    "KV_http-keys": value_subject(streams.HTTP_KEYS_BUCKET, "x"),
    "KV_tasks": value_subject(streams.TASKS_BUCKET, "x"),
    "KV_leases": value_subject(streams.LEASES_BUCKET, "a"),
}
"""Stream → a subject of it, which a stolen key would like to write."""
OWN_SUBJECTS = (
    *(
        "weight-updated.tiny.t",
        "samples.tiny.t.1",
        "leases.done.a.trainer-tiny",
        "leases.done.a.rollout-tiny",
        "trajectories.turn.math.t.0-0",
    ),
    *("prompts.sample.tiny.t.0-0", "trajectories.scored.t.0-0", "$O.blobs.C.x", "jobs.cancel.acme", "served.t.x", "failed.sample.t"),
    *(value_subject(streams.REPLICAS_BUCKET, f"{name}.x") for name in ("env", "gateway")),
)
"""Subjects where some service's key may store a body of its own choice."""


HELD = {stream.name: stream.subjects for stream in streams.STREAMS} | {f"KV_{one.name}": (f"$KV.{one.name}.>",) for one in streams.BUCKETS}
HELD["OBJ_blobs"] = ("$O.blobs.>",)
"""Stream → what it stores."""
KINDS = [kind for kind in SAYS if issubclass(kind, Message)]
"""What streams carry."""


async def send_on(client: Client, source: str, allowed: tuple[str, ...], target: str) -> None:
    """Have JetStream send what the key has stored on `source` to `target`, in every way that it knows."""
    for store in (store for store, subjects in HELD.items() if covers(subjects, source)):
        last = json.dumps({"last_by_subj": source}).encode()
        many = json.dumps({"multi_last": [source], "batch": 9, "no_hdr": True}).encode()
        asked = ((f"{API}.DIRECT.GET.{store}.{source}", b""), (f"{API}.DIRECT.GET.{store}", last), (f"{API}.DIRECT.GET.{store}", many))
        for subject, body in (*asked, (f"{API}.STREAM.MSG.GET.{store}", last), (f"{API}.STREAM.INFO.{store}", b"")):
            if covers(allowed, subject):
                await client.publish(subject, body, reply=target)
        create = f"{API}.CONSUMER.CREATE.{store}"
        if covers(allowed, create):
            config = {"deliver_subject": target, "deliver_policy": "all", "ack_policy": "none", "filter_subject": source}
            for one in (config, config | {"idle_heartbeat": 100_000_000, "flow_control": True}):
                await client.publish(create, json.dumps({"stream_name": store, "config": one}).encode(), reply=target)


async def stored(keyed: Keyed) -> dict[str, list[tuple[str, bytes, str]]]:
    """Stream → messages in it: subject, body, headers."""
    found: dict[str, list[tuple[str, bytes, str]]] = {}
    async with raw(keyed, keyed.stages_key(), set()) as everything:
        js = everything.jetstream(timeout=60)
        for stream in TARGETS:
            state = (await js.stream_info(stream)).state
            for number in range(state.first_seq, state.last_seq + 1):
                with suppress(APIError):  # none of this number
                    one = await js.get_msg(stream, number)
                    found.setdefault(stream, []).append((one.subject or "", one.data or b"", str(one.headers)))
    return found


@pytest.mark.parametrize("name", SERVICES_OF_WORK)
async def test_no_key_has_its_own_words_stored_where_it_may_not_write(keyed: Keyed, name: str) -> None:
    """A message's body and headers are its publisher's: JetStream's own answers are JSON, which no reader takes for a message."""
    allowed = service_permissions(name, DEPLOYMENT).publish
    targets = {stream: subject for stream, subject in TARGETS.items() if not covers(allowed, subject)}
    sources = [subject for subject in OWN_SUBJECTS if covers(allowed, subject)]
    assert targets and sources
    refused: set[tuple[str, str]] = set()
    async with raw(keyed, keyed.keys.credentials(name), refused) as client, raw(keyed, keyed.stages_key(), set()) as listener:
        for target in targets.values():  # a subject of delivery needs a listener, which tenants' keys and live readers are
            await listener.subscribe(target)
        await listener.flush()
        for source in sources:
            await client.publish(source, MARK, headers={"Marlaas-Kind": "forged", "X-Mark": "chosen"})
        await client.flush()
        for source in sources:
            for target in targets.values():
                await send_on(client, source, allowed, target)
        await client.flush()
        await asyncio.sleep(0.3)  # heartbeats of consumers
    assert refused == set()
    for stream, found in (await stored(keyed)).items():
        on_target = [(body, headers) for subject, body, headers in found if subject == targets.get(stream)]
        assert [body for body, headers in on_target if MARK in body or "chosen" in headers] == []
        for body in {body for body, _ in on_target}:
            for kind in KINDS:
                with pytest.raises(Reject):
                    Delivery(targets[stream], {}, body, 1, 1).read(kind)


async def test_what_was_sent_on_reaches_no_live_reader(keyed: Keyed) -> None:
    """A consumer delivers to any subject that has a listener of exactly it. Such a message keeps its own subject: the reader drops it."""
    heard: list[str] = []
    own, replies = value_subject(streams.REPLICAS_BUCKET, "trainer.x"), streams.replies("door")
    config = {"deliver_subject": replies, "deliver_policy": "all", "ack_policy": "none", "filter_subject": own}

    async def take(delivery: Delivery) -> None:
        heard.append(delivery.subject)

    async with await keyed.connect("gateway") as gateway, raw(keyed, keyed.keys.credentials("trainer"), set()) as rogue:
        listens = asyncio.Event()
        hearing = asyncio.create_task(gateway.requests.hear(replies, take, listens.set))
        async with gateway.requests.listening(replies) as listening:
            await listens.wait()
            await rogue.publish(own, MARK)
            create = json.dumps({"stream_name": "KV_replicas", "config": config}).encode()
            made = json.loads((await rogue.request(f"{API}.CONSUMER.CREATE.KV_replicas", create, timeout=60)).data)
            assert made["push_bound"], "the server delivers"
            async with await keyed.connect("rollout") as rollout:
                while replies not in heard:  # whatever is sent on comes before one of these
                    await rollout.requests.send(replies, CancelServing(gateway="door", requests=[]))
                    await asyncio.sleep(0.1)
            assert set(heard) == {replies}
            found = await listening.next(timeout_s=60)
            assert found is not None and found.subject == replies
        hearing.cancel()
