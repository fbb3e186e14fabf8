"""Device memory that a trainer needs: the base model's, known before it is loaded, and a step's, estimated."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from common.errors import Fatal
from common.pools import Pool, precision_on, recomputed_layers
from common.pools.memory import (
    DEVICE_SHARE,
    ELEMENT_BYTES,
    GIB,
    MemoryEstimate,
    ModelShape,
    Precision,
    loaded_bytes,
    machine_bytes,
    total_within,
    train_memory,
)
from common.spec import Lora, TaskSpec
from trainer_svc.model.policy import Policy

log = structlog.get_logger()


@dataclass(frozen=True)
class MemoryNeeds:
    """Sizes of one base model on one device, and the pool's limit of a micro-batch. `shape`: None for an unknown architecture."""

    shape: ModelShape | None
    weights_bytes: int
    precision: Precision
    on_cpu: bool
    budget_tokens: int
    shares_prefixes: bool = True
    recomputed: int = 0

    @classmethod
    def of(cls, policy: Policy, budget_tokens: int) -> "MemoryNeeds":
        precision: Precision = "float32" if policy.dtype == torch.float32 else "bfloat16"
        on_cpu = policy.device.type == "cpu"
        return cls(policy.shape, policy.weights_bytes, precision, on_cpu, budget_tokens, policy.shares_prefixes, policy.recomputed)

    @classmethod
    def of_folder(cls, pool: Pool, *, on_cpu: bool, budget: int | None = None) -> "MemoryNeeds":
        """Estimate from the model's files, before it is loaded; 0 bytes without files. `budget`: bytes of a shared accelerator.

        Without a `budget` and with checkpointing `auto` it assumes no recomputation, which is decided by the free memory at load time.
        """
        folder, precision = Path(pool.model), precision_on(pool.precision, cpu=on_cpu)
        try:
            shape = ModelShape.of(json.loads((folder / "config.json").read_text()))
        except (OSError, ValueError):
            shape = None
        weights_bytes = shape.parameters * ELEMENT_BYTES[precision] if shape else loaded_bytes(folder, precision)
        limit = sys.maxsize if budget is None else total_within(budget, on_cpu=on_cpu)
        recomputed = recomputed_layers(pool, shape, limit, on_cpu=on_cpu) if shape else 0
        return cls(shape, weights_bytes, precision, on_cpu, pool.train_tokens, recomputed=recomputed)

    def step(self, rank: int, tokens: int) -> MemoryEstimate | None:
        """Estimate of a step with this many tokens; None for an unknown architecture."""
        if self.shape is None:
            return None
        return train_memory(
            self.shape,
            rank=rank,
            tokens=min(self.budget_tokens, tokens),
            precision=self.precision,
            shared=self.shares_prefixes,
            on_cpu=self.on_cpu,
            recomputed=self.recomputed,
        )

    def awake_bytes(self, ranks: Sequence[int]) -> int:
        """Bytes of the weights and the largest step; excludes the process's own memory, which no tier frees. `ranks`: of known adapters."""
        estimate = self.step(max(ranks, default=Lora().rank), self.budget_tokens)
        return self.weights_bytes + (estimate.adapter + estimate.activations + estimate.temporaries if estimate else 0)

    def states_bytes(self, budget: int, max_rank: int) -> int:
        """Bytes of a shared accelerator's budget left for tasks' states beside the largest step, which includes its own task's state.

        With more states the trainer could not wake again.
        """
        return max(0, budget - self.awake_bytes([max_rank]))

    def advice(self, spec: TaskSpec, tokens: int | None = None) -> str:
        """Estimated memory of a step with this many tokens, and the setting to lower."""
        advice = f"lower train_tokens of the pool, which is {self.budget_tokens}, or the task's lora.rank, which is {spec.lora.rank}"
        if not self.recomputed:
            advice += ", or set checkpointing of the pool to 'on'"
        estimate = self.step(spec.lora.rank, tokens or self.budget_tokens)
        return f"the estimate is {estimate}; {advice}" if estimate else advice


def recompute_as_needed(policy: Policy, pool: Pool, limit: int) -> None:
    """Set up the recomputation that the pool requires. `limit`: as from `limit_memory`."""
    on_cpu = policy.device.type == "cpu"
    if layers := recomputed_layers(pool, policy.shape, limit, on_cpu=on_cpu):
        policy.recompute_layers(layers)
        log.info("activations_recomputed", layers=policy.recomputed, available_gib=round(limit / GIB, 1))


def limit_memory(device: torch.device, pool: Pool, budget: int | None, share: float | None) -> int:
    """Bytes that this process may use, at most what is free. `budget`: bytes of a shared accelerator; None: the device is the pool's.

    On a GPU it bounds PyTorch's allocator by them, so that a step that is too large is out of memory: an engine that restarts there demands
    its whole share free. `share`: as in `own_bytes`, and raises as that.
    """
    if device.type == "cpu":
        return machine_bytes() if budget is None else total_within(budget, on_cpu=True)
    free, total = torch.cuda.mem_get_info(device)
    limit = own_bytes(device, pool, share) if budget is None else budget
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    return min(limit, free + torch.cuda.memory_reserved(device)) if budget is None else limit


def own_bytes(device: torch.device, pool: Pool, share: float | None) -> int:
    """Bytes of a GPU without turns that the trainer may use. `share`: of all memory; None: what the pool's engine leaves there.

    Raises: Fatal if it leaves none.
    """
    if share is None and pool.gpu_memory_share >= DEVICE_SHARE:
        raise Fatal(
            f"gpu_memory_share of the pool is {pool.gpu_memory_share}, which leaves a trainer on the same GPU no memory: lower it; "
            "or, if the trainer has a GPU of its own, set MARLAAS_TRAINER_GPU_MEMORY_SHARE"
        )
    return int(torch.cuda.mem_get_info(device)[1] * (DEVICE_SHARE - pool.gpu_memory_share if share is None else share))
