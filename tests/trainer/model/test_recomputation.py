"""Activation checkpointing: the same bits as without, in a fraction of the memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from bench import memory as bench
from bench.harness.models import SMALL, random_model
from common.errors import Fatal
from common.pools import Pool, pool_memory
from common.pools.memory import PROCESS_BYTES, train_memory
from common.spec import Lora
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.steps import BUDGET, DIFFERENT, assert_identical, begin, run, step
from trainer_svc.algorithm.batched_steps import run_steps
from trainer_svc.algorithm.step import StepResult, train_step
from trainer_svc.algorithm.step import step as step_of
from trainer_svc.learner import Learner, initial_resident
from trainer_svc.model.adapter import initial_adapter
from trainer_svc.model.batched_lora import ProductBuilder, by_grouped_mm, by_loop
from trainer_svc.model.layers import RecomputedLayer, decoder_layers
from trainer_svc.model.memory import MemoryNeeds
from trainer_svc.model.packing import Sample, pack, rows_of
from trainer_svc.model.policy import Adapted, Policy

CPU = torch.device("cpu")
NARROW = SMALL | {"num_hidden_layers": 24, "hidden_size": 64, "intermediate_size": 160, "head_dim": 16, "vocab_size": 300}


@pytest.fixture(scope="module")
def recomputing(model_folder: Path) -> Policy:
    policy = Policy.load(str(model_folder), CPU)
    policy.recompute_layers()
    return policy


@pytest.mark.parametrize("name", [*DIFFERENT])
def test_steps_have_the_same_bits_as_without(policy: Policy, recomputing: Policy, name: str) -> None:
    """Ranks, targets, temperatures, losses, passes, a KL term and an entropy bonus; prompts are shared."""
    spec, expected = DIFFERENT[name], run(policy, DIFFERENT[name], 2)
    assert_identical(run(recomputing, spec, 2), expected)
    turns = make_groups(31, turns=3)
    one, other = (step(one, expected, spec, turns) for one in (recomputing, policy))
    assert_identical(one.resident, other.resident)
    assert (one.canary, one.metrics["loss"]) == (other.canary, other.metrics["loss"])


@pytest.mark.parametrize("products", [by_loop, by_grouped_mm])
def test_steps_of_several_tasks_together_have_the_same_bits_as_without(
    policy: Policy, recomputing: Policy, products: ProductBuilder, request: pytest.FixtureRequest
) -> None:
    """A layer that is recomputed sees each task's adapter on that task's rows."""
    found: list[dict[int, StepResult | Exception]] = []
    for one in (recomputing, policy):
        request.addfinalizer(lambda one=one, before=one.batched_products: setattr(one, "batched_products", before))
        one.batched_products = products
        running = [step_of(one, begin(one, spec), make_groups(ord(name)), spec, budget_tokens=BUDGET) for name, spec in DIFFERENT.items()]
        found.append(dict(run_steps(one, running, budget_tokens=BUDGET)))
    for index in range(len(DIFFERENT)):
        one, other = found[0][index], found[1][index]
        assert isinstance(one, StepResult)
        assert isinstance(other, StepResult)
        assert one.metrics["together"] == len(DIFFERENT)
        assert_identical(one.resident, other.resident)


TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**TINY)),
        lambda: Olmo2ForCausalLM(Olmo2Config(**TINY)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**TINY, use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    ],
)
def test_other_kinds_of_models_have_the_same_bits_too(make: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    """The last one asks its layers for their kind of attention."""
    torch.manual_seed(0)
    make().save_pretrained(tmp_path)
    results: list[StepResult] = []
    for is_recomputing in (False, True):
        policy = Policy.load(str(tmp_path), CPU)
        if is_recomputing:
            policy.recompute_layers()
        groups = bench.made_groups(256, 200, shared=True)
        results.append(train_step(policy, initial_resident(policy, "a", make_spec()), groups, make_spec(), budget_tokens=BUDGET))
    assert results[0].metrics["grad_norm"] > 0
    assert_identical(results[1].resident, results[0].resident)


def test_every_layer_but_the_last_is_recomputed_and_only_where_a_gradient_is_wanted(policy: Policy, recomputing: Policy) -> None:
    layers = recomputing._decoder.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    assert [isinstance(layer, RecomputedLayer) for layer in layers] == [True, True, True, False]
    assert (policy.recomputed, recomputing.recomputed) == (0, 3)
    computed: list[int] = []
    handles = [layer.inner.register_forward_pre_hook(lambda *_, number=n: computed.append(number)) for n, layer in enumerate(layers[:-1])]
    try:
        step(recomputing, begin(recomputing, DIFFERENT["a"]), DIFFERENT["a"])
    finally:
        for handle in handles:
            handle.remove()
    assert computed == [0, 1, 2, 2, 1, 0, 0, 1, 2], "forward, backward, canary"


@pytest.mark.parametrize("count", [1, 2])
def test_only_the_first_layers_are_recomputed_where_that_is_enough(policy: Policy, model_folder: Path, count: int) -> None:
    some = Policy.load(str(model_folder), CPU)
    some.recompute_layers(count)
    layers = some._decoder.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    assert [isinstance(layer, RecomputedLayer) for layer in layers] == [number < count for number in range(4)]
    assert_identical(run(some, DIFFERENT["d"], 2), run(policy, DIFFERENT["d"], 2))


def test_nothing_stays_attached(recomputing: Policy) -> None:
    step(recomputing, begin(recomputing, DIFFERENT["a"]), DIFFERENT["a"])
    assert all(layer.attached is None for layer in recomputing.layers.values())


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors that were made within the mode and still exist, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[StorageWeakRef, int] = {}
        self._made = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self._sizes[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
                self._made += tensor.untyped_storage().nbytes()
        if self._made > self.peak:  # an upper bound of the bytes that exist, so that they are counted only where they may be a peak
            self.peak = max(self.peak, self.now())
        return found

    def now(self) -> int:
        self._sizes = {storage: size for storage, size in self._sizes.items() if not storage.expired()}
        self._made = sum(self._sizes.values())
        return self._made


def narrow_policy(layers: int, *, recomputed: bool, precision: torch.dtype = torch.float32) -> Policy:
    policy = Policy(random_model(NARROW | {"num_hidden_layers": layers}, precision, CPU), CPU)
    if recomputed:
        policy.recompute_layers()
    return policy


def test_peak_of_24_layers_is_below_three_tenths() -> None:
    """Of all tensors that a step makes, the adapter's vectors and the output layer's included."""
    peaks: list[int] = []
    for recomputed in (False, True):
        policy, spec = narrow_policy(24, recomputed=recomputed), make_spec("a", lora={"rank": 8})
        resident, groups = initial_resident(policy, "a", spec), bench.made_groups(300, 512, shared=True)
        with LiveBytes() as live:
            train_step(policy, resident, groups, spec, budget_tokens=2048)
        peaks.append(live.peak)
    assert peaks[1] / peaks[0] < 0.3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_estimate_counts_what_recomputed_layers_keep(precision: Any) -> None:
    """After the forward pass; the last layer keeps everything in both models."""
    kept: list[int] = []
    estimates: list[int] = []
    for layers in (4, 20):
        policy = narrow_policy(layers, recomputed=True, precision=getattr(torch, precision))
        layout, vector = initial_adapter(Lora(rank=1), 0, policy.layers)
        members = bench.made_groups(300, 1024, shared=True)[0].trajectories
        samples = [Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, 1.0, 1.0) for t in members]
        (packed,) = pack([rows_of([samples], budget_tokens=4096, width=64, shared=True)], budget_tokens=4096)
        with LiveBytes() as live:
            scores = policy.scores(packed, [Adapted(layout, vector.requires_grad_())])
            kept.append(live.now())
        assert scores.logprobs_N.requires_grad
        assert policy.shape is not None
        estimate = train_memory(policy.shape, rank=1, tokens=packed.ids_B_T.size, precision=precision, recomputed=policy.recomputed)
        estimates.append(estimate.activations)
    assert (kept[1] - kept[0]) / (estimates[1] - estimates[0]) == pytest.approx(1.0, abs=0.05)


def test_model_without_a_list_of_layers_is_refused_with_the_way_out() -> None:
    assert decoder_layers(nn.Linear(2, 2), ["q_proj"]) is None
    assert decoder_layers(nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2)])}), ["layers.0"]) is None, "one layer is the last one"
    policy = Policy(random_model(NARROW | {"num_hidden_layers": 1}, torch.float32, CPU), CPU)
    with pytest.raises(Fatal, match="Qwen3ForCausalLM has no list of layers to recompute; set checkpointing of the pool to 'off'"):
        policy.recompute_layers()


@pytest.mark.parametrize(("setting", "expected"), [("on", True), ("off", False), ("auto", False)])
async def test_trainer_recomputes_as_its_pool_says(model_folder: Path, setting: str, expected: bool) -> None:
    """`auto`: a small model has room for all activations."""
    pool = Pool.model_validate({"model": str(model_folder), "checkpointing": setting})
    learner = await Learner.start(pool, device="cpu", threads=1)
    assert (learner._policy.recomputed == 3) is expected
    assert ("recomputing 3 layers" in learner.needs.advice(make_spec("a"))) is expected
    assert ("or set checkpointing of the pool to 'on'" in learner.needs.advice(make_spec("a"))) is not expected


@pytest.mark.parametrize("layers", [0, 2])
async def test_trainer_on_a_shared_accelerator_recomputes_what_its_budget_demands(model_folder: Path, layers: int) -> None:
    """However much memory the machine has; and its estimate from before the model is loaded counts with it, or it would never wake."""
    pool = Pool(model=str(model_folder))
    shape = MemoryNeeds.of_folder(pool, on_cpu=True).shape
    assert shape is not None
    budget = pool_memory(pool, shape, on_cpu=True, recomputed=layers).total - PROCESS_BYTES
    learner = await Learner.start(pool, device="cpu", threads=1, budget=budget)
    assert learner.needs.recomputed == layers
    assert learner.needs.awake_bytes([pool.max_rank]) <= budget
    await learner.wake()
    assert learner.policy.recomputed == layers
