"""A pool in bfloat16: stored adapters are bfloat16, masters and moments float32."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from common.blobs import Blobs
from common.bus import Bus
from common.pools import Pool, precision_on
from tests.support.trainer.batches import SPECS
from tests.trainer.lineages import fresh, recomputed, steps
from trainer_svc.learner import Learner
from trainer_svc.model.adapter import WEIGHTS_FILE, read_adapter
from trainer_svc.model.packing import Row, collate
from trainer_svc.model.policy import NO_ADAPTER, Adapted, Policy, canary_sample
from trainer_svc.state.checkpoint import read_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rough(model_folder: Path) -> Iterator[Learner]:
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield Learner(Policy.load(str(model_folder), CPU, "bfloat16"), thread, budget_tokens=1024)


def test_precision_follows_the_device_unless_the_pool_says_it() -> None:
    assert [precision_on("auto", cpu=cpu) for cpu in (True, False)] == ["float32", "bfloat16"]
    assert [precision_on("bfloat16", cpu=cpu) for cpu in (True, False)] == ["bfloat16", "bfloat16"]


async def test_adapter_is_stored_in_the_pools_precision_and_masters_in_float32(
    bus: Bus, learner: Learner, rough: Learner, tmp_path: Path
) -> None:
    exact = await steps(bus, fresh(bus, learner), 1)
    (update,) = await steps(bus, fresh(bus, rough), 1)
    tensors = load_file(await Blobs(bus).fetch_folder(update.adapter.blob, tmp_path / "adapter") / WEIGHTS_FILE)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert update.adapter.blob.size_bytes < 0.6 * exact[0].adapter.blob.size_bytes
    found = read_checkpoint(await Blobs(bus).fetch_folder(update.checkpoint, tmp_path / "checkpoint"), "a", 1, SPECS["a"], CPU)
    params = found.optimizer.params
    assert {vector.dtype for vector in (params, found.optimizer.exp_avg, found.optimizer.exp_avg_sq)} == {torch.float32}
    assert not torch.equal(params, params.bfloat16().float())
    assert torch.equal(read_adapter(tmp_path / "adapter", found.layout), params.bfloat16().float())


async def test_lost_state_is_recomputed_to_the_same_digests_in_bfloat16(bus: Bus, rough: Learner) -> None:
    kept = await steps(bus, fresh(bus, rough), 4)
    counted = recomputed()
    (after,) = await steps(bus, fresh(bus, rough), 1, first=3, checkpoint=kept[2].checkpoint)
    assert recomputed() - counted == 2
    assert (after.adapter, after.checkpoint) == (kept[3].adapter, kept[3].checkpoint)


async def test_trainer_computes_logits_in_the_precision_of_its_pool(model_folder: Path) -> None:
    """Against float64 logits of the same hidden states."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    sample = canary_sample(model.config.vocab_size)
    ids = torch.from_numpy(sample.ids_T.astype("int64"))
    with torch.no_grad():
        hidden_T_H = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, :-1]
        expected_T = (hidden_T_H.double() @ model.lm_head.weight.double().t()).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    apart: dict[str, float] = {}
    for head in ("model", "float32"):
        pool = Pool.model_validate({"model": str(model_folder), "precision": "bfloat16", "head": head})
        policy = (await Learner.start(pool, device="cpu", threads=1))._policy
        with torch.no_grad():
            packed = collate([(0, Row(sample.input_tokens, (sample,)))])
            found_T = policy.scores(packed, [Adapted(NO_ADAPTER, torch.zeros(0))]).logprobs_N
        apart[head] = (found_T - expected_T).abs().max().item()
    assert apart["float32"] < 1e-4
    assert apart["model"] > 5e-3
