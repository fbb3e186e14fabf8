"""Learner: the one thread that computes with the base model, and its queue of steps, first in, first out.

With `shared_steps` above 1, queued steps run together, as many as fill a micro-batch. A full micro-batch runs alone; a step
never waits for others to batch with.

It is always the same thread, because OpenMP keeps a pool of workers for each thread that uses it. Blobs are written and
read in other threads, so a step does not wait for the disk.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog
import torch

from common.errors import Fatal, Reject
from common.pools import Pool, recomputed_layers
from common.pools.memory import GIB, train_memory
from common.spec import TaskSpec
from trainer_svc.algorithm.batched_steps import run_steps
from trainer_svc.algorithm.step import StepResult, step, train_step
from trainer_svc.batch import Group
from trainer_svc.device_errors import classify_device_error, device_errors
from trainer_svc.model.adapter import WEIGHTS_FILE, initial_adapter, read_adapter, write_adapter
from trainer_svc.model.packing import unpadded_tokens
from trainer_svc.model.policy import Policy, available_bytes, choose_device, prepare_torch
from trainer_svc.state.checkpoint import Origin, read_checkpoint, write_checkpoint
from trainer_svc.state.optimizer import OptimizerState
from trainer_svc.state.resident import Resident

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Trained:
    step: StepResult
    waited_s: float
    """Time in the queue."""


class Learner:
    """The base model and the thread that may use it.

    Methods that compute raise Fatal when the device broke, and Retry when memory is used up.
    """

    def __init__(self, policy: Policy, thread: ThreadPoolExecutor, *, budget_tokens: int, shared_steps: int = 1) -> None:
        self._policy = policy
        self._thread = thread
        self._budget_tokens = budget_tokens
        self._shared_steps = shared_steps
        self._queue: deque[_QueuedStep] = deque()
        self.waiting = 0
        """Jobs that are queued or running."""

    @classmethod
    async def start(cls, pool: Pool, *, device: str, threads: int, shared_steps: int = 1) -> "Learner":
        """Load the pool's base model. Raises: Fatal when it or the device cannot be used."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

        def load() -> Policy:
            chosen = choose_device(device)
            prepare_torch(threads, chosen)
            policy = Policy.load(pool.model, chosen, pool.precision, pool.head)
            limit = available_bytes(chosen, pool.gpu_memory_share)
            if layers := recomputed_layers(pool, policy.shape, limit, on_cpu=chosen.type == "cpu"):
                policy.recompute_layers(layers)
                log.info("activations_recomputed", layers=policy.recomputed, available_gib=round(limit / GIB, 1))
            return policy

        policy = await asyncio.get_running_loop().run_in_executor(thread, load)
        return cls(policy, thread, budget_tokens=pool.train_tokens, shared_steps=shared_steps)

    @property
    def vocabulary(self) -> int:
        return self._policy.vocabulary

    async def begin(self, task: str, spec: TaskSpec, start: Path | None = None) -> Resident:
        """Version 0, from the spec's seed or from the adapter in folder `start`.

        Raises: Reject when the base model has none of the targets, or the adapter has another shape.
        """
        return await self._run(lambda: initial_resident(self._policy, task, spec, start), self._need(spec))

    async def restore(self, folder: Path, task: str, version: int, spec: TaskSpec) -> Resident:
        """State in a checkpoint. Raises: Reject when it is not the expected one, or was made for another base model."""
        with device_errors(self._need(spec)):
            resident = await asyncio.to_thread(read_checkpoint, folder, task, version, spec, self._policy.device)
        for module in resident.layout.modules:
            layer = self._policy.layers.get(module.name)
            if layer is None or (layer.in_features, layer.out_features) != (module.inputs, module.outputs):
                raise Reject(f"checkpoint of task {task} changes {module.name}, which the pool's base model does not have in that shape")
        return resident

    async def train(self, resident: Resident, groups: Sequence[Group], spec: TaskSpec) -> Trained:
        """Queue one step and await its result. Raises: Reject as `step.step`."""
        need = self._need(spec, unpadded_tokens(groups))
        queued = _QueuedStep(resident, groups, spec, need, time.monotonic(), asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self.waiting += 1
        self._thread.submit(self._run_next)
        try:
            return await queued.future
        finally:
            self.waiting -= 1

    def _run_next(self) -> None:
        """Run the queue's first step and those that fit beside it. The thread calls this once for each queued step."""
        queued = self._dequeue()
        if not queued:
            return
        started_s = time.monotonic()
        steps = [step(self._policy, one.resident, one.groups, one.spec, budget_tokens=self._budget_tokens) for one in queued]
        open_ = set(range(len(queued)))
        failed: Exception | None = None
        try:
            for index, result in run_steps(self._policy, steps, budget_tokens=self._budget_tokens):
                open_.discard(index)
                queued[index].resolve(result if isinstance(result, Exception) else Trained(result, started_s - queued[index].queued_s))
        except Exception as error:  # no single step's fault, and no state has changed: retry each alone
            failed = error
            if len(queued) > 1:
                log.warning("shared_step_failed", tasks=len(open_), error=f"{type(error).__name__}: {error}")
        if failed is None:
            return
        for index in open_:  # outside the handler, the memory of the failed computation is free
            retries = len(queued) > 1 and not isinstance(classify_device_error(failed), Fatal)
            queued[index].resolve(self._run_alone(queued[index], started_s) if retries else failed)

    def _run_alone(self, queued: "_QueuedStep", started_s: float) -> "Trained | Exception":
        try:
            found = train_step(self._policy, queued.resident, queued.groups, queued.spec, budget_tokens=self._budget_tokens)
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
        """Write the resident's adapter folder, for engines, and, with an origin, its checkpoint folder, for training."""

        def work() -> None:
            write_adapter(adapter, resident.layout, resident.optimizer.params, self._policy.dtype)
            if checkpoint is not None:
                origin, folder = checkpoint
                write_checkpoint(folder, resident, spec, origin, adapter / WEIGHTS_FILE)

        with device_errors(self._need(spec)):
            await asyncio.to_thread(work)

    def _need(self, spec: TaskSpec, tokens: int | None = None) -> str:
        """Estimated memory of a step of so many tokens, and the setting to lower; no estimate for an unknown architecture."""
        advice = f"lower train_tokens of the pool, which is {self._budget_tokens}, or the task's lora.rank, which is {spec.lora.rank}"
        if not self._policy.recomputed:
            advice += ", or set checkpointing of the pool to 'on'"
        if self._policy.shape is None:
            return advice
        estimate = train_memory(
            self._policy.shape,
            rank=spec.lora.rank,
            tokens=min(self._budget_tokens, tokens or self._budget_tokens),
            precision="float32" if self._policy.dtype == torch.float32 else "bfloat16",
            shared=self._policy.shares_prefixes,
            on_cpu=self._policy.device.type == "cpu",
            recomputed=self._policy.recomputed,
        )
        return f"the estimate is {estimate}; {advice}"

    async def _run(self, work: Callable[[], T], need: str) -> T:
        self.waiting += 1
        try:
            with device_errors(need):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.waiting -= 1


@dataclass(frozen=True, eq=False)
class _QueuedStep:
    """A step in the queue, and the future of its result."""

    resident: Resident
    groups: Sequence[Group]
    spec: TaskSpec
    need: str
    """Estimated memory and the setting to lower, for the error when memory is used up."""
    queued_s: float
    future: "asyncio.Future[Trained]"

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
    """Version 0 of a task on this policy's device; `start`: folder of the adapter to begin with instead of a fresh one."""
    layout, params = initial_adapter(spec.lora, spec.seed, policy.layers)
    if start is not None:
        params = read_adapter(start, layout)
    return Resident(task, layout, OptimizerState.fresh(params.to(policy.device, torch.float32)), version=0)
