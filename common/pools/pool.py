"""Pools: the base models that a deployment offers, read from one TOML file by every service that needs them.

[tiny]
model = "models/tiny"          # a folder beside this file, or a Hugging Face name
context_tokens = 512
profile = "1b"                 # defaults of its tasks

[tiny.serving]                 # its versions are served, too
sequences = 16

[tiny.defaults]                # and others, as in a task file
sampling.template = { enable_thinking = false }
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from common.accelerators import Tier
from common.errors import Fatal, Reject
from common.formats.toml_file import TomlFileError, read_tables
from common.formats.wrong_values import described
from common.pools.memory import MemoryEstimate, ModelShape, train_memory
from common.spec import OWN, Layer, Name, Profile, TaskSpec, complete, profile_values

REVISION = described(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$", "a commit, tag or branch")
ALL_LAYERS = 10_000
"""More layers than any model has."""
MaxRank = Literal[8, 16, 32, 64, 128, 256, 320, 512]


class Serving(BaseModel):
    """Places of a replica that are kept for requests to versions, beside those of rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sequences: int = Field(default=16, ge=1)
    """Requests that one rollout replica answers concurrently; more wait."""
    adapters: int = Field(default=4, ge=1)
    """Maximum different adapters among them."""
    thoughts: tuple[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]] | None = None
    """Texts around what the model thinks, as `["<think>", "</think>"]`, which answers then have apart. None: it is part of the answer."""


class Pool(BaseModel):
    """A base model with its engine settings. One rollout or trainer replica serves one pool."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    """Folder (relative to the pools file) or Hugging Face name of a causal language model."""
    revision: Annotated[str, Field(pattern=REVISION)] | None = None
    """Commit, tag or branch of the model's repository. None: the commit that the first start on this machine found, and kept."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the base model in engines and trainers, and of stored adapters; `auto`: float32 on a CPU, bfloat16 on a GPU.
    Optimizer states, with masters of the adapter, are always float32."""
    head: Literal["model", "float32"] = "model"
    """Precision in which engines and trainers compute logits from a bfloat16 model's hidden states. `float32` brings sampled and trained
    log-probabilities closer together; in a float32 model both are the same."""
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
    """Whether a sampled log-probability, and so an adapter, is the same to the last bit whatever else is in the engine's batch. `true`: the
    engine refuses to start where it is not; `auto`: as far as it costs nothing, which is on a CPU."""
    train_tokens: int = Field(default=16_384, ge=32)
    """Padded tokens in one micro-batch of the trainer, whose memory grows with them; `marlaas up` prints an estimate."""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing in the trainer: the backward pass recomputes the activations of all layers but the last (`on`), or of no
    more than needed for a micro-batch of `train_tokens` to fit, by the estimate (`auto`): into the machine's memory, or what a shared
    accelerator has. It saves up to nine tenths of their memory and costs up to half of a step's time."""
    checkpoint_every: int = Field(default=1, ge=1, le=64)
    """Steps between checkpoints of a task's optimizer state, while one trainer keeps it in memory. In between a version stores its adapter
    and its batch, from which a trainer that lost the state recomputes at most so many steps."""

    serving: Serving | None = None
    """Table `[NAME.serving]`. None: this pool's versions are trained, and not served. The engine is made for the sum of both kinds."""

    on: Name | None = None
    """Shared accelerator (`[accelerator.NAME]`) of the pool's sampler and trainer. None: they have their own, for ever."""
    generate_on: tuple[Name, ...] = ()
    """Shared accelerators of the pool's samplers, one of which is on each; empty: as `on`."""
    train_on: tuple[Name, ...] = ()
    """The same of its trainers."""
    parked: Literal["auto", "device", "host", "disk", "none"] = "auto"
    """Deepest tier to which its state is moved while other pools use the accelerator; `auto`: `disk`. State in `host` for which
    `host_gib` has no room goes to disk."""
    serve_parked: bool = False
    """Whether a pool on a shared accelerator is served: a request waits for a slice, and is refused where none began in time."""

    profile: Profile | None = None
    """Defaults of the pool's tasks by the size of the base model: `small` below 0.6 billion parameters, `1b` below 4, `8b` from 4 on.
    None: the built-in ones, which are for models of a few million."""
    defaults: dict[str, JsonValue] = {}
    """Defaults of the pool's tasks: keys and tables of a task file. They precede those of the profile."""

    @property
    def samplers_on(self) -> tuple[str, ...]:
        """Shared accelerators of its samplers; empty: they have their own."""
        return self.generate_on or ((self.on,) if self.on is not None else ())

    @property
    def trainers_on(self) -> tuple[str, ...]:
        return self.train_on or ((self.on,) if self.on is not None else ())

    @property
    def deepest_tier(self) -> Tier:
        """Deepest tier in which it may be parked."""
        return Tier.DISK if self.parked == "auto" else Tier(self.parked)

    @property
    def model_name(self) -> str:
        """The model as users are shown it: its Hugging Face name, or the name of its folder, whose place on this machine is not theirs."""
        return Path(self.model).name if Path(self.model).is_absolute() else self.model

    def layers(self, name: str) -> list[Layer]:
        """Values for what a task of this pool leaves out. `name`: the pool's."""
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
    """Layers that a trainer with `limit` bytes recomputes. For a model of unknown shape: none with `auto`, `ALL_LAYERS` with `on`."""
    if shape is None:
        return ALL_LAYERS if pool.checkpointing == "on" else 0
    numbers = {"off": range(1), "on": range(shape.layers - 1, shape.layers), "auto": range(shape.layers)}[pool.checkpointing]
    fitting = (number for number in numbers if pool_memory(pool, shape, on_cpu=on_cpu, recomputed=number).total <= limit)
    return next(fitting, numbers[-1])


def pool_memory(pool: Pool, shape: ModelShape, *, on_cpu: bool, recomputed: int) -> MemoryEstimate:
    """Peak memory of the pool's trainer, with the largest micro-batch and rank that it allows."""
    precision = precision_on(pool.precision, cpu=on_cpu)
    return train_memory(shape, rank=pool.max_rank, tokens=pool.train_tokens, precision=precision, on_cpu=on_cpu, recomputed=recomputed)


Pools = dict[str, Pool]
_ADAPTER = TypeAdapter(dict[Name, Pool])


def read_pools(path: Path) -> Pools:
    """The pools that `path` describes, with model folders made absolute.

    Raises: Fatal, naming the file and the wrong field, or the file or folder that cannot be read.
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
    """Pool `name` of the pools file. Raises: Fatal as `read_pools`, and naming `setting` when the file has no such pool."""
    pools = read_pools(path)
    if name not in pools:
        raise Fatal(f"{setting} is '{name}', but {path} has {', '.join(sorted(pools))}")
    return pools[name]


def layers_of(raw: Mapping[str, JsonValue], pools: Pools) -> list[Layer]:
    """Defaults of the pool that a task names; none for a pool that is unknown."""
    name = raw.get("pool")
    return pools[name].layers(name) if isinstance(name, str) and name in pools else []


def objections(spec: TaskSpec, pools: Pools) -> list[str]:
    """Reasons why the pools cannot take `spec`."""
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
    return found


def objections_to_name(name: str, pools: Pools) -> list[str]:
    """The reason why no task can name this pool; none where there is one."""
    return [] if name in pools else [f"pool: no pool '{name}' here; offered: {', '.join(sorted(pools))}"]


def _check_defaults(name: str, pool: Pool, pools_file: Path) -> None:
    """Raises: Fatal, naming the field, where no task could take the pool's defaults."""
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
