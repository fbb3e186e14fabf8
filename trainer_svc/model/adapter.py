"""Interface to PEFT: an adapter's layout, its initial weights, and the folder that vLLM and plain PEFT load."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from common.errors import Reject
from common.pools.model_files import HubModel
from common.spec import Lora
from trainer_svc.model.lora import Layout, LoraLinear, LoraModule

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
KEY_PREFIX = "base_model.model."
NEUTRAL_BASE = "base"
"""Base model name in the folder if the model has no repository: it must not depend on this machine's paths."""


def initial_adapter(lora: Lora, seed: int, layers: Mapping[str, LoraLinear]) -> tuple[Layout, Tensor]:
    """Adapter of version 0, as PEFT initializes it after `torch.manual_seed(seed)`: A random, B zero. float32, on the CPU.

    Raises: Reject if the base model has none of the modules that the task names.
    """
    stand_in = _stand_in(layers)
    config = _config(lora.rank, lora.alpha, list(lora.targets), rank_stabilized=lora.rank_stabilized)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            adapted = peft.inject_adapter_in_model(config, stand_in)
        except ValueError:
            known = sorted({name.rpartition(".")[2] for name in layers})
            raise Reject(f"lora.targets: this base model has none of {', '.join(lora.targets)}; it has {', '.join(known)}") from None
    weights = peft.get_peft_model_state_dict(adapted)
    names = [key.removesuffix(".lora_A.weight") for key in weights if key.endswith(".lora_A.weight")]
    modules = tuple(LoraModule(name, layers[name].in_features, layers[name].out_features) for name in names)
    layout = Layout(lora.rank, lora.alpha, modules, lora.rank_stabilized)
    return layout, _flat(layout, weights, prefix="")


def write_adapter(folder: Path, layout: Layout, vector: Tensor, dtype: torch.dtype, base: HubModel | None = None) -> None:
    """Write the adapter as a PEFT folder; equal adapters of one `base` give equal bytes.

    `dtype` is the base model's, so that the engine serves the precision that was trained.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Fields with PEFT's default are omitted: each PEFT version adds some, and earlier ones refuse unknown fields.
    fields = {
        "base_model_name_or_path": base.name if base else NEUTRAL_BASE,
        **({"revision": base.commit} if base else {}),
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "r": layout.rank,
        "lora_alpha": _number(layout.alpha),
        "target_modules": sorted({module.name.rpartition(".")[2] for module in layout.modules}),
        **({"use_rslora": True} if layout.rank_stabilized else {}),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    tensors = {}
    for name, pair in layout.views(vector.detach().to("cpu", dtype)).items():
        tensors[f"{KEY_PREFIX}{name}.lora_A.weight"] = pair.a.contiguous().clone()
        tensors[f"{KEY_PREFIX}{name}.lora_B.weight"] = pair.b.contiguous().clone()
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def read_adapter(folder: Path, layout: Layout) -> Tensor:
    """Adapter vector from a PEFT folder. float32, on the CPU. Raises: Reject if it has another layout, or is missing."""
    try:
        weights = load_file(folder / WEIGHTS_FILE)
    except FileNotFoundError:
        raise Reject(f"adapter: there is no {WEIGHTS_FILE}") from None
    return _flat(layout, weights, prefix=KEY_PREFIX)


def write_merged(model: str, adapter: Path, folder: Path) -> list[str]:
    """Write the base model with the adapter merged into its weights, in the base model's precision, and its tokenizer.

    Returns the names of generation settings that were omitted, because transformers does not write contradicting ones.
    Raises: Reject if model or adapter cannot be loaded.
    """
    try:
        base = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
        merged = peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise Reject(f"adapter {adapter} cannot be merged into '{model}': {error}") from None
    merged.generation_config, dropped = _writable(merged.generation_config)
    merged.save_pretrained(folder)
    with suppress(OSError):  # a base model may have no tokenizer
        AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return dropped


def _writable(given: GenerationConfig) -> tuple[GenerationConfig, list[str]]:
    """`given` without settings that are invalid in combination with earlier ones, and the names of the omitted settings."""
    kept, dropped = GenerationConfig(), list[str]()
    for name, value in given.to_diff_dict().items():
        before = getattr(kept, name, None)
        setattr(kept, name, value)
        try:
            kept.validate(strict=True)
        except ValueError:
            setattr(kept, name, before)
            dropped.append(name)
    return kept, dropped


def _config(rank: int, alpha: float, targets: list[str], *, rank_stabilized: bool) -> peft.LoraConfig:
    return peft.LoraConfig(
        r=rank,
        lora_alpha=_number(alpha),
        lora_dropout=0.0,
        bias="none",
        target_modules=targets,
        init_lora_weights=True,
        use_rslora=rank_stabilized,
    )


def _number(alpha: float) -> int:
    """Alpha for PEFT, which is annotated as int but accepts fractions."""
    return int(alpha) if alpha == int(alpha) else alpha  # pyright: ignore[reportReturnType]


def _stand_in(layers: Mapping[str, LoraLinear]) -> nn.Module:
    """Linear layers with the base model's names and shapes, without memory, for PEFT to modify in place of the base model."""
    root = nn.Module()
    for name, layer in layers.items():
        parent = root
        *path, own = name.split(".")
        for part in path:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        linear = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(torch.zeros(1).expand(layer.out_features, layer.in_features), requires_grad=False)
        parent.add_module(own, linear)
    return root


def _flat(layout: Layout, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    parts: list[Tensor] = []
    for module in layout.modules:
        for matrix, shape in (("lora_A", (layout.rank, module.inputs)), ("lora_B", (module.outputs, layout.rank))):
            key = f"{prefix}{module.name}.{matrix}.weight"
            if key not in weights or weights[key].shape != shape:
                raise Reject(
                    f"adapter: {key} should have shape {shape}, found {tuple(weights[key].shape) if key in weights else 'nothing'}"
                )
            parts.append(weights[key].detach().to(torch.float32).flatten())
    return torch.cat(parts)
