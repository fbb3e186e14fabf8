"""A small random base model, and trajectories of random tokens."""

import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from common.bus import Bus
from tests.support.buses import HASTY
from tests.support.keyed import Keyed
from tests.support.trainer.models import VOCABULARY, random_model
from trainer_svc.learner import Learner
from trainer_svc.model.policy import Policy
from trainer_svc.service import Trainer
from trainer_svc.state.resident import Residents


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(
        tmp_path_factory.mktemp("model"),
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
    )


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model's folder that the test may change."""
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


@pytest.fixture
async def keyed_bus(keyed: Keyed) -> AsyncIterator[Bus]:
    """Every service but the trainer."""
    async with await Bus.connect(keyed.url, "test", timings=HASTY) as bus:
        await bus.declare()
        yield bus


@pytest.fixture(scope="session")
def policy(model_folder: Path) -> Policy:
    return Policy.load(str(model_folder), torch.device("cpu"))


@pytest.fixture(scope="session")
def learner(policy: Policy) -> Iterator[Learner]:
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield Learner(policy, thread, budget_tokens=1024)


@pytest.fixture
def residents() -> Residents:
    return Residents(limit=8)


@pytest.fixture
def trainer(bus: Bus, learner: Learner, residents: Residents) -> Trainer:
    return Trainer(bus, learner, residents, "tiny")
