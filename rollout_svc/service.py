"""The sampler's handler: a message requests turns of several members of one group; each is answered as it finishes.

Members that finish within `coalescing_window_s` share a message, unless they are too large for one: in queue, environment and scheduler
a message costs the same with one member or many. A request is acknowledged after its last
member; a redelivered one is resampled with the same seeds. While the slots are closed, as in a parked replica, requests whose
adapter is not loaded are handed back; requests whose prompt is being tokenized wait at the engine's gate. If an engine is closed because of
wrong state, its running requests are handed back too, and so are those that serving keeps from running (`coserving/lender.py`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import structlog
from prometheus_client import Counter, Gauge

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.errors import HandedBack, Reject, Retry
from common.messages import GroupContext, SampledTurn, SampleTurns, TurnRequest, TurnsSampled, WeightUpdated
from common.messages.base import in_parts
from common.task_states import TaskStates
from rollout_svc.adapters import Adapters
from rollout_svc.engine import work
from rollout_svc.engine.engine import Engine, SampleRequest
from rollout_svc.text.chat import Chat, UnusablePrompt

SAMPLED_TOKENS = Counter("marlaas_rollout_sampled_tokens_total", "Tokens that the engine sampled")
PROMPT_TOKENS = Counter("marlaas_rollout_prompt_tokens_total", "Tokens that requests brought, cached ones included")
SEQUENCES = Gauge("marlaas_rollout_sequences", "Sequences inside the engine, waiting ones included")

MAX_COALESCING_S = 0.05
COALESCING_SHARE = 0.25
SHORTEST_WAIT_S = 0.05
"""Minimum seconds between checks of a near deadline: while the pool is parked, its clock stops."""

log = structlog.get_logger()


def coalescing_window_s(sampling_s: float) -> float:
    """Maximum seconds that members, which finished after `sampling_s`, wait to share a message with others.

    A fraction of `sampling_s`, so that short turns stay short, capped at MAX_COALESCING_S, which environments do not notice.
    """
    return min(MAX_COALESCING_S, COALESCING_SHARE * sampling_s)


def every_task(_: str) -> bool:
    return True


class Rollout:
    """Handler of `prompts.sample`; follows new versions and ended tasks."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        adapters: Adapters,
        tasks: TaskStates,
        slots: Slots,
        now_s: Callable[[str], float],
        thoughts: tuple[str, str] | None = None,
    ) -> None:
        """`now_s`: deadline clock of a pool, by pool name. `thoughts`: opening and closing marks configured for the pool."""
        self._engine = engine
        self._chat = chat
        self._adapters = adapters
        self._tasks = tasks
        self._slots = slots
        self._now_s = now_s
        self._thoughts = thoughts
        self._running: dict[str, set[str]] = {}
        """Task → ids of its requests inside the engine."""
        self._starting: set[asyncio.Timeout] = set()
        """Timeouts of requests that wait for their adapter; an expired one hands its request back."""
        self.unanswered_messages: dict[str, list[str]] = {}
        """Ids of the requests of each message with a loaded adapter and without an answered turn, by the first of them."""
        self.preparing = Pending()
        """Turns before the engine: their adapter is being loaded or their prompt tokenized."""
        self.unanswered = Pending()
        """Finished turns that are not yet published, as they wait to share a message."""

    @property
    def sequences(self) -> int:
        """Number of requests inside the engine."""
        return sum(len(ids) for ids in self._running.values())

    # ---------------------------------------------------------------------------------------------------------- sample

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        if self._slots.are_closed:
            raise HandedBack("this replica is parked")
        message = delivery.read(SampleTurns)
        group, reserved = message.group, SlotReservation(self._slots, len(message.members) - 1)
        turns_of_it = [work.request_id(group, request.member, request.turn) for request in message.members]
        self.preparing.add(turns_of_it)
        try:
            if self._is_unwanted(group):
                return
            async with self._begun(group) as adapter:
                if self._is_unwanted(group):  # loading the adapter may have taken long
                    return
                self.unanswered_messages[turns_of_it[0]] = turns_of_it
                async with aclosing(self._sample(group, message.members, adapter, reserved)) as batches:
                    async for turns in batches:
                        self.unanswered_messages.pop(turns_of_it[0], None)
                        for answer in _answers(group, turns):
                            yield answer
                        self.unanswered.discard(work.request_id(group, turn.member, turn.turn) for turn in turns)
        except Reject as error:
            log.warning("group_failed", group=group.group)
            for answer in _answers(group, [_failed(request, str(error)) for request in message.members]):
                yield answer
        finally:
            self.unanswered_messages.pop(turns_of_it[0], None)
            self.preparing.discard(turns_of_it)
            self.unanswered.discard(turns_of_it)
            reserved.release_all()

    @asynccontextmanager
    async def _begun(self, group: GroupContext) -> AsyncGenerator[str | None]:
        """Yield the engine's name of the group's adapter. Raises: HandedBack if the slots close before it is loaded."""
        async with AsyncExitStack() as stack:
            starting = asyncio.timeout(None)
            self._starting.add(starting)
            try:
                async with starting:
                    adapter = await stack.enter_async_context(self._adapters.using(group.adapter))
            except TimeoutError:
                if starting.expired():
                    raise HandedBack("this replica was parked before the adapter was loaded") from None
                raise
            finally:
                self._starting.discard(starting)
            yield adapter

    def hand_back(self) -> None:
        """Hand back requests whose adapter is not loaded. Call it after the slots are closed."""
        for starting in self._starting:
            starting.reschedule(asyncio.get_running_loop().time())

    def _is_unwanted(self, group: GroupContext) -> bool:
        if self._tasks.has_ended(group.task):
            log.info("request_dropped", group=group.group, reason="the task has ended")
            return True
        if self._left_s(group) < 0:
            log.warning("request_dropped", group=group.group, reason="its deadline has passed")
            return True
        return False

    def _left_s(self, group: GroupContext) -> float:
        return group.deadline_s - self._now_s(group.pool)

    async def _sample(
        self, group: GroupContext, requests: Sequence[TurnRequest], adapter: str | None, reserved: "SlotReservation"
    ) -> AsyncGenerator[list[SampledTurn], None]:
        """Yield turns as they finish, grouped by coalescing window. Aborted members are left out."""
        began = time.monotonic()
        runners = {asyncio.create_task(self._sample_one(group, request, adapter)) for request in requests}
        for runner in runners:
            runner.add_done_callback(lambda _: reserved.release(1))
        pending = runners
        try:
            while pending:
                wait_s = max(SHORTEST_WAIT_S, self._left_s(group))
                done, pending = await asyncio.wait(pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if not done and self._left_s(group) > 0:  # the pool was parked meanwhile, so its clock stopped
                    continue
                if not done:
                    log.warning("request_dropped", group=group.group, reason="its deadline has passed", members=len(pending))
                    return
                if pending:
                    also, pending = await asyncio.wait(pending, timeout=coalescing_window_s(time.monotonic() - began))
                    done |= also
                turns = [turn for turn in (runner.result() for runner in done) if turn is not None]
                if turns:
                    yield sorted(turns, key=lambda turn: turn.member)
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)

    async def _sample_one(self, group: GroupContext, request: TurnRequest, adapter: str | None) -> SampledTurn | None:
        """Sample one member's turn; None if it was aborted because its task ended."""
        request_id = work.request_id(group, request.member, request.turn)
        try:
            prompt = await self._chat.prompt(request, group.limits, group.sampling.template)
            stop_strings = self._chat.stop_strings(group.sampling.stop)
            room = self._engine.settings.context_tokens - len(prompt)
            if room < group.sampling.max_tokens:
                raise UnusablePrompt(
                    f"turn {request.turn} has {len(prompt)} tokens before it and may sample {group.sampling.max_tokens} more, "
                    f"but the engine's context is {self._engine.settings.context_tokens}"
                )
        except UnusablePrompt as error:
            return _failed(request, str(error))
        finally:
            self.preparing.discard([request_id])
        wanted = SampleRequest(
            request_id=request_id,
            ids=prompt.ids_T().tolist(),
            max_tokens=group.sampling.max_tokens,
            temperature=0.0 if group.greedy else group.sampling.temperature,
            seed=work.seed_of(group, request.member, request.turn),
            stop_ids=self._chat.stop_ids,
            stop_strings=stop_strings,
            adapter=adapter,
            priority=-request.turn,
            task=group.task,
        )
        running = self._running.setdefault(group.task, set())
        running.add(wanted.request_id)
        SEQUENCES.inc()
        try:
            sampled = await self._engine.sample(wanted)
        except Reject as error:
            return _failed(request, str(error))
        finally:
            self.unanswered.add([request_id])
            SEQUENCES.dec()
            running.discard(wanted.request_id)
            if not running:
                self._running.pop(group.task, None)
        if sampled.finish == "aborted":
            return None
        PROMPT_TOKENS.inc(len(prompt))
        SAMPLED_TOKENS.inc(len(sampled.ids))
        return SampledTurn(
            member=request.member,
            turn=request.turn,
            transcript=prompt.with_sampled(sampled.ids, sampled.logprobs),
            reply=self._chat.text(sampled.ids),
            thoughts=self._chat.thoughts_after(wanted.ids, self._thoughts),
            finish=sampled.finish,
            state=request.state,
            env_ms=request.env_ms,
            away_ms=request.away_ms,
        )

    # ---------------------------------------------------------------------------------------------- tasks and versions

    async def follow_tasks(self, bus: Bus) -> None:
        """Until cancelled, abort requests and release adapters of tasks that end."""
        ended = asyncio.Queue[str]()
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._tasks.follow(bus, ended.put_nowait))
            while True:
                await self._end(await ended.get())

    async def _end(self, task: str) -> None:
        if self._tasks.has_ended(task):
            running = sorted(self._running.get(task, ()))
            if running:
                log.info("requests_aborted", task=task, sequences=len(running))
            await self._engine.abort(running)
        self._adapters.end(task)

    async def follow_versions(self, bus: Bus, pool: str, is_wanted: Callable[[str], bool] = every_task) -> None:
        """Load each new version of a live task before its first request, until cancelled. While parked, only fetch it.

        `is_wanted`: whether requests of a task are expected here; versions of tasks homed elsewhere are loaded at their first request.
        """
        async with asyncio.TaskGroup() as runners:
            async for delivery in bus.streams.follow(streams.WEIGHTS, streams.weight_updated(pool, "*"), last_only=True):
                runners.create_task(self._load_ahead(delivery, is_wanted))

    async def _load_ahead(self, delivery: Delivery, is_wanted: Callable[[str], bool]) -> None:
        try:
            update = delivery.read(WeightUpdated)
            if self._tasks.is_live(update.task) and is_wanted(update.task):
                await self._adapters.load_ahead(update.adapter)
        except (Reject, Retry) as error:  # the request that needs the version reports it
            log.warning("version_not_loaded", subject=delivery.subject, reason=str(error))


class Pending:
    """Ids of requests in one stage of processing, with a signal for when it is empty."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Iterable[str]) -> None:
        self._ids |= {*ids}
        if self._ids:
            self._none.clear()

    def discard(self, ids: Iterable[str]) -> None:
        self._ids -= {*ids}
        if not self._ids:
            self._none.set()

    async def none(self) -> None:
        """Wait until the stage is empty."""
        await self._none.wait()


class SlotReservation:
    """Slots of one message beyond the first, which the bus takes and releases."""

    def __init__(self, slots: Slots, units: int) -> None:
        self._slots = slots
        self._units = units
        slots.take(units)

    def release(self, units: int) -> None:
        given = min(units, self._units)
        self._units -= given
        self._slots.release(given)

    def release_all(self) -> None:
        self.release(self._units)


def _failed(request: TurnRequest, reason: str) -> SampledTurn:
    return SampledTurn(
        member=request.member,
        turn=request.turn,
        transcript=request.transcript,
        reply="",
        finish="stop",
        state=request.state,
        failure=reason,
        env_ms=request.env_ms,
        away_ms=request.away_ms,
    )


def _answers(group: GroupContext, turns: Sequence[SampledTurn]) -> Iterator[Outgoing]:
    """Yield one message, or several if the turns are very large. Each message id names the members that it carries."""
    for part in in_parts(turns, _turn_bytes):
        subject = streams.turn(group.family, group.task, group.trajectory(part[0].member))
        message_id = work.message_id(group, [(turn.member, turn.turn) for turn in part])
        yield Outgoing(subject, TurnsSampled(group=group, members=part), message_id)


def _turn_bytes(turn: SampledTurn) -> int:
    return len(turn.transcript) * 9 + len(turn.state) + len(turn.reply.encode()) + len((turn.failure or "").encode())
