"""Peak memory of a trainer, estimated from the base model's shape and the relevant settings; the machine's memory; and bytes of a
model's loaded weights, from the headers of its files.

Activations dominate: elements that autograd keeps for each token and layer, counted in transformers' decoder layers with LoRA on
every linear layer. With recomputation (activation checkpointing) the first layers keep only their input. Their backward pass comes
last, and reuses, one layer at a time, the memory freed by the last layers.
`python -m bench.memory` measures the peak with and without recomputation; a test compares the count with the measurement.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

GIB = 2**30
FLOAT32_BYTES = 4
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
LOGITS_CHUNK_ELEMENTS = 32 * 1024 * 1024
"""Maximum logits materialized at a time (128 MiB in float32)."""
CHUNK_COPIES = 3
"""Float32 tensors of a chunk's size: logits, their softmax, and a product of both."""
KEYS_A_TOKEN = 2.0
"""Copies of keys per token of rows with shared prompts: a prompt's keys are kept once for the prompt, and once for each of its attempts."""
LAYER_GRADIENTS = 4
"""Tensors of the MLP's width alive during the backward pass of one layer."""
STEP_VECTORS = 11
"""Float32 vectors of the adapter's size while the optimizer makes a new state: masters and moments twice, gradients, temporaries."""
GRADIENT_VECTORS = 7
"""Float32 vectors of the adapter's size during the backward pass: masters, moments, and the gradient with its parts."""
DEVICE_SHARE = 0.95
"""Fraction of a GPU's memory that its executors may use, if the pools file sets no size."""
PROCESS_BYTES = 500 * 2**20
"""Memory of Python, PyTorch and transformers before a model is loaded."""
MIN_TOKENS = 32
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder, from its `config.json`."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    normed_heads: bool
    """Whether queries and keys have their own norm, which keeps its input in float32."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ModelShape | None":
        """Shape in a model's configuration; None for models that the estimate does not cover: mixtures of experts, or unknown field
        names."""
        found = config.get("text_config") or config
        if any(name in found for name in ("num_experts", "num_local_experts", "n_routed_experts")):
            return None
        try:
            heads, hidden = found["num_attention_heads"], found["hidden_size"]
            return cls(
                layers=found["num_hidden_layers"],
                hidden=hidden,
                intermediate=found["intermediate_size"],
                heads=heads,
                kv_heads=found.get("num_key_value_heads") or heads,
                head_dim=found.get("head_dim") or hidden // heads,
                vocabulary=found["vocab_size"],
                tied=bool(config.get("tie_word_embeddings", found.get("tie_word_embeddings", True))),
                normed_heads=str(found.get("model_type", "")).startswith(("qwen3", "gemma3", "olmo")),
            )
        except KeyError:
            return None

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of parameters, without norms and biases, which are few."""
        layer = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Number of parameters of LoRA on every linear layer."""
        attention = 4 * self.hidden + 2 * self.queries + 2 * self.keys
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    @property
    def cache_elements(self) -> int:
        """Elements of the KV cache for one token."""
        return 2 * self.layers * self.keys

    def slot_parameters(self, rank: int, *, cpu: bool) -> int:
        """Parameters of one adapter slot of the engine. On a CPU `rollout_svc/engine/cpu/lora.py` merges the matrices of queries, keys and
        values, and of gate and up: each merged matrix is as wide as its parts together, and zero outside of them.
        """
        zeros = self.layers * rank * (2 * (self.queries + 2 * self.keys) + 2 * self.intermediate) if cpu else 0
        return self.adapter_parameters(rank) + zeros


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process that trains one task."""

    tokens: int
    rank: int
    process: int
    weights: int
    adapter: int
    """Master weights, moments and gradient of one task."""
    activations: int
    """Tensors that the forward pass keeps for the backward pass."""
    temporaries: int
    """A chunk of logits, or the gradients of one layer."""
    recomputed: int = 0
    """Number of layers that keep only their input."""

    @property
    def total(self) -> int:
        return self.process + self.weights + self.adapter + self.activations + self.temporaries

    def __str__(self) -> str:
        parts = ("weights", "activations", "adapter", "temporaries", "process")
        named = ", ".join(f"{name} {getattr(self, name) / GIB:.1f}" for name in parts)
        form = f", recomputing {self.recomputed} layers" if self.recomputed else ""
        return f"{self.total / GIB:.1f} GiB for a micro-batch of {self.tokens} tokens and rank {self.rank}{form} ({named})"


def train_memory(
    shape: ModelShape,
    *,
    rank: int,
    tokens: int,
    precision: Precision,
    shared: bool = True,
    on_cpu: bool = True,
    recomputed: int = 0,
) -> MemoryEstimate:
    """Peak memory of a step whose largest micro-batch has `tokens`.

    `precision`: of the base model. `shared`: rows share prompts, for which attention copies keys. `on_cpu`: the process itself uses
    the same memory. `recomputed`: layers whose activations the backward pass recomputes, at most all but the last.
    """
    size = ELEMENT_BYTES[precision]
    adapter = shape.adapter_parameters(rank) * FLOAT32_BYTES
    kept = _kept_bytes(shape, rank, size, shared=shared)
    activations = int(tokens * (recomputed * shape.hidden * size + (shape.layers - recomputed) * kept))
    chunk = min(LOGITS_CHUNK_ELEMENTS, tokens * shape.vocabulary)
    head = chunk * (CHUNK_COPIES * FLOAT32_BYTES + (2 * size if size != FLOAT32_BYTES else 0))
    layer = tokens * LAYER_GRADIENTS * shape.intermediate * size
    temporaries = max(head, layer)
    # The optimizer runs after activations are freed.
    more = max(0, STEP_VECTORS * adapter - (GRADIENT_VECTORS * adapter + activations + temporaries))
    weights = shape.parameters * size
    process = PROCESS_BYTES if on_cpu else 0
    return MemoryEstimate(tokens, rank, process, weights, GRADIENT_VECTORS * adapter + more, activations, temporaries, recomputed)


def tokens_that_fit(
    shape: ModelShape, limit: int, *, rank: int, tokens: int, precision: Precision, on_cpu: bool = True, recomputed: int = 0
) -> int:
    """`tokens`, halved until the estimate is within `limit` bytes; 0 if even MIN_TOKENS are too many."""
    while tokens >= MIN_TOKENS:
        if train_memory(shape, rank=rank, tokens=tokens, precision=precision, on_cpu=on_cpu, recomputed=recomputed).total <= limit:
            return tokens
        tokens //= 2
    return 0


def total_within(budget: int, *, on_cpu: bool) -> int:
    """Maximum `MemoryEstimate.total` of a trainer with `budget` bytes of a shared accelerator; the budget excludes its process."""
    return budget + (PROCESS_BYTES if on_cpu else 0)


def machine_bytes() -> int:
    """Memory of this machine, or of this process's container, in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no limit, or "max"
        return total


def _kept_bytes(shape: ModelShape, rank: int, size: int, *, shared: bool) -> float:
    """Bytes of activations kept per token and layer. Inputs of norms and attention's sums are float32, whatever the model's precision."""
    hidden, queries, keys = shape.hidden, shape.queries, shape.keys
    norms = 2 * hidden + (queries + keys + 2 * (shape.heads + shape.kv_heads) if shape.normed_heads else 0)
    linear = 2 * hidden + 4 * shape.intermediate + 7 * rank
    attention = 2 * queries + 2 * keys
    if shared:  # spans copy their keys, repeat them for every head, and reorder their results
        attention = 3 * queries + 2 * KEYS_A_TOKEN * queries
    return FLOAT32_BYTES * (norms + shape.heads) + size * (linear + attention)


WEIGHT_FILES = "*.safetensors"
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 2**20
"""Maximum bytes of a file's header in safetensors' format."""
CONVERTED = ("F64", "F32", "F16", "BF16")
"""Types of tensors that are loaded in the pool's precision; others keep their stored type."""


def loaded_bytes(folder: Path, precision: Precision) -> int:
    """Bytes of all tensors in the folder's files; for a file with an unreadable header, its size; 0 without files."""
    return sum(_loaded(file, ELEMENT_BYTES[precision]) for file in folder.glob(WEIGHT_FILES))


def _loaded(file: Path, element_bytes: int) -> int:
    try:
        return sum(
            math.prod(tensor["shape"]) * element_bytes
            if tensor["dtype"] in CONVERTED
            else tensor["data_offsets"][1] - tensor["data_offsets"][0]
            for tensor in _tensors(file)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return file.stat().st_size if file.exists() else 0


def _tensors(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(HEADER_LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{file} is not a file of safetensors")
        header: dict[str, dict[str, Any]] = json.loads(opened.read(length))
    return (tensor for name, tensor in header.items() if name != "__metadata__")
