"""The thread that computes: one step at a time, in order of arrival, away from the event loop.

A thread of its own, and always the same one: OpenMP keeps a pool of workers for each thread that uses it. Blobs are written
and read in other threads, so a step does not wait for the disk.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from common.errors import Reject
from common.messages import Canary
from common.spec import TaskSpec
from trainer_svc.adapter import WEIGHTS_FILE, initial_adapter, write_adapter
from trainer_svc.batch import Group
from trainer_svc.checkpoint import Origin, read_checkpoint, write_checkpoint
from trainer_svc.optimizer import OptimizerState
from trainer_svc.policy import Policy, choose_device, prepare_torch
from trainer_svc.resident import Resident
from trainer_svc.step import StepResult, train_step

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Trained:
    step: StepResult
    canary: Canary
    """Computed under the new adapter."""
    waited_s: float
    """For steps that arrived earlier."""


class Learner:
    """The base model and the thread that may use it."""

    def __init__(self, policy: Policy, thread: ThreadPoolExecutor, *, budget_tokens: int) -> None:
        self._policy = policy
        self._thread = thread
        self._budget_tokens = budget_tokens
        self.waiting = 0
        """Pieces of work that are queued or running."""

    @classmethod
    async def start(cls, model: str, *, device: str, threads: int, budget_tokens: int) -> "Learner":
        """Load the base model. Raises: Fatal when it or the device cannot be used."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

        def load() -> Policy:
            chosen = choose_device(device)
            prepare_torch(threads, chosen)
            return Policy.load(model, chosen)

        return cls(await asyncio.get_running_loop().run_in_executor(thread, load), thread, budget_tokens=budget_tokens)

    @property
    def vocabulary(self) -> int:
        return self._policy.vocabulary

    async def begin(self, task: str, spec: TaskSpec) -> Resident:
        """Version 0, made from the spec's seed. Raises: Reject when the base model has none of the targets."""
        return await self._run(lambda: initial_resident(self._policy, task, spec))

    async def restore(self, folder: Path, task: str, version: int, spec: TaskSpec) -> Resident:
        """The state in a checkpoint. Raises: Reject when it is not the one expected, or made for another base model."""
        resident = await asyncio.to_thread(read_checkpoint, folder, task, version, spec, self._policy.device)
        for module in resident.layout.modules:
            layer = self._policy.layers.get(module.name)
            if layer is None or (layer.in_features, layer.out_features) != (module.inputs, module.outputs):
                raise Reject(f"checkpoint of task {task} changes {module.name}, which the pool's base model does not have in that shape")
        return resident

    async def train(self, resident: Resident, groups: Sequence[Group], spec: TaskSpec) -> Trained:
        """One step, and the new adapter's canary. Raises: Reject when numbers are not finite."""
        asked_s = time.monotonic()

        def work() -> Trained:
            waited_s = time.monotonic() - asked_s
            step = train_step(self._policy, resident, groups, spec, budget_tokens=self._budget_tokens)
            ids, logprobs = self._policy.canary(step.resident.layout, step.resident.optimizer.params)
            return Trained(step, Canary(ids=ids, logprobs=logprobs), waited_s)

        return await self._run(work)

    async def write(self, resident: Resident, spec: TaskSpec, origin: Origin, adapter: Path, checkpoint: Path) -> None:
        """The resident's two folders: what engines load, and what training goes on from."""

        def work() -> None:
            write_adapter(adapter, resident.layout, resident.optimizer.params, self._policy.dtype)
            write_checkpoint(checkpoint, resident, spec, origin, adapter / WEIGHTS_FILE)

        await asyncio.to_thread(work)

    async def _run(self, work: Callable[[], T]) -> T:
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.waiting -= 1


def initial_resident(policy: Policy, task: str, spec: TaskSpec) -> Resident:
    """Version 0 of a task on this policy's device."""
    layout, params = initial_adapter(spec.lora, spec.seed, policy.layers)
    return Resident(task, layout, OptimizerState.fresh(params.to(policy.device, torch.float32)), version=0)
