"""A small random base model, on the CPU and, where there is one, on the GPU."""

from pathlib import Path

import pytest
import torch

from tests.support.trainer.models import random_model
from trainer_svc.model.policy import Policy

DEVICES = [torch.device(name) for name in ("cpu", *(["cuda"] if torch.cuda.is_available() else []))]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(
        tmp_path_factory.mktemp("model"),
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.15,
    )


@pytest.fixture(scope="session", params=DEVICES, ids=str)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Of the trainer; the reference computes on the CPU."""
    return request.param


@pytest.fixture(scope="session")
def policy(model_folder: Path, device: torch.device) -> Policy:
    found = Policy.load(str(model_folder), device, "float32")
    assert found.shares_prefixes
    return found
