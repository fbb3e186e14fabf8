"""Defaults of a pool for fields that a task omits, and the origin of each value of the complete task.

Precedence: the task, `[POOL.defaults]`, the pool's profile, the loss and other fields of the task, the built-in default. Sections are
merged field by field; a field's value replaces the lower one completely, even a table such as `sampling.template`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, JsonValue

from common.errors import Reject
from common.spec.parsing import parse_spec
from common.spec.sections import DEFAULTS_BY_LOSS, Section
from common.spec.task import FOLLOWED, TaskSpec

Profile = Literal["small", "1b", "8b"]
Values = Mapping[str, JsonValue]

OWN = ("name", "tenant", "pool", "steps", "start", "metadata")
"""Fields that only a task itself sets; a pool's defaults must not contain them."""
GROUPS = 16
MISMATCH: dict[Literal["float32", "bfloat16"], float] = {"float32": 0.05, "bfloat16": 0.2}
"""Precision of the base model → maximum sampler mismatch in nats. Healthy: 3·10⁻¹³ in float32 on a CPU (bench/results/isolation.json);
in bfloat16 the canary of an adapter tolerates a mean difference of 0.1, whose mismatch is 0.005."""
RATES: dict[Profile, float] = {"small": 1e-4, "1b": 4e-5, "8b": 2e-5}


@dataclass(frozen=True)
class Layer:
    """Values for fields that a task omits."""

    name: str
    """Origin of the values, as shown to users."""
    values: Values

    def paths(self) -> Iterator[str]:
        """Fields that the layer sets, as `section.field`."""
        for name, value in self.values.items():
            yield from (f"{name}.{field}" for field in value) if _is_section(name) and isinstance(value, dict) else (name,)


def profile_values(profile: Profile, precision: Literal["float32", "bfloat16"]) -> Values:
    """Values of a profile, for a base model of this precision. Reasons: docs/adr/0018-defaults-of-a-pool.md."""
    return {
        "lora": {"rank": 32, "alpha": 32.0},
        "optimizer": {"learning_rate": RATES[profile], "betas": [0.9, 0.95], "warmup_steps": 5},
        "algorithm": {"groups_per_step": GROUPS, "max_refills": GROUPS},
        "correction": {"max_sampler_mismatch": MISMATCH[precision]},
    }


def complete(raw: Values, layers: Sequence[Layer]) -> TaskSpec:
    """The task described by `raw`, completed by the layers, earlier ones first.

    Raises: Reject, as `parse_spec`; a complaint that involves values from the layers names these values with their origins.
    """
    try:
        return parse_spec(_merged(raw, layers))
    except Reject as error:
        given = {path: layer.name for layer in reversed(layers) for path in layer.paths() if not _gives(raw, path)}
        raise Reject(*(_with_origins(reason, given) for reason in error.reasons)) from None


def _with_origins(reason: str, given: Mapping[str, str]) -> str:
    """Append the origins of values in a complaint. `given`: paths of values that the task does not set itself → origin."""
    named = [path for path in given if re.search(rf"\b{path.rpartition('.')[2]}\b", reason)]
    return "; ".join([reason, *(f"{path} is the default of {given[path]}" for path in named)])


def sources(raw: Values, layers: Sequence[Layer], spec: TaskSpec) -> dict[str, str]:
    """`section.field` of every value of `spec` → its origin: `task`, a layer's name, `loss 'NAME'`, another field, or `built-in`."""
    return {path: _source(path, field_differs, raw, layers, spec) for path, field_differs in _fields(spec)}


def _source(path: str, differs: bool, raw: Values, layers: Sequence[Layer], spec: TaskSpec) -> str:
    if _gives(raw, path):
        return "task"
    for layer in layers:
        if _gives(layer.values, path):
            return layer.name
    section, _, field = path.rpartition(".")
    if section == "algorithm" and field in DEFAULTS_BY_LOSS.get(spec.algorithm.loss, {}):
        return f"loss '{spec.algorithm.loss}'"
    return FOLLOWED[path] if differs and path in FOLLOWED else "built-in"


def _fields(spec: TaskSpec) -> Iterator[tuple[str, bool]]:
    """Every field's path, and whether its value differs from its built-in default."""
    for name, value in spec:
        part, prefix = (value, f"{name}.") if isinstance(value, Section) else (spec, "")
        for field in type(part).model_fields if prefix else [name]:
            yield f"{prefix}{field}", getattr(part, field) != _default(part, field)


def _default(part: BaseModel, field: str) -> object:
    return type(part).model_fields[field].get_default(call_default_factory=True)


def _merged(raw: Values, layers: Sequence[Layer]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for values in (*(layer.values for layer in reversed(layers)), raw):
        for name, value in values.items():
            below = found.get(name)
            found[name] = {**below, **value} if _is_section(name) and isinstance(below, dict) and isinstance(value, dict) else value
    return found


def _gives(values: Values, path: str) -> bool:
    name, _, field = path.partition(".")
    section = values.get(name)
    return name in values if not field else isinstance(section, dict) and field in section


def _is_section(name: str) -> bool:
    field = TaskSpec.model_fields.get(name)
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Section)
