"""Base models with random weights, for benchmarks of speed and memory."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.report import ROOT

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QWEN3_0_6B = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
QWEN3 = {
    "0.6 B": QWEN3_0_6B,
    "1.7 B": QWEN3_0_6B | {"hidden_size": 2048, "intermediate_size": 6144},
    "4 B": QWEN3_0_6B | {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32},
    "8 B": QWEN3_0_6B
    | {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
"""The family's shapes by size."""
SMALL = QWEN3_0_6B | {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 768, "vocab_size": 20_000}
LARGE_VOCABULARY = SMALL | {"vocab_size": QWEN3_0_6B["vocab_size"]}
DEEP = SMALL | {"num_hidden_layers": 24, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4}
SHAPES = {f"qwen3-{size.replace(' ', '').lower()}": config for size, config in QWEN3.items()}
MODELS = SHAPES | {"small": SMALL, "large-vocabulary": LARGE_VOCABULARY, "deep": DEEP}
"""Name → arguments of transformers' `Qwen3Config`."""
LETTERS = str.maketrans("0123456789", "aeioubcdfg")
"""Digits as letters: sampled words have vowels, so that rewards for them differ."""


def random_model(config: dict[str, Any], dtype: "torch.dtype", device: "torch.device") -> "PreTrainedModel":
    """The model with random weights, built without a second copy."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from trainer_svc.model.attention import BRANCHING

    made = Qwen3Config(**config, max_position_embeddings=40_960)
    made._attn_implementation = BRANCHING
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen3ForCausalLM(made)
    finally:
        torch.set_default_dtype(default)


def write_model(config: dict[str, Any], dtype: "torch.dtype", folder: Path) -> Path:
    """The random model as files, with the tiny model's tokenizer, which has a word of letters for each token that the tiny model lacks."""
    import torch
    from transformers import GenerationConfig

    made = random_model(config | {"eos_token_id": 2, "pad_token_id": 0}, dtype, torch.device("cpu"))
    made.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, do_sample=True)
    made.save_pretrained(folder)
    tokenizer = json.loads((ROOT / "models/tiny" / "tokenizer.json").read_text())
    words: dict[str, int] = tokenizer["model"]["vocab"]
    first = 1 + max(*words.values(), *(one["id"] for one in tokenizer["added_tokens"]))
    words |= {str(number).translate(LETTERS): number for number in range(first, config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "models/tiny" / file, folder / file)
    return folder
