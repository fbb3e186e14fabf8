"""The deployment's pools, replicas and environments, its shared accelerators, and operators' orders to pools."""

import secrets
from collections.abc import Sequence
from typing import Literal

from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task, Trace
from common.client_api.asking import result_of
from common.client_api.protocol import AnyDoor
from common.messages import (
    AskDeployment,
    AskExecutors,
    AskMoves,
    AskSlices,
    AskTrace,
    EnvironmentsAnswer,
    ExecutorOf,
    ExecutorsAnswer,
    MoveOf,
    MovePool,
    MovesAnswer,
    PoolOffer,
    PoolsAnswer,
    PoolVerb,
    ReplicasAnswer,
    ReplicasOf,
    SliceOf,
    SlicesAnswer,
    StepPhases,
    TraceAnswer,
    TracedTask,
    TroubleOf,
)
from common.messages.accelerators import MAX_SLICES


async def read_pools(door: AnyDoor) -> list[PoolOffer]:
    """Base models on offer, one per pool. Raises: as `Door.ask`, like every function here."""
    return (await door.ask("pools", AskDeployment(), PoolsAnswer)).pools


async def read_replicas(door: AnyDoor) -> list[ReplicasOf]:
    """Live replicas by service and pool, with their load; with their names for the operator."""
    return (await door.ask("replicas", AskDeployment(), ReplicasAnswer)).replicas


async def read_troubles(door: AnyDoor) -> list[TroubleOf]:
    """Service processes that do not work; for the operator, also processes that died within the last hour, with the reason."""
    return (await door.ask("replicas", AskDeployment(), ReplicasAnswer)).troubles


async def read_environments(door: AnyDoor) -> EnvironmentsAnswer:
    """Environments that a task may name, the first page of the tenant's own packages, and sandboxes for code written by policies."""
    return await door.ask("envs", AskDeployment(), EnvironmentsAnswer)


ANSWER_TIMEOUT_S = 60.0


class Accelerators:
    """Questions and orders about shared accelerators. A tenant sees executors, and slices that served its tasks; only operators see
    moves and traces, and send orders.

    All methods raise ClientError if a request is wrong or not permitted, NoAnswer if the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def executors(self, pool: str | None = None) -> list[ExecutorOf]:
        return (await self._door.ask("executors", AskExecutors(pool=pool), ExecutorsAnswer)).executors

    async def slices(self, since_s: float | None = None, *, accelerator: str | None = None, most: int | None = None) -> list[SliceOf]:
        """Slices, newest first. `since_s`: Unix time; None: from the beginning. `most`: maximum number; None: all."""
        found, before = list[SliceOf](), None
        while most is None or len(found) < most:
            size = MAX_SLICES if most is None else min(MAX_SLICES, most - len(found))
            asked = AskSlices(since_s=since_s, before=before, accelerator=accelerator, most=size)
            page = await self._door.ask("slices", asked, SlicesAnswer)
            found += page.slices
            before = page.before
            if before is None:
                break
        return found

    async def moves(self) -> list[MoveOf]:
        """Measured moves between tiers, by executor."""
        return (await self._door.ask("moves", AskMoves(), MovesAnswer)).moves

    async def order(
        self,
        pool: str,
        verb: PoolVerb,
        *,
        accelerator: str | None = None,
        service: Literal["rollout", "trainer"] | None = None,
        tier: Tier | None = None,
    ) -> list[str]:
        """Park, drain, wake or release the executors of a pool; returns their names, as `<accelerator>/<executor>`. `tier`: as in
        MovePool."""
        request = MovePool(request=secrets.token_hex(6), pool=pool, verb=verb, accelerator=accelerator, service=service, tier=tier)
        done = await result_of(self._door, "move-pool", None, request, request.request, ANSWER_TIMEOUT_S)
        moved = done.get("executors")
        return [str(one) for one in moved] if isinstance(moved, list) else []

    async def trace(self, since_s: float | None = None) -> Trace:
        """Trace with executors, durations of their moves, and steps of the tasks that have trained since `since_s` (Unix time)."""
        tasks, cursor = list[TracedTask](), None
        while True:
            page = await self._door.ask("trace", AskTrace(cursor=cursor, since_s=since_s), TraceAnswer)
            tasks += page.tasks
            cursor = page.cursor
            if cursor is None:
                break
        return trace_of(await self.executors(), await self.moves(), tasks)


def trace_of(executors: Sequence[ExecutorOf], moves: Sequence[MoveOf], tasks: Sequence[TracedTask]) -> Trace:
    """Trace made of the scheduler's answers. Of an executor on several accelerators, only the first counts. The measured times of a move
    are its median and 90th percentile."""
    tables: dict[str, Executor] = {}
    for one in executors:
        functions = (Function.GENERATE,) if one.service == "rollout" else (Function.TRAIN, Function.SCORE)
        own = [move for move in moves if (move.accelerator, move.executor) == (one.accelerator, one.executor)]
        durations: dict[tuple[Tier, Tier], tuple[float, ...]] = {(each.from_tier, each.to_tier): (each.p50_s, each.p90_s) for each in own}
        table = Executor(one.executor, one.pool, functions, one.device_bytes, one.host_bytes, moves=durations)
        tables.setdefault(one.executor, table)
    return Trace(
        tuple(table for _, table in sorted(tables.items())),
        tuple(
            Task(one.task, one.tenant, one.pool, one.at_s, tuple(_phases(step) for step in one.steps), one.weight)
            for one in sorted(tasks, key=lambda one: one.task)
        ),
    )


def _phases(step: StepPhases) -> tuple[Phase, ...]:
    """Phases of a step. Its turns at the sampler get equal durations: single turns are not stored.

    Scoring is placed before training, where most of it happens.
    """
    turn = ((Function.GENERATE, step.generate_s / step.turns), (ENVIRONMENT, step.environment_s / step.turns))
    phases = (*(turn * step.turns), (Function.SCORE, step.score_s), (Function.TRAIN, step.train_s))
    return tuple((what, seconds) for what, seconds in phases if seconds > 0)
