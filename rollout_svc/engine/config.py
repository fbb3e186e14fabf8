"""Engine settings, the vLLM arguments derived from them, and numeric tolerances."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from common.errors import Fatal
from common.pools import Goals, MaxRank, Pool, precision_on
from common.spec import LORA_TARGETS

CPU_BLOCK_TOKENS = 16
"""vLLM's default on a CPU is 128, so prompts shorter than that would never share a prefix. See `cpu.attention`."""
CPU_STEP_TOKENS = 4096
"""Maximum tokens of one engine step on a CPU, where prompts are prefilled whole."""
GPU_STEP_TOKENS = 8192
"""Maximum tokens of one engine step on a GPU: the default of vLLM's own server there. An engine built as here would have 2048."""
ROLLOUT_ADAPTERS = "marlaas_rollout_adapters"
"""Key in vLLM's `additional_config`: maximum adapters that rollouts may have in one batch."""
GOALS = "marlaas_goals"
"""Key in vLLM's `additional_config`: what its scheduler needs to know of latency goals; and in `extra_args` of requests that have them."""
URGENT_PRIORITY = -1_000_000
"""vLLM priority (lower runs first) from which a request may preempt rollouts."""
CHECK_PRIORITY = 2 * URGENT_PRIORITY
"""Priority of checks, which run while all other requests are frozen."""
GOAL_CHUNK_TOKENS = 512
"""Maximum tokens of a prompt in one step on a GPU, if there are latency goals: a longer step would be a gap in all streams."""
SLEEPING_WORKER = "rollout_svc.engine.cpu.worker.SleepingCpuWorker"
EXTENSION = "rollout_svc.engine.footprint.Extension"
HELD_PER_SLOT = 4
"""Loaded adapters per batch slot: enough for the versions of a task that are in use."""

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
    """KV cache size on a CPU; on a GPU `gpu_memory_share` decides."""
    gpu_memory_share: float
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    head: Literal["model", "float32"] = "model"
    """Precision of logits."""
    device: Device = "auto"
    invariant: bool | Literal["auto"] = "auto"
    """Whether log-probabilities must not depend on the batch; see `common.pools.Pool.invariant`."""
    cores: tuple[int, ...] = ()
    """CPU cores for the engine, one thread each; a CPU engine is pinned to them. Empty: one thread, not pinned."""
    serving_sequences: int = 0
    """Number of `sequences` reserved for serving; 0: the pool does not serve."""
    serving_adapters: int = 0
    """Number of `adapters` reserved for serving."""
    goals: Goals | None = None
    """Latency goals of served requests."""
    training_share: float = 0.0
    """Minimum fraction of rollouts' steps that they get beside requests with goals."""
    figures: Path = Path()
    """File for counts of the engine's process (`coserving/figures.py`), which it creates if there are goals."""
    sleeps: bool = False
    """Whether the engine can release its device memory and take it back."""
    locks: tuple[int, ...] = ()
    """File descriptors of the accelerator's locks; the engine's process holds them as long as it lives."""
    named: str = ""
    """Model name as written in the pools file; empty: same as `model`."""

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
            goals=pool.serving.goals if pool.serving else None,
            training_share=pool.serving.training_share if pool.serving else 0.0,
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
        """Whether to set the engine up for invariance. `auto` means CPU only, since vLLM's mode for GPUs costs throughput."""
        return cpu if self.invariant == "auto" else self.invariant


@dataclass(frozen=True)
class Tolerance:
    """Maximum differences between two computations of the same log-probabilities, token by token."""

    max: float
    mean: float

    def excess(self, got: Sequence[float], expected: ArrayLike) -> str | None:
        """Description of the difference, as the end of a sentence; None if it is within tolerance."""
        differences = np.abs(np.asarray(got, dtype=np.float32) - np.asarray(expected, dtype=np.float32))
        largest, mean = float(differences.max()), float(differences.mean())
        if largest <= self.max and mean <= self.mean:  # false for NaN
            return None
        return f"differ by {largest:.3g} at most and {mean:.3g} on average, allowed is {self.max:.3g} and {self.mean:.3g}"


EXACT = Tolerance(max=1e-3, mean=1e-3)
"""Tolerance of float32 on a CPU."""
ROUGH = Tolerance(max=1.0, mean=0.1)
"""Tolerance of bfloat16. Its values are 0.0625 apart between 8 and 16, the range of logits: two correct attention kernels
differ by 0.07 at a single token of the tiny model. The mean reveals a wrong file or base model.
"""


def engine_arguments(settings: EngineSettings, *, cpu: bool) -> Any:
    """Build vLLM's `AsyncEngineArgs`."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    additional: dict[str, Any] = {}
    if cpu:
        from rollout_svc.engine.cpu.platform import INVARIANT

        of_device: dict[str, Any] = {
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": int(settings.kv_cache_gib * 2**30),
            "distributed_executor_backend": "uni",
            "enforce_eager": True,
            # vLLM rewinds its seeded generator for a prompt prefilled in chunks, which CPU generators cannot.
            "enable_chunked_prefill": False,
            # A full-length prompt fits beside one token of every other sequence, so it is never chunked.
            "max_num_batched_tokens": max(CPU_STEP_TOKENS, settings.context_tokens + settings.sequences),
        }
        additional[INVARIANT] = settings.wants_invariance(cpu=True)
    else:
        of_device = {
            "gpu_memory_utilization": settings.gpu_memory_share,
            "max_num_batched_tokens": max(GPU_STEP_TOKENS, settings.sequences),
        }
    if settings.serving_sequences:
        additional[ROLLOUT_ADAPTERS] = settings.adapters - settings.serving_adapters
    if settings.goals is not None:
        rollouts = settings.sequences - settings.serving_sequences
        additional[GOALS] = {"rollouts": rollouts, "training_share": settings.training_share, "figures": str(settings.figures)}
        if not cpu:
            of_device["long_prefill_token_threshold"] = GOAL_CHUNK_TOKENS
    if scheduler := _scheduler(settings):
        of_device["scheduler_cls"] = f"rollout_svc.coserving.{scheduler}"
    if settings.sleeps:
        of_device |= _sleeping_arguments(settings, cpu=cpu)
    return AsyncEngineArgs(
        model=settings.model,
        dtype=precision_on(settings.precision, cpu=cpu),
        hf_overrides={"head_dtype": settings.head},  # also for `model`: the base model's own configuration may name another precision
        max_model_len=settings.context_tokens,
        max_num_seqs=settings.sequences,
        skip_tokenizer_init=True,  # chat.py alone tokenizes
        generation_config="vllm",  # sampling parameters come from the task, not from the model's folder
        logprobs_mode="processed_logprobs",
        scheduling_policy="priority",
        enable_prefix_caching=True,
        enable_lora=True,
        max_loras=settings.adapters,
        max_cpu_loras=settings.adapters_held,
        max_lora_rank=settings.max_rank,
        # By default the output layer gets LoRA too, which costs time and fails on prompt logprobs in mixed batches.
        lora_target_modules=list(LORA_TARGETS),
        disable_log_stats=True,
        worker_extension_cls=EXTENSION,
        additional_config=additional,
        **of_device,
    )


def _sleeping_arguments(settings: EngineSettings, *, cpu: bool) -> dict[str, Any]:
    if not cpu:
        return {"enable_sleep_mode": True, "sleep_mode_offload_cudagraph": True}
    if (precision := precision_on(settings.precision, cpu=True)) != "float32":
        raise Fatal(
            f"a pool on a shared CPU must compute in float32, but precision = '{precision}': vLLM keeps copies of other weights in its "
            "kernels, which no sleep frees; set precision = 'float32', or give the pool cores of its own"
        )
    return {"worker_cls": SLEEPING_WORKER}


def _scheduler(settings: EngineSettings) -> str:
    """Module and class of the scheduler in `coserving/`; empty: vLLM's own."""
    kind = "Coserving" if settings.goals is not None else "Serving" if settings.serving_sequences else ""
    if settings.sleeps:
        return f"checks.Sleeping{kind}Scheduler"
    return {"Coserving": "scheduler.CoservingScheduler", "Serving": "preemption.ServingScheduler", "": ""}[kind]


def require_head(settings: EngineSettings, found: str) -> None:
    """Raises: Fatal if the engine would compute logits in another precision than the pool's: vLLM falls back to the model's silently."""
    if settings.head == "float32" and found != "float32":
        raise Fatal(
            f"the pool says head = 'float32', but this engine would compute logits in {found}; set head = 'model' in the pools file, "
            "for trainers as for engines"
        )
