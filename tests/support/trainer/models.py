"""Small base models with random weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer_svc.model.policy import prepare_torch

VOCABULARY = 512


def random_model(folder: Path, **config: Any) -> Path:
    """Write a Qwen3 model with random weights; `config`: arguments of `Qwen3Config`."""
    prepare_torch(1, torch.device("cpu"))
    torch.manual_seed(1)
    made = Qwen3Config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **config)
    Qwen3ForCausalLM(made).save_pretrained(folder)
    return folder
