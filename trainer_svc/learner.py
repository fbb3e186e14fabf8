"""Learner: the only thread that computes with the base model, and its queue of steps, first in, first out.

With `shared_steps` above 1, queued steps run together, as many as fill a micro-batch. A full micro-batch runs alone; a step never waits for
others to batch with. It is always the same thread, because OpenMP keeps a pool of workers for each thread that uses it. Other threads write
and read blobs, so a step does not wait for the disk.
A parked learner computes nothing. Its thread finishes the step in progress, hands back the queued ones, and then moves the base model.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import torch
from torch import Tensor

from common.accelerators.executors import StateMismatch, Tier
from common.errors import Fatal, HandedBack, Reject
from common.formats.cores import Cores
from common.pools import Pool
from common.runtime.process import pin
from common.spec import TaskSpec
from trainer_svc.algorithm.batched_steps import run_steps
from trainer_svc.algorithm.step import StepResult, scored_passes, step, train_step
from trainer_svc.batch import Group
from trainer_svc.device.errors import classify_device_error, classify_move_error, device_errors
from trainer_svc.device.memory import return_freed_memory
from trainer_svc.device.meter import Planned, ServiceMeter
from trainer_svc.model.adapter import WEIGHTS_FILE, initial_adapter, read_adapter, write_adapter
from trainer_svc.model.memory import MemoryNeeds, limit_memory, recompute_as_needed
from trainer_svc.model.packing import unpadded_tokens
from trainer_svc.model.policy import Policy, choose_device, prepare_torch, require_canary
from trainer_svc.state.checkpoint import Origin, read_checkpoint, write_checkpoint
from trainer_svc.state.optimizer import OptimizerState
from trainer_svc.state.resident import Resident

log = structlog.get_logger()

T = TypeVar("T")
PARKED = "the trainer is parked"


@dataclass(frozen=True, eq=False)
class Trained:
    step: StepResult
    waited_s: float
    """Seconds in the queue."""


class Learner:
    """The base model and the thread that may use it.

    Methods that compute raise Fatal if the device broke, Retry if it is out of memory, and HandedBack while the learner is parked.
    """

    def __init__(
        self,
        policy: Policy | None,
        thread: ThreadPoolExecutor,
        *,
        budget_tokens: int,
        shared_steps: int = 1,
        load: Callable[[], Policy] | None = None,
        needs: MemoryNeeds | None = None,
    ) -> None:
        """`policy`: None to start in tier `none`, which needs `load`, which loads the base model, and its estimated `needs`."""
        self._policy = policy
        self._thread = thread
        self._budget_tokens = budget_tokens
        self._shared_steps = shared_steps
        self._load = load
        self._needs = needs
        self._canary_N: Tensor | None = None
        self._is_parked = policy is None
        if policy is not None:
            self._keep(policy)
        self._queue: deque[_QueuedStep] = deque()
        self.waiting = 0
        """Jobs queued or running."""
        self.meter = ServiceMeter()

    @classmethod
    async def start(
        cls,
        pool: Pool,
        *,
        device: str,
        threads: int,
        shared_steps: int = 1,
        budget: int | None = None,
        share: float | None = None,
        named: str = "",
        cores: Cores = (),
    ) -> "Learner":
        """Load the pool's base model, or with a `budget`, the bytes of a shared accelerator, defer loading to the first `wake`.

        `share`: as in `own_bytes`. `named`: as in the pools file. `cores`: of the thread and of OpenMP's workers; empty: the process's.
        Raises: Fatal if the model or the device cannot be used.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner", initializer=pin, initargs=(cores,))

        def load() -> Policy:
            chosen = choose_device(device)
            prepare_torch(threads, chosen)
            limit = limit_memory(chosen, pool, budget, share)
            policy = Policy.load(pool.model, chosen, pool.precision, pool.head, named)
            recompute_as_needed(policy, pool, limit)
            return policy

        needs = MemoryNeeds.of_folder(pool, on_cpu=choose_device(device).type == "cpu", budget=budget)
        policy = None if budget is not None else await asyncio.get_running_loop().run_in_executor(thread, load)
        return cls(policy, thread, budget_tokens=pool.train_tokens, shared_steps=shared_steps, load=load, needs=needs)

    @property
    def policy(self) -> Policy:
        """The loaded base model. Raises: HandedBack if none is loaded."""
        if self._policy is None:
            raise HandedBack(PARKED)
        return self._policy

    @property
    def vocabulary(self) -> int:
        return self.policy.vocabulary

    @property
    def tier(self) -> Tier:
        """Tier of the base model."""
        return Tier.NONE if self._policy is None else self._policy.tier

    @property
    def needs(self) -> MemoryNeeds:
        """Memory needs; estimated until the base model is first loaded."""
        assert self._needs is not None
        return self._needs

    async def pause(self) -> None:
        """Start no further step; returns once the step in progress has ended. Queued steps raise HandedBack."""
        self._is_parked = True
        await self.in_thread(lambda: None)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in the learner's thread, between steps; its memory is free before the next step."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def park(self, tier: Tier) -> None:
        """`pause`, then move the base model to `tier`, unless it is already in a deeper one.

        Raises: ValueError for a tier from which it cannot wake.
        """
        await self.pause()
        await self.in_thread(partial(self._move_to, tier))

    async def wake(self) -> None:
        """Bring the base model to the device, compare its canary with the first load's, and resume computing.

        Raises: NoMemory, StateMismatch or Fatal; the learner then stays parked.
        """
        await self.in_thread(self._bring_back)
        self._is_parked = False

    def _move_to(self, tier: Tier) -> None:
        if tier not in (Tier.NONE, Tier.OFF):
            if self._policy is not None:
                self._policy.park(tier)
            return
        if self._load is None:
            raise ValueError(f"a learner that was given its base model cannot wake from tier '{tier}'")
        self._policy = None
        return_freed_memory(collect=True)

    def _bring_back(self) -> None:
        if self._policy is not None:
            self._policy.wake()
            return
        assert self._load is not None
        failed: Exception | None = None
        try:
            self._keep(self._load())
        except Fatal as error:  # about the model's folder, which may be restored
            failed = StateMismatch(str(error))
        except Exception as error:
            failed = classify_move_error(error, "the base model")
        if failed is not None:
            return_freed_memory(collect=True)
            raise failed

    def _keep(self, policy: Policy) -> None:
        """Compute with `policy` from now on. Raises: StateMismatch if an earlier one had a different canary."""
        if self._canary_N is not None:
            require_canary(policy.canary_N, self._canary_N, policy.device, policy.dtype)
        self._canary_N = policy.canary_N
        self._needs = MemoryNeeds.of(policy, self._budget_tokens)
        self._policy = policy

    async def begin(self, task: str, spec: TaskSpec, start: Path | None = None) -> Resident:
        """Version 0 of a task, from the spec's seed or from the adapter in folder `start`.

        Raises: Reject if the base model has none of the targets, or the adapter has another shape.
        """
        self._require_awake()
        return await self._run(task, lambda: initial_resident(self.policy, task, spec, start), self.needs.advice(spec))

    async def restore(self, folder: Path, task: str, version: int, spec: TaskSpec) -> Resident:
        """State from a checkpoint folder. Raises: Reject if it is not the expected one, or was made for another base model."""
        self._require_awake()
        with device_errors(self.needs.advice(spec)):
            resident = await asyncio.to_thread(read_checkpoint, folder, task, version, spec, self.policy.device)
        for module in resident.layout.modules:
            layer = self.policy.layers.get(module.name)
            if layer is None or (layer.in_features, layer.out_features) != (module.inputs, module.outputs):
                raise Reject(f"checkpoint of task {task} changes {module.name}, which the pool's base model does not have in that shape")
        return resident

    async def train(self, resident: Resident, groups: Sequence[Group], spec: TaskSpec) -> Trained:
        """Queue one step and await its result. Raises: Reject as `step.step`."""
        self._require_awake()
        need = self.needs.advice(spec, unpadded_tokens(groups))
        queued = _QueuedStep(resident, groups, spec, need, time.monotonic(), asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self.waiting += 1
        self._thread.submit(self._run_next)
        try:
            return await queued.future
        finally:
            self.waiting -= 1

    def _require_awake(self) -> None:
        if self._is_parked:
            raise HandedBack(PARKED)

    def _run_next(self) -> None:
        """Run the queue's first step and those that fit beside it. Called in the thread once per queued step."""
        queued = self._dequeue()
        if self._is_parked:
            for one in queued:
                one.resolve(HandedBack(PARKED))
        elif queued:
            tokens = {one.resident.task: unpadded_tokens(one.groups) for one in queued}
            with self.meter.computing(tokens, sum((one.planned for one in queued), Planned()), pieces=len(queued)):
                self._run_together(queued)

    def _run_together(self, queued: "Sequence[_QueuedStep]") -> None:
        started_s = time.monotonic()
        steps = [step(self.policy, one.resident, one.groups, one.spec, budget_tokens=self._budget_tokens) for one in queued]
        open_ = set(range(len(queued)))
        failed: Exception | None = None
        try:
            for index, result in run_steps(self.policy, steps, budget_tokens=self._budget_tokens, scoring=self.meter.scoring):
                open_.discard(index)
                queued[index].resolve(result if isinstance(result, Exception) else Trained(result, started_s - queued[index].queued_s))
        except Exception as error:  # no single step's fault, and no state has changed: retry each alone
            failed = error
            if len(queued) > 1:
                log.warning("shared_step_failed", tasks=len(open_), error=f"{type(error).__name__}: {error}")
        if failed is None:
            return
        for index in open_:  # outside the handler, where the failed computation's memory is free
            retries = len(queued) > 1 and not isinstance(classify_device_error(failed), Fatal)
            queued[index].resolve(self._run_alone(queued[index], started_s) if retries else failed)

    def _run_alone(self, queued: "_QueuedStep", started_s: float) -> "Trained | Exception":
        try:
            work = (self.policy, queued.resident, queued.groups, queued.spec)
            found = train_step(*work, budget_tokens=self._budget_tokens, scoring=self.meter.scoring)
            return Trained(found, started_s - queued.queued_s)
        except Exception as error:
            return error

    def _dequeue(self) -> "list[_QueuedStep]":
        found: list[_QueuedStep] = []
        tokens = 0
        while self._queue and len(found) < self._shared_steps:
            tokens += unpadded_tokens(self._queue[0].groups)
            if found and tokens > self._budget_tokens:
                break
            queued = self._queue.popleft()
            if not queued.future.cancelled():
                found.append(queued)
        return found

    async def write(self, resident: Resident, spec: TaskSpec, adapter: Path, checkpoint: tuple[Origin, Path] | None) -> None:
        """Write the resident's adapter folder, for engines, and, with `checkpoint`, its checkpoint folder, for training."""

        dtype, base = self.policy.dtype, self.policy.hub_model

        def work() -> None:
            write_adapter(adapter, resident.layout, resident.optimizer.params, dtype, base)
            if checkpoint is not None:
                origin, folder = checkpoint
                write_checkpoint(folder, resident, spec, origin, adapter / WEIGHTS_FILE)

        with device_errors(self.needs.advice(spec)):
            await asyncio.to_thread(work)

    async def _run(self, task: str, work: Callable[[], T], need: str) -> T:
        def measured() -> T:
            with self.meter.computing({task: 1}):
                return work()

        self.waiting += 1
        try:
            with device_errors(need):
                return await self.in_thread(measured)
        finally:
            self.waiting -= 1


@dataclass(frozen=True, eq=False)
class _QueuedStep:
    """A step in the queue, and the future of its result."""

    resident: Resident
    groups: Sequence[Group]
    spec: TaskSpec
    need: str
    """Estimated memory and the setting to lower, for out-of-memory errors."""
    queued_s: float
    future: "asyncio.Future[Trained]"

    @property
    def planned(self) -> Planned:
        tokens, algorithm = unpadded_tokens(self.groups), self.spec.algorithm
        return Planned(tokens * algorithm.passes, tokens * scored_passes(algorithm))

    def resolve(self, result: "Trained | Exception") -> None:
        """Set the future's result from the learner's thread."""

        def settle() -> None:
            if self.future.done():  # the handler was cancelled
                return
            if isinstance(result, Exception):
                self.future.set_exception(classify_device_error(result, self.need))
            else:
                self.future.set_result(result)

        self.future.get_loop().call_soon_threadsafe(settle)


def initial_resident(policy: Policy, task: str, spec: TaskSpec, start: Path | None = None) -> Resident:
    """Version 0 of a task on this policy's device; `start`: folder of an adapter to start from instead of a fresh one."""
    layout, params = initial_adapter(spec.lora, spec.seed, policy.layers)
    if start is not None:
        params = read_adapter(start, layout)
    return Resident(task, layout, OptimizerState.fresh(params.to(policy.device, torch.float32)), version=0)
