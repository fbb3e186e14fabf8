"""Settings of the engine, vLLM's arguments made of them, and the tolerance of its arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from common.errors import Fatal
from common.pools import MaxRank, Pool, precision_on
from common.spec import LORA_TARGETS

CPU_BLOCK_TOKENS = 16
"""vLLM's default on a CPU is 128: prompts shorter than that would never share a prefix. See `cpu.attention`."""
CPU_STEP_TOKENS = 4096
"""Maximum tokens of one engine step on a CPU, prompts whole."""
ROLLOUT_ADAPTERS = "marlaas_rollout_adapters"
"""Name in vLLM's additional configuration of the adapters that rollouts may have in a batch."""
URGENT_PRIORITY = -1_000_000
"""Priority, in vLLM lower first, from which on a request takes the place of rollouts where none is free."""
CHECK_PRIORITY = 2 * URGENT_PRIORITY
"""Priority of requests that run although all others are frozen."""
SLEEPING_WORKER = "rollout_svc.engine.cpu.worker.SleepingCpuWorker"
FOOTPRINT = "rollout_svc.engine.footprint.Footprint"
HELD_PER_SLOT = 4
"""Adapters that may be loaded for each that may take part in a batch: the versions of its task that are in use, and more."""

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class EngineSettings:
    model: str
    """Folder or Hugging Face name."""
    context_tokens: int
    sequences: int
    """Maximum sequences decoded concurrently, served ones included; more wait inside the engine."""
    adapters: int
    """Maximum adapters in one batch, served ones included."""
    adapters_held: int
    """Maximum adapters loaded; at least `adapters`."""
    max_rank: MaxRank
    kv_cache_gib: float
    """Size on a CPU; on a GPU `gpu_memory_share` decides."""
    gpu_memory_share: float
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    head: Literal["model", "float32"] = "model"
    """Precision of logits."""
    device: Device = "auto"
    invariant: bool | Literal["auto"] = "auto"
    """Whether log-probabilities must not depend on the batch; see `common.pools.Pool.invariant`."""
    cores: tuple[int, ...] = ()
    """Cores of the engine, with a thread for each; on a CPU it is pinned to them. Empty: one thread, on any core."""
    serving_sequences: int = 0
    """Sequences of `sequences` that are kept for serving; 0: there is none."""
    serving_adapters: int = 0
    """The same of `adapters`."""
    sleeps: bool = False
    """Whether the engine can free what it has on its device, and get it back."""
    locks: tuple[int, ...] = ()
    """Descriptors of the accelerator's locks, which the engine's process has as long as it lives."""
    named: str = ""
    """The model as the pools file has it; empty: as `model`."""

    @classmethod
    def of(cls, pool: Pool, *, device: Device = "auto", cores: tuple[int, ...] = (), sleeps: bool = False) -> "EngineSettings":
        sequences, adapters = (pool.serving.sequences, pool.serving.adapters) if pool.serving else (0, 0)
        return cls(
            model=pool.model,
            context_tokens=pool.context_tokens,
            sequences=pool.sequences + sequences,
            adapters=pool.adapters + adapters,
            adapters_held=(pool.adapters + adapters) * HELD_PER_SLOT,
            serving_sequences=sequences,
            serving_adapters=adapters,
            max_rank=pool.max_rank,
            kv_cache_gib=pool.kv_cache_gib,
            gpu_memory_share=pool.gpu_memory_share,
            precision=pool.precision,
            head=pool.head,
            device=device,
            invariant=pool.invariant,
            cores=cores,
            sleeps=sleeps,
        )

    def wants_invariance(self, *, cpu: bool) -> bool:
        """Whether the engine is set up for invariance: `auto` is for a CPU only, since vLLM's mode for GPUs costs throughput."""
        return cpu if self.invariant == "auto" else self.invariant


@dataclass(frozen=True)
class Tolerance:
    """Maximum differences between two computations of the same log-probabilities, token by token."""

    max: float
    mean: float

    def excess(self, got: Sequence[float], expected: ArrayLike) -> str | None:
        """How these differ, as the end of a sentence; None where they differ by no more than this."""
        differences = np.abs(np.asarray(got, dtype=np.float32) - np.asarray(expected, dtype=np.float32))
        largest, mean = float(differences.max()), float(differences.mean())
        if largest <= self.max and mean <= self.mean:  # never so when they are not numbers
            return None
        return f"differ by {largest:.3g} at most and {mean:.3g} on average, allowed is {self.max:.3g} and {self.mean:.3g}"


EXACT = Tolerance(max=1e-3, mean=1e-3)
"""Tolerance of float32 on a CPU."""
ROUGH = Tolerance(max=1.0, mean=0.1)
"""Tolerance of bfloat16, whose neighbours are 0.0625 apart between 8 and 16, where logits are: two right ways of computing attention
differ by 0.07 at a single token of the tiny model. The mean reveals a wrong file or base model."""


def engine_arguments(settings: EngineSettings, *, cpu: bool) -> Any:
    """vLLM's `AsyncEngineArgs`."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    additional: dict[str, Any] = {}
    if cpu:
        from rollout_svc.engine.cpu.platform import INVARIANT

        of_device: dict[str, Any] = {
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": int(settings.kv_cache_gib * 2**30),
            "distributed_executor_backend": "uni",
            "enforce_eager": True,
            # A prompt that is prefilled in parts makes vLLM rewind its seeded generator, which CPU generators cannot.
            "enable_chunked_prefill": False,
            # A prompt of full length fits beside a token of every other sequence: it is not prefilled in parts.
            "max_num_batched_tokens": max(CPU_STEP_TOKENS, settings.context_tokens + settings.sequences),
        }
        additional[INVARIANT] = settings.wants_invariance(cpu=True)
    else:
        of_device = {"gpu_memory_utilization": settings.gpu_memory_share}
    if settings.serving_sequences:
        of_device["scheduler_cls"] = "rollout_svc.engine.scheduler.ServingScheduler"
        additional[ROLLOUT_ADAPTERS] = settings.adapters - settings.serving_adapters
    if settings.sleeps:
        of_device |= _sleeping_arguments(settings, cpu=cpu)
    return AsyncEngineArgs(
        model=settings.model,
        dtype=precision_on(settings.precision, cpu=cpu),
        hf_overrides={"head_dtype": settings.head},  # also `model`: a base model's own configuration may name another
        max_model_len=settings.context_tokens,
        max_num_seqs=settings.sequences,
        skip_tokenizer_init=True,  # chat.py alone tokenizes
        generation_config="vllm",  # the task says how to sample, not the model's folder
        logprobs_mode="processed_logprobs",
        scheduling_policy="priority",
        enable_prefix_caching=True,
        enable_lora=True,
        max_loras=settings.adapters,
        max_cpu_loras=settings.adapters_held,
        max_lora_rank=settings.max_rank,
        # Otherwise the output layer is wrapped as well, which costs time and fails on prompt logprobs in mixed batches.
        lora_target_modules=list(LORA_TARGETS),
        disable_log_stats=True,
        additional_config=additional,
        **of_device,
    )


def _sleeping_arguments(settings: EngineSettings, *, cpu: bool) -> dict[str, Any]:
    scheduler = "SleepingServingScheduler" if settings.serving_sequences else "SleepingScheduler"
    chosen: dict[str, Any] = {"scheduler_cls": f"rollout_svc.engine.scheduler.{scheduler}", "worker_extension_cls": FOOTPRINT}
    if not cpu:
        return chosen | {"enable_sleep_mode": True}
    if (precision := precision_on(settings.precision, cpu=True)) != "float32":
        raise Fatal(
            f"a pool on a shared CPU must compute in float32, but precision = '{precision}': vLLM keeps copies of other weights in its "
            "kernels, which no sleep frees; set precision = 'float32', or give the pool cores of its own"
        )
    return chosen | {"worker_cls": SLEEPING_WORKER}


def require_head(settings: EngineSettings, found: str) -> None:
    """Raises: Fatal when the engine computes logits in another precision than the pool says: vLLM falls back to the model's."""
    if settings.head == "float32" and found != "float32":
        raise Fatal(
            f"the pool says head = 'float32', but this engine would compute logits in {found}; set head = 'model' in the pools file, "
            "for trainers as for engines"
        )
