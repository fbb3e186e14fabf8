"""Three base models of other depth and width for shared accelerators: `python -m bench.plex.real.bases FOLDER`.

`small` is models/tiny (0.86 M parameters, trained). `middle` (about 14 M) and `large` (about 50 M) have random weights from a fixed seed
and the tiny model's tokenizer. They sample nonsense, for as many tokens as a task allows: time and memory are measured, not learning.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.harness.models import QWEN3_0_6B, random_model
from bench.harness.report import ROOT

TINY = ROOT / "models" / "tiny"
TOKENIZER = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SHAPE: dict[str, Any] = QWEN3_0_6B | {"vocab_size": 576, "num_key_value_heads": 2, "head_dim": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "middle": SHAPE | {"num_hidden_layers": 9, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6},
    "large": SHAPE | {"num_hidden_layers": 12, "hidden_size": 640, "intermediate_size": 1728, "num_attention_heads": 10},
}
NAMES = ("small", *SHAPES)


def make(folder: Path) -> dict[str, Path]:
    """The folder of each base model by name; made where it is not there yet."""
    found = {"small": TINY}
    for name, shape in SHAPES.items():
        found[name] = folder / name
        if not (folder / name / "model.safetensors").exists():
            _make(folder / name, shape)
    return found


def _make(folder: Path, shape: dict[str, Any]) -> None:
    import torch
    from transformers import GenerationMixin, PreTrainedModel

    folder.mkdir(parents=True, exist_ok=True)
    tiny = json.loads((TINY / "config.json").read_text())
    ends = {key: tiny[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in tiny}
    model = random_model(shape | ends, torch.float32, torch.device("cpu"))
    assert isinstance(model, PreTrainedModel | GenerationMixin)
    model.save_pretrained(folder)
    for name in TOKENIZER:
        shutil.copy(TINY / name, folder / name)


if __name__ == "__main__":
    for base, at in make(Path(sys.argv[1])).items():
        print(base, at, f"{sum(one.stat().st_size for one in at.glob('*.safetensors')) / 4e6:.1f} M parameters")
