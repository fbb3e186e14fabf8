"""transformers and PEFT, in float32, with adapters as the HTTP door gives them."""

import io
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness.report import ROOT

MODEL = ROOT / "models" / "tiny"


class Oracle:
    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def judge(self, prompt: list[int], sampled: list[int], banned: tuple[int, ...] = ()) -> tuple[list[float], list[float]]:
        """Of each sampled token its log-probability, and how far the likeliest one is above it; 0 where it is the likeliest.

        `banned`: tokens whose logits are 100 lower.
        """
        logits = self._model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1].float()
        logits[:, list(banned)] -= 100.0
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(sampled)[:, None])[:, 0]
        return chosen.tolist(), (logprobs.max(-1).values - chosen).tolist()


@contextmanager
def oracle(adapter_tar: bytes | None) -> Generator[Oracle]:
    """With the adapter of an `adapter.tar`; None: the base model."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        if adapter_tar is not None:
            with tarfile.open(fileobj=io.BytesIO(adapter_tar)) as tar:
                tar.extractall(folder, filter="data")
            [config] = Path(folder).rglob("adapter_config.json")
            model = PeftModel.from_pretrained(model, str(config.parent)).eval()
        yield Oracle(model)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)
