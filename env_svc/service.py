"""Handlers: check an environment, open a group, play turns. Each takes one message and yields messages.

Every outcome of a trajectory is a value in its score: a reward, or a failure that makes it void. Only a malformed message
raises. A group past its deadline is dropped, since the scheduler has voided it already. The calls of a task that has ended are
cancelled, so that their workers serve others.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing

import structlog
from prometheus_client import Counter

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.errors import Retry
from common.messages import CheckEnvironment, EnvironmentChecked, GroupContext, OpenGroup, SampledTurn, TurnsSampled
from common.spec import EnvironmentSection, Limits
from common.task_states import TaskStates
from env_svc import replies
from env_svc.allowed import ONLY_INSTALLED, AllowedNames
from env_svc.calls import Call, Continued, Failed, FinalTurn, OpenCall, Opened, Outcome, Scored, StepCall, failed
from env_svc.contract import Reply
from env_svc.datasets import ListedDatasets
from env_svc.execution.executor import OutcomeBatch
from env_svc.execution.tool_calls import NO_LIMITS, ToolCallExecutor
from env_svc.replies import EndedTurn

TRAJECTORIES_ENDED = Counter("marlaas_env_trajectories_total", "Trajectories that ended here", ["family", "outcome"])

CHECK_TIMEOUT_S = 120.0
CHECK_RETRY_S = 10.0
"""Seconds before a check is retried: longer than a failed build is cached (`common/caches.py`)."""

log = structlog.get_logger()


class EnvService:
    """Handlers over an executor. Each is safe to run twice for one message: environments are pure, ids derived."""

    def __init__(
        self,
        executor: ToolCallExecutor,
        tasks: TaskStates,
        now_s: Callable[[str], float],
        allowed: AllowedNames = ONLY_INSTALLED,
        datasets: ListedDatasets | None = None,
        on_task_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`now_s`: pool → present time of its clock, for deadlines. `allowed`, `datasets`: names that tasks may give; None: no data set.
        `on_task_end` is called with each task that has ended, at least once."""
        self._executor = executor
        self._tasks = tasks
        self._now_s = now_s
        self._lists = (allowed, datasets or ListedDatasets(""))
        self._on_task_end = on_task_end
        self._calls: dict[str, set[asyncio.Timeout]] = defaultdict(set)
        """Task → timeouts around its calls in flight. To end the calls, the timeouts are made to expire."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """CheckEnvironment → EnvironmentChecked: whether the environment, and those of evaluations, open their first prompts.

        Raises: Retry if a dependency of the environment is unavailable.
        """
        message = delivery.read(CheckEnvironment)
        objection, has_tools = None, False
        for place, environment in _environments(message):
            if objection is not None:
                break
            async with aclosing(self._play(message, environment, [OpenCall(0, message.seed)], CHECK_TIMEOUT_S)) as batches:
                outcomes = [outcome async for batch in batches for _, outcome in batch]
            if not outcomes:
                return
            failure = outcomes[0] if isinstance(outcomes[0], Failed) else None
            if failure is not None and failure.is_infrastructure and delivery.attempt < 2:
                raise Retry(failure.reason, delay_s=CHECK_RETRY_S)
            objection = None if failure is None else place + failure.reason
            has_tools |= isinstance(outcomes[0], Opened) and outcomes[0].has_tools
        answer = EnvironmentChecked(tenant=message.tenant, task=message.task, objection=objection, has_tools=has_tools)
        yield Outgoing(streams.checked(message.task), answer, f"checked:{message.task}")

    async def open(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """OpenGroup → SampleTurns for all members, or TrajectoriesScored, all void, when the prompt does not open."""
        group = delivery.read(OpenGroup).group
        if self._is_expired(group):
            return
        async with aclosing(self._play(group, group.environment, [_opening(group)], self._left_s(group))) as batches:
            outcomes = [outcome async for batch in batches for _, outcome in batch]
        opened = outcomes[0] if outcomes else None
        if isinstance(opened, Opened):
            for out in replies.first_turns(group, opened):
                yield out
        elif isinstance(opened, Failed):
            log.warning("group_failed", group=group.group)
            TRAJECTORIES_ENDED.labels(group.family, "failed").inc(group.size)
            for out in replies.unopened(group, opened):
                yield out

    async def turn(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """TurnsSampled → SampleTurns for members that continue, TrajectoriesScored for others. No member waits for another."""
        message, began = delivery.read(TurnsSampled), time.monotonic()
        group = message.group
        if self._is_expired(group) or self._tasks.has_ended(group.task):
            return
        unsampled = [EndedTurn(turn, Failed(turn.failure)) for turn in message.members if turn.failure is not None]
        for out in self._scores(group, unsampled):
            yield out
        turns = [turn for turn in message.members if turn.failure is None]
        if not turns:
            return
        left_s = self._left_s(group)
        calls = [_step(group, turn, left_s) for turn in turns]
        async with aclosing(self._play(group, group.environment, calls, left_s, group.limits)) as batches:
            async for batch in batches:
                played = [(turns[position], outcome) for position, outcome in batch]
                for out in self._follow(group, played, time.monotonic() - began):
                    yield out

    async def follow_tasks(self, bus: Bus) -> None:
        """End the calls of tasks that have ended, until cancelled."""
        await self._tasks.follow(bus, self._end_calls)

    def _end_calls(self, task: str) -> None:
        if self._tasks.has_ended(task):
            for calls in [calls for calls in self._calls.get(task, ()) if not calls.expired()]:
                calls.reschedule(asyncio.get_running_loop().time())
            self._on_task_end(task)

    async def _play(
        self,
        of: GroupContext | CheckEnvironment,
        environment: EnvironmentSection,
        calls: Sequence[Call],
        remaining_s: float,
        limits: Limits = NO_LIMITS,
    ) -> AsyncGenerator[OutcomeBatch, None]:
        """`ToolCallExecutor.run` if the task's names are allowed; ends early once the task has ended."""
        objections = [each.objection(of.tenant, environment, by_operator=of.by_operator) for each in self._lists]
        if objection := next(filter(None, objections), None):
            yield [(position, failed(objection)) for position in range(len(calls))]
            return
        task = of.task
        async with aclosing(self._executor.run(of.claimant, environment, calls, remaining_s, limits, of.package)) as batches:
            while not self._tasks.has_ended(task):
                # Around each wait and not around the loop: its expiry must not cancel the reader of this generator.
                in_flight = asyncio.timeout(None)
                self._calls[task].add(in_flight)
                try:
                    async with in_flight:
                        batch = await anext(batches, None)
                except TimeoutError:
                    if not in_flight.expired():
                        raise
                    break
                finally:
                    self._calls[task].discard(in_flight)
                    if not self._calls[task]:
                        del self._calls[task]
                if batch is None:
                    return
                yield batch
        log.info("calls_dropped", reason="the task has ended", calls=len(calls))

    def _follow(self, group: GroupContext, played: Sequence[tuple[SampledTurn, Outcome]], away_s: float) -> list[Outgoing]:
        ended = [EndedTurn(turn, outcome, away_s) for turn, outcome in played if isinstance(outcome, Scored | Failed)]
        asked = [(turn, outcome) for turn, outcome in played if isinstance(outcome, Continued)]
        return [*self._scores(group, ended), *replies.next_turns(group, asked, away_s)]

    def _scores(self, group: GroupContext, ended: Sequence[EndedTurn]) -> list[Outgoing]:
        for one in ended:
            if isinstance(one.outcome, Failed):
                log.warning(
                    "trajectory_failed", trajectory=group.trajectory(one.turn.member), turn=one.turn.turn, reason=one.outcome.reason
                )
            TRAJECTORIES_ENDED.labels(group.family, "failed" if isinstance(one.outcome, Failed) else "scored").inc()
        return list(replies.scores(group, ended))

    def _left_s(self, group: GroupContext) -> float:
        return group.deadline_s - self._now_s(group.pool)

    def _is_expired(self, group: GroupContext) -> bool:
        if self._left_s(group) > 0:
            return False
        log.info("group_expired", group=group.group, late_s=round(-self._left_s(group), 3))
        return True


def _environments(check: CheckEnvironment) -> Iterator[tuple[str, EnvironmentSection]]:
    """Environments to check, each with its path in the task, for objections."""
    yield "", check.environment
    if check.evaluation is not None:
        yield "evaluation.options: ", check.evaluation
    for name, options in check.protocols.items():
        yield f"evaluation.protocol '{name}', options: ", check.environment.with_options(options)


def _opening(group: GroupContext) -> OpenCall:
    return OpenCall(group.row, group.seed if group.task_seed is None else group.task_seed)


def _step(group: GroupContext, turn: SampledTurn, left_s: float) -> StepCall:
    reply = Reply(turn.reply, truncated=turn.finish == "length", thoughts=turn.thoughts)
    return StepCall(group.row, turn.state, reply, last=_last(group, turn, left_s))


def _last(group: GroupContext, turn: SampledTurn, left_s: float) -> FinalTurn | None:
    """The limit that makes this turn the last, if one does."""
    limits = group.limits
    if turn.turn + 1 >= limits.max_turns:
        return FinalTurn("turns", limits.at_limit)
    max_tokens = limits.max_episode_tokens
    if max_tokens is not None and len(turn.transcript) + limits.max_reply_tokens + group.sampling.max_tokens > max_tokens:
        return FinalTurn("tokens", limits.at_limit)
    played_s = limits.episode_timeout_s - left_s
    if limits.max_episode_s is not None and played_s > limits.max_episode_s:
        return FinalTurn("seconds", limits.at_limit)
    return None
