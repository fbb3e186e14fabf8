"""The sampler's handler between a real NATS and a real engine."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.messages import ChatMessage, TurnRequest, TurnsSampled
from common.spec import Limits
from common.tool_calls import Thoughts
from rollout_svc import service
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from rollout_svc.engine.work import seed_of
from rollout_svc.text.chat import Chat
from tests.rollout.oracle import Oracle, peft_name, published
from tests.rollout.stage import QUESTION, Overheard, Stage, agrees, first_turns, group_of, lasting, performing, status, updated
from tests.rollout.templates import KEEPS, with_template
from tests.support.rollout.requests import END
from tests.support.waiting import eventually, eventually_equals


async def test_every_member_is_answered_with_its_tokens_and_state(stage: Stage, chat: Chat, oracle: Oracle) -> None:
    group = group_of("plain")
    turns = await stage.answer(group, *first_turns(range(4)))
    prompt = chat.with_messages(first_turns([0])[0], group.limits)
    for member, turn in turns.items():
        assert turn.failure is None
        assert turn.state == bytes([member])
        assert turn.transcript.ids.startswith(prompt.ids)
        assert turn.transcript.sampled == prompt.sampled + b"\x01" * turn.transcript.sampled_tokens
        sampled = turn.transcript.ids_T().tolist()[len(prompt) :]
        assert (sampled[-1] == END) == (turn.finish == "stop")
        assert turn.reply == chat.text(sampled)
        agrees(oracle, turn, None, 0.9)
    assert len({turn.transcript.ids for turn in turns.values()}) > 1, "members have seeds of their own"


async def test_later_turn_appends_to_what_was_sampled(stage: Stage, oracle: Oracle) -> None:
    group = group_of("talk")
    turns = await stage.answer(group, *first_turns(range(3)))
    second_turns = [
        TurnRequest(
            member=member, turn=1, transcript=turn.transcript, messages=[ChatMessage(role="user", content="Try again.")], state=b"s"
        )
        for member, turn in turns.items()
    ]
    stage.answers.clear()
    later = await stage.answer(group, *second_turns)
    for member, turn in later.items():
        before = turns[member].transcript
        assert turn.transcript.ids.startswith(before.ids)
        assert turn.transcript.logprobs.startswith(before.logprobs)
        assert turn.transcript.sampled.startswith(before.sampled + b"\x00")
        assert turn.turn == 1
        agrees(oracle, turn, None, 0.9)


async def test_turn_says_that_its_prompt_has_opened_thoughts(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> None:
    thinking = with_template(chat, KEEPS + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}")
    limits = Limits(max_prompt_tokens=100, max_turns=4, max_reply_tokens=100)
    async with performing(bus, engine, thinking, adapters) as stage:
        group = group_of("thinking", limits=limits)
        [first] = (await stage.answer(group, *first_turns([0]))).values()
        again = TurnRequest(
            member=1, turn=1, transcript=first.transcript, messages=[ChatMessage(role="user", content="<think>")], state=b"s"
        )
        later = (await stage.answer(group, again))[1]
    assert first.thoughts == later.thoughts == Thoughts(begins_inside=True)
    async with performing(bus, engine, chat, adapters) as stage:
        turns = await stage.answer(group_of("not-thinking"), *first_turns([0], [ChatMessage(role="user", content="<think>")]))
    assert turns[0].thoughts == Thoughts()


async def test_later_turns_go_before_first_turns(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> None:
    overheard = Overheard(engine)
    async with performing(bus, overheard, chat, adapters) as stage:  # pyright: ignore
        group = group_of("order")
        (turn,) = (await stage.answer(group, *first_turns([0]))).values()
        requests = [
            TurnRequest(member=member, turn=member, transcript=turn.transcript, messages=QUESTION, state=b"s") for member in (1, 2, 3)
        ]
        stage.answers.clear()
        await stage.answer(group, *requests)
    assert sorted(one.priority for one in overheard.requests) == [-3, -2, -1, 0], "lower goes first"
    assert overheard.requests[0].priority == 0


async def test_same_request_samples_the_same(stage: Stage) -> None:
    first = await stage.answer(group_of("twice", group=0), *first_turns(range(4)))
    repeated = await stage.answer(group_of("twice", group=1), *first_turns(range(4)))
    assert [turn.transcript.ids for turn in repeated.values()] == [turn.transcript.ids for turn in first.values()]


async def test_members_of_one_coalescing_window_share_a_message(
    bus: Bus, engine: Engine, chat: Chat, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "coalescing_window_s", lasting(300.0))
    async with performing(bus, Overheard(engine, lambda number: asyncio.sleep(0.1 * number)), chat, adapters) as stage:  # pyright: ignore
        await stage.answer(group_of("moment", max_tokens=1), *first_turns(range(4)))
        assert [[turn.member for turn in answer.members] for answer in stage.answers] == [[0, 1, 2, 3]]


async def test_members_of_another_moment_are_not_waited_for(
    bus: Bus, engine: Engine, chat: Chat, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "coalescing_window_s", lasting(0.0))
    arrived: list[TurnsSampled] = []

    async def until(number: int) -> None:
        await eventually(lambda: len(arrived) == number - 1)  # the one before has been answered

    async with performing(bus, Overheard(engine, until), chat, adapters) as stage:  # pyright: ignore
        arrived = stage.answers
        await stage.answer(group_of("moments", max_tokens=1), *first_turns(range(4)))
        assert [[turn.member for turn in answer.members] for answer in stage.answers] == [[0], [1], [2], [3]]


def test_moment_is_a_share_of_the_sampling_and_never_long() -> None:
    assert service.coalescing_window_s(0.1) == pytest.approx(0.025)
    assert service.coalescing_window_s(60.0) == service.MAX_COALESCING_S


async def test_finished_member_makes_room_while_it_waits_for_others(
    bus: Bus, engine: Engine, chat: Chat, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "coalescing_window_s", lasting(300.0))
    last = asyncio.Event()

    async def until(number: int) -> None:
        if number == 8:
            await last.wait()

    async with performing(bus, Overheard(engine, until), chat, adapters) as stage:  # pyright: ignore
        group = group_of("room", max_tokens=1)
        await stage.ask(group, *first_turns(range(8)))
        await eventually(lambda: stage.rollout.sequences == 1 and stage.slots.free == 64 - 1)
        assert stage.answers == []
        last.set()
        await eventually(lambda: len(stage.turns(group)) == 8)
        await eventually(stage.is_idle)


async def test_adapter_is_fetched_and_used(stage: Stage, blobs: Blobs, oracle: Oracle) -> None:
    ref = await published(blobs, oracle, "adapted", 1, seed=7)
    turns = await stage.answer(group_of("adapted", adapter=ref), *first_turns(range(3)))
    for turn in turns.values():
        agrees(oracle, turn, peft_name(ref), 0.9)


async def test_adapter_that_is_gone_fails_its_members_with_the_reason(stage: Stage, blobs: Blobs, oracle: Oracle) -> None:
    ref = await published(blobs, oracle, "lost", 1, seed=8)
    await blobs.delete(ref.blob.name)
    turns = await stage.answer(group_of("lost", adapter=ref), *first_turns(range(2)))
    assert all(ref.blob.name in (turn.failure or "") for turn in turns.values())
    assert all(len(turn.transcript) == 0 for turn in turns.values())


async def test_prompt_that_is_too_long_fails_alone(stage: Stage) -> None:
    long = [ChatMessage(role="user", content="What is it? " * 60)]
    group = group_of("long")
    turns = await stage.answer(group, *first_turns([0]), *first_turns([1], long))
    assert turns[0].failure is None
    assert "limits.max_prompt_tokens is 64" in (turns[1].failure or "")


async def test_turn_that_does_not_fit_the_context_fails_with_the_numbers(stage: Stage) -> None:
    turns = await stage.answer(group_of("wide", max_tokens=510), *first_turns([0]))
    assert "may sample 510 more, but the engine's context is 512" in (turns[0].failure or "")


async def test_group_past_its_deadline_is_dropped(stage: Stage) -> None:
    late, timely = group_of("late", deadline_s=time.time() - 1), group_of("timely")
    await stage.ask(late, *first_turns(range(4)))
    await stage.answer(timely, *first_turns(range(2)))
    assert stage.turns(late) == {}


async def test_deadline_ends_a_group_that_is_being_sampled(bus: Bus, engine: Engine, endless: Chat, adapters: Adapters) -> None:
    overheard = Overheard(engine, lambda number: asyncio.Event().wait())
    async with performing(bus, overheard, endless, adapters) as stage:  # pyright: ignore
        late = group_of("slow", max_tokens=440)
        stage.rollout._now_s = lambda _: late.deadline_s + (1.0 if overheard.requests else -0.05)
        await stage.ask(late, *first_turns(range(16)))
        await eventually(stage.is_idle)
        assert overheard.requests
        assert stage.turns(late) == {}


class Unending(Overheard):
    """The engine, of whose replies none comes to an end before some are aborted."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, lambda number: self._some_are_aborted.wait())
        self._some_are_aborted = asyncio.Event()
        self._aborted: set[str] = set()

    async def sample(self, wanted: SampleRequest) -> Sampled:
        sampled = await super().sample(wanted)
        return Sampled([], [], "aborted") if wanted.request_id in self._aborted else sampled

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._engine.abort(request_ids)
        self._aborted |= set(request_ids)
        self._some_are_aborted.set()


async def test_cancelled_task_is_aborted_and_others_continue(
    bus: Bus, engine: Engine, endless: Chat, adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    ref = await published(blobs, oracle, "doomed", 1, seed=9)
    doomed, other, later = group_of("doomed", adapter=ref, max_tokens=440), group_of("survivor"), group_of("doomed", adapter=ref, group=1)
    async with performing(bus, Unending(engine), endless, adapters) as stage:  # pyright: ignore
        await stage.ask(doomed, *first_turns(range(4)))
        await stage.ask(other, *first_turns(range(2)))
        await eventually(lambda: stage.rollout.sequences == 6)
        await stage.bus.kv.put(streams.TASKS_BUCKET, "doomed", status("doomed", "cancelled"))
        await eventually(lambda: len(stage.turns(other)) == 2)
        await stage.ask(later, *first_turns(range(4)))
        await eventually(stage.is_idle)
        assert stage.turns(doomed) == stage.turns(later) == {}

        async def unloaded() -> bool:
            return ref.engine_name not in await engine.loaded()

        await eventually(unloaded)


async def test_paused_task_continues_with_what_is_in_flight(stage: Stage) -> None:
    await stage.bus.kv.put(streams.TASKS_BUCKET, "resting", status("resting", "paused"))
    assert len(await stage.answer(group_of("resting"), *first_turns(range(2)))) == 2


async def test_new_version_of_a_live_task_is_loaded_ahead(stage: Stage, engine: Engine, blobs: Blobs, oracle: Oracle) -> None:
    live, ended = await published(blobs, oracle, "live", 1, seed=11), await published(blobs, oracle, "over", 1, seed=12)
    await stage.bus.kv.put(streams.TASKS_BUCKET, "over", status("over", "finished"))
    await stage.bus.kv.put(streams.TASKS_BUCKET, "live", status("live", "running"))
    await eventually(lambda: stage.rollout._tasks.is_live("live"))
    for ref in (ended, live):
        await stage.bus.publish(Outgoing(streams.weight_updated("tiny", ref.task), updated(ref), f"updated:{ref.name}"))
    await eventually_equals(engine.loaded, {live.engine_name})


async def test_slots_count_members_and_come_back_as_they_finish(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> None:
    all_in = asyncio.Event()
    async with performing(bus, Overheard(engine, lambda number: all_in.wait()), chat, adapters) as stage:  # pyright: ignore
        group = group_of("slots")
        await stage.ask(group, *first_turns(range(12)))
        await eventually(lambda: stage.slots.free == 64 - 12)
        all_in.set()
        await eventually(lambda: stage.slots.free == 64)
        await eventually(lambda: len(stage.turns(group)) == 12)


@pytest.mark.parametrize("change", [{"seed": 6}, {"member": 1}, {"turn": 1}])
def test_seed_differs_for_every_group_member_and_turn(change: dict[str, int]) -> None:
    group = group_of("seeds")
    arguments = {"member": 0, "turn": 0} | {key: value for key, value in change.items() if key != "seed"}
    changed = seed_of(group.model_copy(update={"seed": change.get("seed", group.seed)}), **arguments)
    assert changed != seed_of(group, 0, 0)
    assert 0 <= changed < 2**63
    assert seed_of(group, 0, 0) == seed_of(group.model_copy(update={"deadline_s": 0.0}), 0, 0)


async def test_greedy_group_takes_the_likeliest_token_each_time(stage: Stage, oracle: Oracle) -> None:
    turns = await stage.answer(group_of("greedy", greedy=True), *first_turns(range(4)))
    assert len({turn.transcript.ids for turn in turns.values()}) == 1
    record = turns[0].transcript
    ids, sampled_T = record.ids_T().tolist(), record.sampled_T().astype(bool)
    for place in np.flatnonzero(sampled_T):
        likely_V = oracle.distributions(ids, None)[place - 1]
        assert likely_V[ids[place]] >= likely_V.max() - 1e-4
