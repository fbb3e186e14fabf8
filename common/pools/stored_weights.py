"""Bytes of a model's weights once they are loaded, from the headers of its files."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.pools.memory import ELEMENT_BYTES, Precision

WEIGHT_FILES = "*.safetensors"
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 2**20
"""As in safetensors' format."""
CONVERTED = ("F64", "F32", "F16", "BF16")
"""Types of tensors that are loaded in the pool's precision; others are kept as they are stored."""


def loaded_bytes(folder: Path, precision: Precision) -> int:
    """Bytes of all tensors in the folder's files; the size of a file whose header cannot be read; 0 where there are none."""
    return sum(_loaded(file, ELEMENT_BYTES[precision]) for file in folder.glob(WEIGHT_FILES))


def _loaded(file: Path, element_bytes: int) -> int:
    try:
        return sum(
            math.prod(tensor["shape"]) * element_bytes
            if tensor["dtype"] in CONVERTED
            else tensor["data_offsets"][1] - tensor["data_offsets"][0]
            for tensor in _tensors(file)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return file.stat().st_size if file.exists() else 0


def _tensors(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(HEADER_LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{file} is not a file of safetensors")
        header: dict[str, dict[str, Any]] = json.loads(opened.read(length))
    return (tensor for name, tensor in header.items() if name != "__metadata__")
