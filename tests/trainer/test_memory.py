"""Memory of a step, against the estimate, and the error when memory is used up."""

import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import memory as bench
from bench.harness.models import SMALL, random_model
from common.errors import Fatal, Retry
from common.pools import Pool
from common.pools.memory import GIB, ModelShape, machine_bytes, total_within, train_memory
from common.spec import LORA_TARGETS, Lora
from tests.support.trainer.groups import make_groups, make_spec
from trainer_svc.batch import Group
from trainer_svc.learner import Learner, initial_resident
from trainer_svc.model.adapter import initial_adapter
from trainer_svc.model.memory import limit_memory
from trainer_svc.model.packing import Sample, pack, rows_of
from trainer_svc.model.policy import Adapted, Policy, prepare_torch

CPU = torch.device("cpu")
CONFIG = SMALL | {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16, "vocab_size": 300}
RANK = 8


def kept_bytes(layers: int, precision: str, *, shared: bool) -> tuple[int, int]:
    """Tokens of a micro-batch, and bytes that autograd keeps of it besides parameters."""
    model = random_model(CONFIG | {"num_hidden_layers": layers}, getattr(torch, precision), CPU)
    policy = Policy(model, CPU)
    layout, vector = initial_adapter(Lora(rank=RANK), 0, policy.layers)
    vector.requires_grad_()
    groups = [[Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, 1.0, 1.0) for t in group.trajectories] for group in made(shared)]
    (packed,) = pack([rows_of(groups, budget_tokens=4096, width=64, shared=shared)], budget_tokens=4096)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), vector)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.scores(packed, [Adapted(layout, vector)])
    return packed.ids_B_T.size, sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def made(shared: bool) -> list[Group]:
    return bench.made_groups(300, 1024, shared=shared)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_estimate_counts_what_autograd_keeps_of_a_layer(precision: Any, shared: bool) -> None:
    (tokens, few), (_, many) = (kept_bytes(layers, precision, shared=shared) for layers in (2, 4))
    shapes = [ModelShape.of(CONFIG | {"num_hidden_layers": layers}) for layers in (2, 4)]
    estimates = [train_memory(shape, rank=RANK, tokens=tokens, precision=precision, shared=shared) for shape in shapes if shape]
    assert (many - few) / (estimates[1].activations - estimates[0].activations) == pytest.approx(1.0, abs=0.12 if shared else 0.04)


def test_estimate_counts_the_parameters_of_model_and_adapter() -> None:
    model = random_model(CONFIG, torch.float32, CPU)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = Policy(model, CPU)
    shape = policy.shape
    assert shape is not None
    layout, _ = initial_adapter(Lora(rank=RANK, targets=LORA_TARGETS), 0, policy.layers)
    assert shape.adapter_parameters(RANK) == layout.size
    assert shape.parameters == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("config", [CONFIG | {"num_experts": 4}, {"model_type": "mamba", "hidden_size": 64}])
def test_unknown_kinds_of_models_are_not_estimated(config: dict[str, Any]) -> None:
    assert ModelShape.of(config) is None


NO_MEMORY = """
import asyncio, resource, sys
from pathlib import Path
import torch
from tests.trainer.test_memory import step_with_little_memory
asyncio.run(step_with_little_memory(Path(sys.argv[1])))
"""


async def step_with_little_memory(model: Path) -> None:
    """A separate process: a step without memory, then the same step with it, then one that fails through its task."""
    prepare_torch(1, CPU)
    policy = Policy.load(str(model), CPU)
    spec = make_spec(lora={"rank": 4})
    resident = initial_resident(policy, "a", spec)
    with ThreadPoolExecutor(max_workers=1) as thread:
        learner = Learner(policy, thread, budget_tokens=100_000)
        await learner.train(resident, make_groups(1), spec)
        lines = Path("/proc/self/status").read_text().splitlines()
        taken = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + 16 * 2**20, resource.RLIM_INFINITY))
        try:
            await learner.train(resident, make_groups(2, groups=800), spec)
        except Retry as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await learner.train(resident, make_groups(2, groups=8), spec)
        print("taken")


def test_cpu_without_memory_is_distinguished_from_a_bad_task_and_names_the_setting_to_lower(model_folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_MEMORY, str(model_folder)], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    reason, taken = done.stdout.splitlines()
    assert reason.startswith("there is no memory for the step: ")
    assert "can't allocate memory" in reason
    assert "the estimate is " in reason
    assert "lower train_tokens of the pool, which is 100000, or the task's lora.rank, which is 4" in reason
    assert taken == "taken"


class Gpu:
    """A stand-in for a GPU of 80 GiB, through the functions of `torch.cuda` that a limit needs."""

    def __init__(self, free_gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fraction = 1.0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free_gib * GIB), 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: GIB)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self._set)

    def _set(self, fraction: float) -> None:
        self.fraction = fraction


@pytest.mark.parametrize(
    ("free_gib", "budget_gib", "share", "bound_gib", "usable_gib"),
    [
        (79, None, None, 28, 28),  # 0.95 − 0.6
        (20, None, None, 28, 21),
        (79, None, 0.9, 72, 72),
        (20, 40, None, 40, 40),  # of a shared accelerator, which others leave before it wakes
        (79, 100, None, 80, 100),
    ],
)
def test_trainer_takes_no_more_of_a_gpu_than_the_engine_leaves(
    free_gib: int, budget_gib: int | None, share: float | None, bound_gib: float, usable_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(free_gib, monkeypatch)
    budget = None if budget_gib is None else budget_gib * GIB
    found = limit_memory(torch.device("cuda"), Pool(model="model", gpu_memory_share=0.6), budget, share)
    assert gpu.fraction * 80 == pytest.approx(bound_gib)
    assert found / GIB == pytest.approx(usable_gib)


def test_engine_that_leaves_nothing_of_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, pool = Gpu(79, monkeypatch), Pool(model="model", gpu_memory_share=0.96)
    with pytest.raises(Fatal, match=r"gpu_memory_share of the pool is 0\.96, which leaves a trainer on the same GPU no memory"):
        limit_memory(torch.device("cuda"), pool, None, None)
    limit_memory(torch.device("cuda"), pool, None, 0.95)
    assert gpu.fraction == pytest.approx(0.95)


def test_cpu_is_not_bounded() -> None:
    assert limit_memory(CPU, Pool(model="model"), None, 0.1) == machine_bytes()
    assert limit_memory(CPU, Pool(model="model"), GIB, None) == total_within(GIB, on_cpu=True)
