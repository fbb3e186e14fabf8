"""The policy's scores against plain transformers; adapters against plain PEFT."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from common.errors import Fatal, Reject
from common.spec import Lora
from tests.support.trainer.groups import make_groups, make_spec, pack_alone
from trainer_svc.batch import Trajectory
from trainer_svc.device.memory import GPU_ALLOCATORS
from trainer_svc.learner import initial_resident
from trainer_svc.model.adapter import initial_adapter, read_adapter, write_adapter
from trainer_svc.model.lora import Layout
from trainer_svc.model.packing import Row, Sample, collate
from trainer_svc.model.policy import NO_ADAPTER, Adapted, Policy, canary_sample, prepare_torch

CPU = torch.device("cpu")


def logprobs_of(model: nn.Module, trajectory: Trajectory, temperature: float) -> list[float]:
    """Log-probabilities of the sampled tokens in the simplest way: one sequence, all logits."""
    ids = torch.from_numpy(trajectory.ids_T.astype(np.int64))
    with torch.no_grad():
        log_all = (model(input_ids=ids[None]).logits[0, :-1].float() / temperature).log_softmax(-1)
    return [log_all[position - 1, ids[position]].item() for position in np.flatnonzero(trajectory.sampled_T)]


def trained_vector(layout: Layout, seed: int = 0) -> torch.Tensor:
    """Adapter as after training: no part zero."""
    return torch.randn(layout.size, generator=torch.Generator().manual_seed(seed)) * 0.05


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("temperature", "rank_stabilized"), [(1.0, False), (0.7, True)])
def test_exported_adapter_in_plain_peft_gives_the_trainers_logprobs(
    policy: Policy, model_folder: Path, tmp_path: Path, turns: int, shared: bool, temperature: float, rank_stabilized: bool
) -> None:
    lora = Lora(rank=4, alpha=6.5, targets=("q_proj", "v_proj", "down_proj"), rank_stabilized=rank_stabilized)
    layout, _ = initial_adapter(lora, 0, policy.layers)
    vector = trained_vector(layout)
    write_adapter(tmp_path / "adapter", layout, vector, torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()

    trajectories = [trajectory for group in make_groups(5, turns=turns) for trajectory in group.trajectories]
    samples = [Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, float(i), 1.0) for i, t in enumerate(trajectories)]
    groups = [samples[start : start + 4] for start in range(0, len(samples), 4)]
    found: dict[int, list[float]] = {}
    for packed in pack_alone(groups, budget_tokens=400, shared=shared):
        with torch.no_grad():
            scores = policy.scores(packed, [Adapted(layout, vector, temperature)])
        for number, logprob in zip(packed.advantages_N.tolist(), scores.logprobs_N.tolist(), strict=True):
            found.setdefault(int(number), []).append(logprob)
    assert policy.shares_prefixes
    for number, trajectory in enumerate(trajectories):
        assert found[number] == pytest.approx(logprobs_of(adapted, trajectory, temperature), abs=1e-5)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_gradient_and_entropy_equal_those_of_plain_autograd(
    policy: Policy, model_folder: Path, tmp_path: Path, entropy_weight: float
) -> None:
    layout, _ = initial_adapter(Lora(rank=4), 0, policy.layers)
    vector = trained_vector(layout).requires_grad_()
    group = make_groups(6, groups=1)[0]
    samples = [Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, 0.0, 1.0) for t in group.trajectories]
    (packed,) = pack_alone([samples], budget_tokens=4096)
    assert packed.spans
    scores = policy.scores(packed, [Adapted(layout, vector, 0.8)], entropy_gradient=entropy_weight > 0)
    coefficients = torch.linspace(-1, 1, len(scores.logprobs_N))
    torch.autograd.backward((scores.logprobs_N * coefficients + entropy_weight * scores.entropy_N).sum())

    write_adapter(tmp_path / "adapter", layout, vector, torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter", is_trainable=True).eval()
    total, entropies, start = torch.zeros(()), [], 0
    for trajectory in sorted(group.trajectories, key=lambda t: int(np.flatnonzero(t.sampled_T)[-1]), reverse=True):
        ids = torch.from_numpy(trajectory.ids_T.astype(np.int64))
        positions = torch.from_numpy(np.flatnonzero(trajectory.sampled_T))
        log_all = (adapted(input_ids=ids[None]).logits[0, :-1] / 0.8).log_softmax(-1)[positions - 1]
        total = total + (log_all.gather(1, ids[positions][:, None])[:, 0] * coefficients[start : start + len(positions)]).sum()
        entropy = -(log_all.exp() * log_all).sum(-1)
        total = total + entropy_weight * entropy.sum()
        entropies += entropy.tolist()
        start += len(positions)
    torch.autograd.backward(total)
    gradients = {name.replace(".default", ""): p.grad for name, p in adapted.named_parameters() if p.grad is not None}
    assert vector.grad is not None
    for name, pair in layout.views(vector.grad).items():
        torch.testing.assert_close(pair.a, gradients[f"base_model.model.{name}.lora_A.weight"], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(pair.b, gradients[f"base_model.model.{name}.lora_B.weight"], rtol=1e-3, atol=1e-5)
    assert scores.entropy_N.tolist() == pytest.approx(entropies, abs=1e-4)


def test_initial_adapter_is_the_one_peft_makes(policy: Policy, model_folder: Path) -> None:
    lora = Lora(rank=4, targets=("k_proj", "up_proj"))
    layout, vector = initial_adapter(lora, 17, policy.layers)
    torch.manual_seed(17)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["k_proj", "up_proj"])
    expected = peft.get_peft_model_state_dict(peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), config))
    pairs = layout.views(vector)
    assert len(expected) == 2 * len(pairs) == 16
    for name, pair in pairs.items():
        assert torch.equal(pair.a, expected[f"base_model.model.{name}.lora_A.weight"])
        assert pair.b.count_nonzero() == 0


def test_initial_adapter_depends_on_the_seed_alone(policy: Policy) -> None:
    first = initial_adapter(Lora(), 3, policy.layers)[1]
    torch.rand(5)  # other code draws
    before = torch.get_rng_state()
    assert torch.equal(first, initial_adapter(Lora(), 3, policy.layers)[1])
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, initial_adapter(Lora(), 4, policy.layers)[1])


def test_adapter_folder_reads_back_and_is_the_same_bytes_each_time(policy: Policy, tmp_path: Path) -> None:
    layout, _ = initial_adapter(Lora(rank=3, alpha=5), 0, policy.layers)
    vector = trained_vector(layout)
    for name in ("one", "two"):
        write_adapter(tmp_path / name, layout, vector, torch.float32)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert torch.equal(read_adapter(tmp_path / "one", layout), vector)
    assert '"target_modules": [\n    "down_proj",\n    "gate_proj",' in (tmp_path / "one" / "adapter_config.json").read_text()
    assert str(tmp_path) not in (tmp_path / "one" / "adapter_config.json").read_text()
    other = Layout(4, 5, layout.modules)
    with pytest.raises(Reject, match="should have shape"):
        read_adapter(tmp_path / "one", other)


PEFT_FIELDS = {
    "base_model_name_or_path", "inference_mode", "lora_alpha", "peft_type", "r", "revision", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
"""Fields of `adapter_config.json` that PEFT 0.12 and every later version reads; each of them refuses a name that it does not know."""
LOADED = """
import sys
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
by_name = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1])
assert isinstance(by_name, PeftModel) and by_name.active_peft_config.r == 3
assert AutoModelForCausalLM.from_pretrained(sys.argv[1])._hf_peft_config_loaded
"""


def test_adapter_names_its_base_and_loads_by_that_name_in_any_peft(model_folder: Path, tmp_path: Path) -> None:
    """Of a base model in the cache of Hugging Face: no network is there, and no other folder has the model."""
    commit, hub = "a" * 40, tmp_path / "home" / "hub"
    snapshot = hub / "models--acme--some-model" / "snapshots" / commit
    shutil.copytree(model_folder, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(commit)  # transformers reads no revision of an adapter, as PEFT does
    policy = Policy.load(str(snapshot), CPU)
    layout, vector = initial_adapter(Lora(rank=3, rank_stabilized=True), 0, policy.layers)
    write_adapter(tmp_path / "adapter", layout, vector, torch.float32, policy.hub_model)
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (fields["base_model_name_or_path"], fields["revision"]) == ("acme/some-model", commit)
    assert fields.keys() == PEFT_FIELDS
    assert {name: getattr(peft.LoraConfig(**fields), name) for name in fields} == {**fields, "target_modules": {*fields["target_modules"]}}
    offline = {**os.environ, "HF_HOME": str(hub.parent), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", LOADED, str(tmp_path / "adapter")], env=offline, check=True, timeout=200)


def test_nothing_stays_attached_even_when_the_forward_fails(policy: Policy) -> None:
    layout, vector = initial_adapter(Lora(), 0, policy.layers)
    samples = [Sample(t.ids_T + 10_000, t.sampled_T, t.sampler_logprobs_T, 0.0, 1.0) for t in make_groups(1, groups=1)[0].trajectories]
    with pytest.raises(IndexError):
        policy.scores(pack_alone([samples], budget_tokens=999)[0], [Adapted(layout, vector)])
    assert all(layer.attached is None for layer in policy.layers.values())


def test_targets_that_the_model_lacks_are_named(policy: Policy) -> None:
    layers = {name: layer for name, layer in policy.layers.items() if name.endswith("q_proj")}
    with pytest.raises(Reject, match=r"has none of k_proj; it has q_proj"):
        initial_adapter(Lora(targets=("k_proj",)), 0, layers)


def canary(policy: Policy, layout: Layout, vector: torch.Tensor) -> list[float]:
    sample = canary_sample(policy.vocabulary)
    with torch.no_grad():
        return policy.scores(collate([(0, Row(sample.input_tokens, (sample,)))]), [Adapted(layout, vector)]).logprobs_N.tolist()


def test_canary_is_the_same_for_every_policy_and_the_logprobs_are_the_adapters(policy: Policy, model_folder: Path, tmp_path: Path) -> None:
    resident = initial_resident(policy, "a", make_spec())
    vector = trained_vector(resident.layout)
    adapted, base = canary(policy, resident.layout, vector), canary(policy, resident.layout, resident.optimizer.params)
    ids_T = canary_sample(policy.vocabulary).ids_T
    assert len(set(ids_T.tolist())) > 20
    trajectory = Trajectory(0, ids_T, (np.arange(len(ids_T)) > 0).astype(np.uint8), np.zeros(len(ids_T), np.float32), 0.0, False)
    write_adapter(tmp_path, resident.layout, vector, torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    assert base == pytest.approx(logprobs_of(plain, trajectory, 1.0), abs=1e-5)
    assert adapted == pytest.approx(logprobs_of(peft.PeftModel.from_pretrained(plain, tmp_path).eval(), trajectory, 1.0), abs=1e-5)
    assert adapted != base


SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def windowed() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4))


def soft_capped() -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=32, final_logit_softcapping=0.5, initializer_range=0.5))


def unusual_model(make: Callable[[], PreTrainedModel], folder: Path) -> str:
    torch.manual_seed(0)
    make().save_pretrained(folder)
    return str(folder)


def test_model_whose_layers_cannot_share_a_prefix_is_noticed(tmp_path: Path) -> None:
    assert not Policy.load(unusual_model(windowed, tmp_path), CPU).shares_prefixes


def test_model_whose_last_mlp_lets_tokens_meet_is_computed_whole(model_folder: Path) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down_proj = nn.Linear(128, 128, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(x).cumsum(1)

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.model.layers[-1].mlp = Mixing()
    policy = Policy(model, CPU)
    trajectory = Trajectory(
        0, canary_sample(policy.vocabulary).ids_T, (np.arange(24) == 20).astype(np.uint8), np.zeros(24, np.float32), 0.0, False
    )
    sample = Sample(trajectory.ids_T, trajectory.sampled_T, trajectory.sampler_logprobs_T, 0.0, 0.0)
    with torch.no_grad():
        found_N = policy.scores(collate([(0, Row(20, (sample,)))]), [Adapted(NO_ADAPTER, torch.zeros(0))]).logprobs_N
    assert found_N.tolist() == pytest.approx(logprobs_of(model, trajectory, 1.0), abs=1e-4)


def test_model_whose_output_layer_is_not_understood_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="output layer"):
        Policy.load(unusual_model(soft_capped, tmp_path), CPU)


@pytest.mark.parametrize(
    ("kind", "own"), [("mixtral", {"num_local_experts": 4}), ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 8})]
)
def test_mixture_of_experts_is_refused_by_its_architecture(tmp_path: Path, kind: str, own: dict[str, int]) -> None:
    """Otherwise adapters would change its attention alone, and no error would say so."""
    config = AutoConfig.for_model(kind, **SMALL, num_experts_per_tok=2, **own)
    folder = unusual_model(lambda: AutoModelForCausalLM.from_config(config), tmp_path)
    with pytest.raises(Fatal, match=rf"architecture {config.architectures[0]} is a mixture of experts \(model\.layers\.0\."):
        Policy.load(folder, CPU)


def test_experts_in_a_list_are_refused_too(model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.model.layers[-1].mlp.experts = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))
    with pytest.raises(Fatal, match=r"mixture of experts \(model\.layers\.\d+\.mlp\.experts\)"):
        Policy(model, CPU)


@pytest.mark.parametrize(("kind", "fused"), [("phi3", "qkv_proj, gate_up_proj"), ("gpt_neox", "query_key_value"), ("gpt2", "c_attn")])
def test_projections_that_are_fused_in_one_layer_are_refused_by_name(tmp_path: Path, kind: str, fused: str) -> None:
    """Phi-3 has `o_proj` and `down_proj` too, so adapters would train a part of it and nothing would say so."""
    config = AutoConfig.for_model(kind, **SMALL, pad_token_id=0)
    folder = unusual_model(lambda: AutoModelForCausalLM.from_config(config), tmp_path)
    with pytest.raises(Fatal, match=rf"architecture {config.architectures[0]} computes several projections in one layer \({fused}\)"):
        Policy.load(folder, CPU)


def test_linear_layers_that_no_adapter_changes_are_named(model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    with capture_logs() as said:
        Policy(model, CPU)
    assert said == []
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    for layer in model.model.layers:
        layer.mlp.c_fc = nn.Linear(128, 128)
    with capture_logs() as said:
        Policy(model, CPU)
    assert [(entry["event"], entry["layers"]) for entry in said] == [("layers_without_adapters", ["c_fc"])]


def test_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="no-such-model"):
        Policy.load(str(tmp_path / "no-such-model"), CPU)


def test_weights_file_holds_what_vllm_expects(policy: Policy, tmp_path: Path) -> None:
    layout, vector = initial_adapter(Lora(rank=2, targets=("o_proj",)), 0, policy.layers)
    write_adapter(tmp_path, layout, vector, torch.bfloat16)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert tensors["base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"].shape == (2, 128)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_gpu_has_no_cudnn_attention_and_allocators_of_its_own() -> None:
    try:
        prepare_torch(1, torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch._C._accelerator_getAllocatorSettings() == GPU_ALLOCATORS
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:512")  # an operator's PYTORCH_ALLOC_CONF
        prepare_torch(1, torch.device("cuda"))
        assert torch._C._accelerator_getAllocatorSettings() == "max_split_size_mb:512"
    finally:
        torch._C._accelerator_setAllocatorSettings("")
        prepare_torch(1, CPU)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert torch._C._accelerator_getAllocatorSettings() == ""


@pytest.mark.parametrize("name", [setting.partition(":")[0] for setting in GPU_ALLOCATORS.split(",")])
def test_installed_torch_knows_the_allocators_settings(name: str) -> None:
    """A build for CPUs ignores a name that it does not know; the value of one that it knows is parsed."""
    with pytest.raises(ValueError, match=r"Expected 'True' or 'False'|stoull"):
        torch._C._accelerator_setAllocatorSettings(f"{name}:neither")
    torch._C._accelerator_setAllocatorSettings("neither:neither")
    torch._C._accelerator_setAllocatorSettings("")
