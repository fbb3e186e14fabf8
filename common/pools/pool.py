"""Pools: the base models of a deployment, read from one TOML file by every service that needs them.

[tiny]
model = "models/tiny"          # a folder beside this file, or a Hugging Face name
context_tokens = 512
profile = "1b"                 # defaults of its tasks

[tiny.serving]                 # its versions are served, too
sequences = 16

[tiny.defaults]                # further defaults, as in a task file
sampling.template = { enable_thinking = false }
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from common.accelerators import Tier
from common.errors import Fatal, Reject
from common.formats.toml_file import TomlFileError, read_tables
from common.formats.wrong_values import described
from common.pools.memory import MemoryEstimate, ModelShape, train_memory
from common.spec import OWN, Layer, Name, Profile, TaskSpec, complete, profile_values

REVISION = described(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$", "a commit, tag or branch")
MAX_TEMPERATURE = 2.0
"""Of vLLM's `SamplingParams`: it refuses each request above."""
ALL_LAYERS = 10_000
"""Stands for all layers of a model of unknown shape: larger than any model's number of layers."""
MaxRank = Literal[8, 16, 32, 64, 128, 256, 320, 512]


@dataclass(frozen=True)
class Goals:
    """Latency goals of served requests."""

    ttft_s: float
    """Seconds from a request to its first token."""
    tpot_s: float
    """Mean seconds from one further token to the next."""


class Serving(BaseModel):
    """Capacity of a replica reserved for requests to versions, in addition to that for rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sequences: int = Field(default=16, ge=1)
    """Requests that one rollout replica answers concurrently; further requests wait."""
    adapters: int = Field(default=4, ge=1)
    """Maximum different adapters among these requests."""
    thoughts: tuple[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]] | None = None
    """Markers around the model's reasoning, as `["<think>", "</think>"]`; answers then return it separately. None: it is part of the
    answer."""
    ttft_ms: float | None = Field(default=None, gt=0)
    """Goal for the time to first token, in milliseconds; with `tpot_ms`. Rollouts are held back as far as it demands. None: no goals."""
    tpot_ms: float | None = Field(default=None, gt=0)
    """Goal for the mean time per further token, in milliseconds; with `ttft_ms`."""
    training_share: float = Field(default=0.1, ge=0, le=1)
    """Minimum fraction of rollouts' steps that they get although goals are missed for it."""

    @model_validator(mode="after")
    def _has_both_goals(self) -> "Serving":
        if (self.ttft_ms is None) != (self.tpot_ms is None):
            raise ValueError("give ttft_ms and tpot_ms both, or neither")
        return self

    @property
    def goals(self) -> Goals | None:
        return Goals(self.ttft_ms / 1e3, self.tpot_ms / 1e3) if self.ttft_ms is not None and self.tpot_ms is not None else None


class Pool(BaseModel):
    """A base model with its engine settings. One rollout or trainer replica serves one pool."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    """Folder (relative to the pools file) or Hugging Face name of a causal language model."""
    revision: Annotated[str, Field(pattern=REVISION)] | None = None
    """Commit, tag or branch of the model's repository. None: the commit that the first start on this machine found and recorded."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the base model in engines and trainers, and of stored adapters; `auto`: float32 on a CPU, bfloat16 on a GPU.
    Optimizer states, with masters of the adapter, are always float32."""
    head: Literal["model", "float32"] = "model"
    """Precision in which engines and trainers compute logits from a bfloat16 model's hidden states. `float32` brings sampled and trained
    log-probabilities closer together; for a float32 model both values are equivalent.
    """
    context_tokens: int = Field(default=2048, ge=32)
    """Maximum tokens of a trajectory, prompt included."""
    max_rank: MaxRank = 16
    """Maximum LoRA rank; the engine reserves memory for it per adapter. The values are those of vLLM."""
    adapters: int = Field(default=16, ge=1)
    """Maximum adapters in one batch of the engine."""
    sequences: int = Field(default=64, ge=1)
    """Sequences that one rollout replica decodes concurrently."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for the KV cache on a CPU; on a GPU `gpu_memory_share` decides."""
    gpu_memory_share: float = Field(default=0.6, gt=0, lt=1)
    invariant: bool | Literal["auto"] = "auto"
    """Batch invariance: a sampled log-probability, and so an adapter, is bitwise independent of the rest of the engine's batch. `true`: the
    engine refuses to start without it; `auto`: if it costs nothing, which is on a CPU.
    """
    train_tokens: int = Field(default=16_384, ge=32)
    """Padded tokens in one micro-batch of the trainer, which determine its memory; `marlaas up` prints an estimate."""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing in the trainer: the backward pass recomputes the activations of all layers but the last (`on`), or only of
    as many as needed for a micro-batch of `train_tokens` to fit, by the estimate (`auto`), into the memory of the machine or of the shared
    accelerator. It saves up to nine tenths of their memory and costs up to half of a step's time.
    """
    checkpoint_every: int = Field(default=1, ge=1, le=64)
    """Steps between checkpoints of a task's optimizer state, while one trainer keeps it in memory. Other versions store their adapter
    and their batch, from which a trainer that lost the state recomputes at most this many steps.
    """

    serving: Serving | None = None
    """Table `[NAME.serving]`. None: this pool's versions are trained, and not served. The engine's capacity is the sum of both kinds."""

    on: Name | None = None
    """Shared accelerator (`[accelerator.NAME]`) of the pool's sampler and trainer. None: they have their own permanently."""
    generate_on: tuple[Name, ...] = ()
    """Shared accelerators of the pool's samplers, one sampler on each; empty: as `on`."""
    train_on: tuple[Name, ...] = ()
    """Shared accelerators of the pool's trainers, one trainer on each; empty: as `on`."""
    parked: Literal["auto", "device", "host", "disk", "none"] = "auto"
    """Deepest tier to which its state is moved while other pools use the accelerator; `auto`: `disk`. State for which `host_gib` has no
    room is moved from `host` to disk.
    """
    serve_parked: bool = False
    """Whether a pool on a shared accelerator is served: a request waits for a slice, and is refused if none starts in time."""

    profile: Profile | None = None
    """Defaults of the pool's tasks by the size of the base model: `small` below 0.6 billion parameters, `1b` below 4, `8b` from 4 on.
    None: the built-in defaults, which suit models of a few million.
    """
    defaults: dict[str, JsonValue] = {}
    """Defaults of the pool's tasks: keys and tables of a task file. They override the profile's."""

    @property
    def stays_awake(self) -> bool:
        """Whether its samplers have their accelerators to themselves, and stay awake without work."""
        return self.serving is not None and bool(self.samplers_on) and not self.serve_parked

    @property
    def samplers_on(self) -> tuple[str, ...]:
        """Shared accelerators of its samplers; empty if they have their own."""
        return self.generate_on or ((self.on,) if self.on is not None else ())

    @property
    def trainers_on(self) -> tuple[str, ...]:
        return self.train_on or ((self.on,) if self.on is not None else ())

    @property
    def deepest_tier(self) -> Tier:
        """Deepest tier in which its executors may be parked."""
        return Tier.DISK if self.parked == "auto" else Tier(self.parked)

    @property
    def model_name(self) -> str:
        """Model name shown to users: its Hugging Face name, or the name of its folder without the path on this machine."""
        return Path(self.model).name if Path(self.model).is_absolute() else self.model

    def layers(self, name: str) -> list[Layer]:
        """Defaults for fields that a task of this pool omits. `name`: the pool's."""
        found = [Layer(f"pool '{name}'", self.defaults)] if self.defaults else []
        if self.profile is not None:
            values = profile_values(self.profile, "float32" if self.precision == "float32" else "bfloat16")
            found.append(Layer(f"profile '{self.profile}'", values))
        return found


def precision_on(precision: Literal["auto", "float32", "bfloat16"], *, cpu: bool) -> Literal["float32", "bfloat16"]:
    """A pool's `precision`, with `auto` resolved for a CPU or a GPU."""
    if precision == "auto":
        return "float32" if cpu else "bfloat16"
    return precision


def recomputed_layers(pool: Pool, shape: ModelShape | None, limit: int, *, on_cpu: bool) -> int:
    """Number of layers that a trainer with `limit` bytes recomputes. For a model of unknown shape: none with `auto`, `ALL_LAYERS` with
    `on`."""
    if shape is None:
        return ALL_LAYERS if pool.checkpointing == "on" else 0
    numbers = {"off": range(1), "on": range(shape.layers - 1, shape.layers), "auto": range(shape.layers)}[pool.checkpointing]
    fitting = (number for number in numbers if pool_memory(pool, shape, on_cpu=on_cpu, recomputed=number).total <= limit)
    return next(fitting, numbers[-1])


def pool_memory(pool: Pool, shape: ModelShape, *, on_cpu: bool, recomputed: int) -> MemoryEstimate:
    """Peak memory of the pool's trainer, with the largest allowed micro-batch and rank."""
    precision = precision_on(pool.precision, cpu=on_cpu)
    return train_memory(shape, rank=pool.max_rank, tokens=pool.train_tokens, precision=precision, on_cpu=on_cpu, recomputed=recomputed)


Pools = dict[str, Pool]
_ADAPTER = TypeAdapter(dict[Name, Pool])


def read_pools(path: Path) -> Pools:
    """Pools described in `path`, with model folders made absolute.

    Raises: Fatal, naming the file and the invalid field, or the file or folder that cannot be read.
    """
    try:
        pools = read_tables(path, _ADAPTER, without=("accelerator",))
    except TomlFileError as error:
        raise Fatal(f"pools file {path} {error}; correct it, or set MARLAAS_POOLS_FILE") from None
    if not pools:
        raise Fatal(f'pools file {path} describes no pool; add one, as [tiny] with model = "…", or set MARLAAS_POOLS_FILE')
    for name, pool in pools.items():
        _check_defaults(name, pool, path)
    located = {name: pool.model_copy(update={"model": _located(name, pool.model, path)}) for name, pool in pools.items()}
    for name, pool in located.items():
        if pool.revision and Path(pool.model).is_absolute():
            raise Fatal(f"pools file {path} is wrong: {name}.revision: {pool.model} is a folder, which has none; remove `revision`")
    return located


def chosen_pool(name: str, path: Path, setting: str) -> Pool:
    """Pool `name` of the pools file. Raises: Fatal as `read_pools`, and naming `setting` if the file has no such pool."""
    pools = read_pools(path)
    if name not in pools:
        raise Fatal(f"{setting} is '{name}', but {path} has {', '.join(sorted(pools))}")
    return pools[name]


def layers_of(raw: Mapping[str, JsonValue], pools: Pools) -> list[Layer]:
    """Defaults of the pool named by a task; empty for an unknown pool."""
    name = raw.get("pool")
    return pools[name].layers(name) if isinstance(name, str) and name in pools else []


def objections(spec: TaskSpec, pools: Pools) -> list[str]:
    """Reasons why the pools cannot run `spec`."""
    if unknown := objections_to_name(spec.pool, pools):
        return unknown
    pool, found = pools[spec.pool], list[str]()
    if spec.lora.rank > pool.max_rank:
        found.append(f"lora.rank: {spec.lora.rank} is above what pool '{spec.pool}' allows: {pool.max_rank}")
    if spec.trajectory_tokens > pool.context_tokens:
        found.append(
            f"limits: a trajectory may take {spec.trajectory_tokens} tokens (max_prompt_tokens + max_turns × max_tokens"
            f" + replies), but pool '{spec.pool}' has a context of {pool.context_tokens}: lower one of them"
        )
    temperatures = {f"evaluation '{one.name}': temperature": one.temperature for one in spec.evaluation.protocols}
    for field, temperature in ({"sampling.temperature": spec.sampling.temperature} | temperatures).items():
        if temperature > MAX_TEMPERATURE:
            found.append(f"{field}: {temperature:g} is above what engines take: {MAX_TEMPERATURE:g}")
    return found


def objections_to_name(name: str, pools: Pools) -> list[str]:
    """The reason why no task can name this pool; empty if the pool exists."""
    return [] if name in pools else [f"pool: no pool '{name}' here; offered: {', '.join(sorted(pools))}"]


def _check_defaults(name: str, pool: Pool, pools_file: Path) -> None:
    """Raises: Fatal, naming the field, if no task could use the pool's defaults."""
    wrong = [f"{field}: a task gives it itself" for field in OWN if field in pool.defaults]
    task: dict[str, JsonValue] = {"name": "any", "tenant": "any", "pool": name, "steps": 1, "environment": {"name": "any"}}
    try:
        spec = complete(task, [] if wrong else pool.layers(name))
    except Reject as error:
        wrong = [str(error)]
    else:
        if pool.layers(name) and spec.lora.rank > pool.max_rank:
            wrong.append(f"lora.rank: {spec.lora.rank} is above the pool's max_rank of {pool.max_rank}")
    if wrong:
        raise Fatal(f"pools file {pools_file} is wrong: {name}.defaults: {'; '.join(wrong)}; correct `defaults` or `profile`")


def _located(name: str, model: str, pools_file: Path) -> str:
    folder = Path(model) if Path(model).is_absolute() else pools_file.resolve().parent / model
    if folder.is_dir():
        return str(folder)
    if model.startswith((".", "/")) or model.count("/") != 1 or (pools_file.parent / model.split("/")[0]).is_dir():
        raise Fatal(f"pool '{name}': model folder {folder} does not exist; correct `model` in {pools_file}")
    return model
