"""transformers with PEFT as the oracle of what an engine must answer, and versions that it has checked."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from common.blobs import Blobs
from common.messages import AdapterRef, Canary
from rollout_svc.engine.engine import Sampled
from tests.support.rollout.requests import POOL, PROMPT

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Oracle:
    """The same model in transformers, and PEFT adapters with random weights."""

    def __init__(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._folder = folder
        base: Any = AutoModelForCausalLM.from_pretrained(POOL.model, dtype=torch.float32)
        self._model: Any = get_peft_model(base, LoraConfig(r=1, target_modules=["q_proj"]), adapter_name="none").eval()

    def adapter(self, name: str, *, seed: int, rank: int = 8, size: float = 0.05) -> Path:
        """A PEFT folder whose adapter changes every layer. A larger `size` changes more."""
        from peft import LoraConfig

        self._model.add_adapter(name, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))
        generator = self._torch.Generator().manual_seed(seed)
        for key, value in self._model.named_parameters():
            if f".{name}." in key:
                value.data = self._torch.randn(value.shape, generator=generator) * size
        self._model.save_pretrained(self._folder, selected_adapters=[name])
        return self._folder / name

    def logprobs(self, ids: Sequence[int], adapter: str | None, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities of tokens 1…T-1 of `ids` (T,)."""
        return np.take_along_axis(self.distributions(ids, adapter, temperature), np.asarray(ids[1:])[:, None], 1)[:, 0]

    def distributions(self, ids: Sequence[int], adapter: str | None, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities (T-1, V) of every token in the places 1…T-1 of `ids` (T,)."""
        with self._torch.no_grad(), self._using(adapter):
            logits_T_V = self._model(self._torch.tensor([list(ids)])).logits[0, :-1].double() / temperature
        return logits_T_V.log_softmax(-1).numpy()

    @contextmanager
    def _using(self, adapter: str | None) -> Generator[None]:
        if adapter is None:
            with self._model.disable_adapter():
                yield
        else:
            self._model.set_adapter(adapter)
            yield


def expected(oracle: Oracle, prompt: Sequence[int], sampled: Sampled, adapter: str | None, temperature: float = 1.0) -> np.ndarray:
    """The oracle's log-probabilities of the sampled tokens."""
    return oracle.logprobs([*prompt, *sampled.ids], adapter, temperature)[len(prompt) - 1 :]


async def published(blobs: Blobs, oracle: Oracle, task: str, version: int, *, seed: int) -> AdapterRef:
    """A version as the trainer publishes it, checked by the oracle instead. Its PEFT name is `peft_name(it)`."""
    name = f"{task}-v{version}"
    blob = await blobs.put_folder(f"{task}.v{version}.adapter", oracle.adapter(name, seed=seed))
    canary = Canary(ids=np.asarray(PROMPT, "<i4").tobytes(), logprobs=oracle.logprobs(PROMPT, name).astype("<f4").tobytes())
    return AdapterRef(task=task, version=version, rank=8, blob=blob, canary=canary)


def peft_name(ref: AdapterRef) -> str:
    return f"{ref.task}-v{ref.version}"
