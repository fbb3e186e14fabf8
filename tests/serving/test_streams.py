"""A request survives the replicas that sample it, and ends wherever it runs when nobody reads it."""

import asyncio
from contextlib import aclosing

import pytest

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import ProcessLife, ReplicaReport, Served, ServedCall, ServedMessage, ServedSampling, ServeRequest
from gateway_svc.serving.client import GRACE_S, MAX_UNHEARD, RESUME_S
from gateway_svc.serving.progress import MAX_BUFFERED_BYTES, SILENT_S
from gateway_svc.serving.stream_quota import MAX_SENT, TooManyStreams
from tests.support.rollout.books import version
from tests.support.rollout.replicas import CHAT, CONTEXT, PATIENT_S, QUESTION, expected, performing
from tests.support.waiting import eventually


def called(arguments: str) -> ServedMessage:
    return ServedMessage(role="assistant", tool_calls=[ServedCall(id="c", name="add", arguments=arguments)])


async def test_answer_is_what_the_source_sampled(bus: Bus) -> None:
    async with performing(bus) as stage:
        await stage.replica()
        request = stage.request(200)
        answer = await stage.answer(request)
        assert answer.ids == await expected(request)
        assert answer.text == CHAT.decode(answer.ids)
        first, last = answer.deltas[0], answer.last
        assert (first.prompt_tokens, first.fingerprint) == (len(stage.replicas[0].source.begun[0].ids), "source-tiny-base")
        assert (last.finish, last.cached_tokens) == ("length", 2)
        assert [delta.number for delta in answer.deltas] == list(range(len(answer.deltas)))
        assert [delta.number for delta in answer.deltas if delta.prompt_tokens is not None or delta.fingerprint] == [0]


async def test_deltas_of_all_requests_of_a_gateway_share_messages(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=20)
        answers = await asyncio.gather(*(stage.answer(stage.request(60)) for _ in range(20)))
        assert sum(len(answer.deltas) for answer in answers) > 3 * replica.wire.told


async def test_stream_waits_for_its_only_replica_which_restarts(bus: Bus) -> None:
    """For as long as its start took the last time, which is longer than another replica may take."""
    async with performing(bus, silent_s=SILENT_S) as stage:
        await stage.replica()
        request, now_s = stage.request(150), bus.clock.now_s()
        life = ProcessLife(service="rollout", replica="r", pool=request.pool, began_s=now_s, start_s=40.0)
        await bus.kv.put(streams.HISTORY_BUCKET, "rollout.r", life)
        running = asyncio.create_task(stage.answer(request))
        await eventually(lambda: stage.replicas[0].source.running and stage.replicas[0].wire.told > 5)
        await stage.replicas[0].die()
        await asyncio.sleep(SILENT_S + MAX_UNHEARD * (RESUME_S + GRACE_S) + 1)  # when it would have ended
        await stage.replica()
        answer = await running
        assert answer.last.finish == "length", answer.last
        assert answer.ids == await expected(request)


@pytest.mark.parametrize("fault", ["dies", "stops", "loses one", "falls silent", "repeats"])
async def test_stream_survives_its_replica(bus: Bus, fault: str) -> None:
    """No token twice, none missing."""
    async with performing(bus, silent_s=SILENT_S if fault in ("dies", "falls silent") else PATIENT_S) as stage:
        await stage.replica()
        request = stage.request(150)
        running = asyncio.create_task(stage.answer(request))
        await eventually(lambda: stage.replicas[0].source.running and stage.replicas[0].wire.told > 5)
        broken = stage.replicas[0]
        match fault:
            case "dies":
                await stage.replica()
                await broken.die()
            case "stops":
                await stage.replica()
                await broken.stop()
            case "loses one":
                lost = iter([True])
                broken.wire.lose = lambda message: isinstance(message, Served) and bool(message.deltas) and next(lost, False)
            case "falls silent":
                broken.wire.lose = lambda message: len(broken.source.begun) == 1  # it is heard again with the next attempt
            case _:
                broken.wire.times = 3
        answer = await running
        assert answer.last.finish == "length", answer.last
        assert answer.ids == await expected(request)
        assert answer.text == CHAT.decode(answer.ids)
        attempts = {delta.attempt for delta in answer.deltas}
        assert (attempts == {0}) == (fault == "repeats")
        assert [place for place, delta in enumerate(answer.deltas) if delta.prompt_tokens is not None] == [0]


@pytest.mark.timeout(120)
async def test_stream_whose_replicas_are_all_dead_ends_with_an_error(bus: Bus) -> None:
    async with performing(bus, silent_s=SILENT_S) as stage:
        await stage.replica()
        running = asyncio.create_task(stage.answer(stage.request(150)))
        await eventually(lambda: stage.replicas[0].wire.told > 5)
        await stage.replicas[0].die()
        answer = await running
        assert (answer.last.failure, answer.last.finish) == ("engine_lost", None)


async def test_request_that_no_replica_takes_is_overdue_and_never_sampled(bus: Bus) -> None:
    async with performing(bus) as stage:
        answer = await stage.answer(stage.request(wait_s=0.2))
        assert answer.last.failure == "overdue"
        assert await bus.streams.backlog(streams.REQUESTS) == 1
        replica = await stage.replica()
        await eventually(lambda: bus_is_empty(bus))
        assert replica.source.begun == []


async def bus_is_empty(bus: Bus) -> bool:
    return await bus.streams.backlog(streams.REQUESTS) == 0


async def test_request_that_waits_in_a_replica_for_too_long_is_overdue_and_never_sampled(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=1)
        replica.source.may_begin.clear()
        first = asyncio.create_task(stage.answer(stage.request(5)))
        await eventually(lambda: replica.source.running)
        answer = await stage.answer(stage.request(wait_s=0.5))
        assert answer.last.failure == "overdue"
        replica.source.may_begin.set()
        assert (await first).last.finish == "length"
        assert len(replica.source.begun) == 1


@pytest.mark.parametrize("tokens", [1, 20])
async def test_closed_stream_ends_at_the_replica(bus: Bus, tokens: int) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica()
        async with aclosing(stage.client.deltas(stage.request(400))) as deltas:
            seen = 0
            async for delta in deltas:
                seen += len(delta.ids) // 4
                if seen >= tokens:
                    break
        await eventually(lambda: not replica.source.running)
        assert replica.serving.requests == 0
        assert replica.slots.free == 16


async def test_client_that_goes_before_a_replica_is_known_leaves_nothing_running(bus: Bus) -> None:
    async with performing(bus) as stage:
        running = asyncio.create_task(stage.answer(stage.request(400)))
        await eventually(lambda: bus.streams.backlog(streams.REQUESTS))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        replica = await stage.replica()
        replica.source.may_go_on.clear()
        await eventually(lambda: replica.source.begun)
        await eventually(lambda: not replica.source.running)


async def test_generator_that_is_never_started_has_sent_nothing(bus: Bus) -> None:
    async with performing(bus) as stage:
        await stage.client.deltas(stage.request()).aclose()
        assert await bus_is_empty(bus)


async def test_gateway_that_dies_takes_its_requests_with_it(bus: Bus) -> None:
    async with performing(bus, reports=False) as stage:
        await bus.kv.put(streams.REPLICAS_BUCKET, "gateway.other", ReplicaReport(replica="other", service="gateway"))
        replica = await stage.replica()
        replica.source.may_go_on.clear()
        running = asyncio.create_task(stage.answer(stage.request(400)))
        await eventually(lambda: replica.source.running)
        await eventually(lambda: not replica.source.running)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_slow_reader_loses_its_request_and_nobody_waits_for_it(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica()
        slow = stage.client.deltas(stage.request(480))
        await anext(slow)
        buffer = stage.client._streams[next(iter(stage.client._streams))].buffer
        buffer._bytes += MAX_BUFFERED_BYTES - 2000
        other = await stage.answer(stage.request(20))
        assert other.last.finish == "length"
        await eventually(lambda: buffer.is_over)
        await eventually(lambda: not replica.source.running)
        assert [delta.failure async for delta in slow][-1] == "slow_reader"


async def test_process_has_a_bounded_number_of_streams(bus: Bus) -> None:
    async with performing(bus, max_streams=1) as stage:
        replica = await stage.replica()
        replica.source.may_go_on.clear()
        first = stage.client.deltas(stage.request())
        await anext(first)
        with pytest.raises(TooManyStreams):
            await anext(stage.client.deltas(stage.request()))
        await first.aclose()


async def test_waiting_requests_have_so_many_bytes_and_those_of_one_tenant_half_of_them(bus: Bus) -> None:
    async with performing(bus, max_waiting_bytes=8000) as stage:

        def of(tenant: str) -> ServeRequest:
            return stage.request(text="a" * 2500, messages=None, tenant=tenant)

        waiting = [asyncio.create_task(stage.answer(of(tenant))) for tenant in ("acme", "globex")]
        await eventually(lambda: stage.client.requests == 2)
        for tenant in ("acme", "initech"):
            with pytest.raises(TooManyStreams):
                await anext(stage.client.deltas(of(tenant)))
        await stage.replica()
        await asyncio.gather(*waiting)
        assert (await stage.answer(stage.request(text="a" * 200, messages=None))).last.finish


async def test_requests_of_all_gateways_fill_their_own_stream_and_none_of_training(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    async with performing(bus) as stage:
        for number in range(4):
            await bus.publish_raw(streams.serve("none", None, f"other-{number}"), b"x" * 7 * 2**20, f"other-{number}", {})
        with pytest.raises(TooManyStreams, match="all gateways"):
            await anext(stage.client.deltas(stage.request(text="a" * 6 * 2**20, messages=None)))
        assert stage.client.requests == 0
    await bus.publish_raw(streams.sample("tiny", "a", "0-0"), b"x" * 7 * 2**20, "rollout", {})


async def test_same_request_twice_is_refused(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica()
        replica.source.may_go_on.clear()
        request = stage.request()
        first = stage.client.deltas(request)
        await anext(first)
        with pytest.raises(Reject, match="is running already"):
            await anext(stage.client.deltas(request))
        await first.aclose()


async def test_versions_that_cannot_be_used_are_named(bus: Bus) -> None:
    async with performing(bus) as stage:
        await stage.replica()
        answer = await stage.answer(stage.request(adapter=version(13)))
        assert (answer.last.failure, "version 13" in answer.last.reason) == ("version_unusable", True)
        answer = await stage.answer(stage.request(adapter=version(14)))
        assert answer.last.failure == "engine_lost"  # another replica might have its blob
        answer = await stage.answer(stage.request(adapter=version(2)))
        assert answer.deltas[0].fingerprint == f"source-tiny-{version(2).blob.sha256[:12]}"


async def test_prompt_beyond_the_context_is_refused_with_three_numbers(bus: Bus) -> None:
    async with performing(bus) as stage:
        await stage.replica()
        prompt = len((await CHAT.conversation([{"role": "user", "content": "What is 3 + 4?"}], [], {}, CONTEXT))[0])
        answer = await stage.answer(stage.request(CONTEXT))
        assert answer.last.failure == "context_length_exceeded"
        assert answer.last.reason == f"the prompt has {prompt} tokens, {CONTEXT} may be sampled, and the context is {CONTEXT} tokens"
        answer = await stage.answer(stage.request(messages=[ServedMessage(role="user", content="word " * 5000)]))
        assert answer.last.failure == "context_length_exceeded"
        sampling = ServedSampling(temperature=0, seed=7)
        answer = await stage.answer(stage.request(sampling=sampling))
        assert len(answer.ids) == CONTEXT - prompt, "as many as there is room for"


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": None},
        {"messages": None, "text": "a", "ids": b"\1\0\0\0"},
        {"messages": None, "ids": b""},
        {"messages": None, "ids": b"\1\0\0"},
        {"messages": None, "ids": b"\xff\xff\xff\x7f"},
        {"tools": [{"name": "x"}]},
        {"template": {"no_such_variable": 1}},
        *({"messages": [*QUESTION, called(arguments)]} for arguments in ('{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[1]", "{")),
    ],
)
async def test_request_that_makes_no_sense_is_refused(bus: Bus, changes: dict[str, object]) -> None:
    async with performing(bus) as stage:
        await stage.replica()
        answer = await stage.answer(stage.request(**changes))
        assert answer.last.failure == "invalid"
        assert answer.last.reason


async def test_tenants_wait_by_weight_not_by_number_of_requests(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=1)
        replica.slots._free = 100
        replica.source.may_begin.clear()
        held = asyncio.create_task(stage.answer(stage.request(3, tenant="greedy")))
        await eventually(lambda: replica.source.running)
        many = [asyncio.create_task(stage.answer(stage.request(3, tenant="greedy"))) for _ in range(10)]
        await eventually(lambda: replica.serving.requests == MAX_SENT)
        modest = stage.request(3, tenant="modest")
        one = asyncio.create_task(stage.answer(modest))
        await eventually(lambda: replica.serving.requests == MAX_SENT + 1)
        replica.source.may_begin.set()
        await asyncio.gather(held, one, *many)
        order = [request.request_id.split(":")[2] for request in replica.source.begun]
        assert order.index(modest.request) <= 2


async def test_later_requests_of_a_loaded_version_do_not_starve_another(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(sequences=8, adapters=1)
        replica.source.may_begin.clear()
        running = [asyncio.create_task(stage.answer(stage.request(3, adapter=version(1))))]
        await eventually(lambda: len(replica.source.begun) == 1)
        running.append(asyncio.create_task(stage.answer(stage.request(3, adapter=version(2)))))
        await eventually(lambda: replica.serving.requests == 2)
        running.append(asyncio.create_task(stage.answer(stage.request(3, adapter=version(1)))))
        await eventually(lambda: replica.serving.requests == 3)
        replica.source.may_begin.set()
        await asyncio.gather(*running)
        assert [request.adapter for request in replica.source.begun] == [version(number).engine_name for number in (1, 2, 1)]
