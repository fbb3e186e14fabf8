"""A small random base model."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer_svc.model.policy import Policy, prepare_torch

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prepare_torch(1, CPU)
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.15,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def policy(model_folder: Path) -> Policy:
    found = Policy.load(str(model_folder), CPU, "float32")
    assert found.shares_prefixes
    return found
