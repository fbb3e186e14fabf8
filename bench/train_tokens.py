"""Largest micro-batch by base model and device memory: `python -m bench.train_tokens`. Writes bench/results/train-tokens.json.

Nothing is trained: sizes are by the estimate of `common/pools/memory.py`, with activations kept and (of all layers but the last)
recomputed, in bfloat16, for a trainer that has a share of the GPU's memory. They are multiples of
`STEP_TOKENS`; 0 means that not even one of these fits.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product

from bench.harness import report
from bench.harness.models import QWEN3
from common.pools.memory import GIB, ModelShape, train_memory

STEP_TOKENS = 256


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    rows: list[dict[str, int | float | str]] = []
    for gpu_gib, share in product(map(int, args.gpu_gib.split(",")), map(float, args.shares.split(","))):
        for model, config in QWEN3.items():
            shape = ModelShape.of(config)
            assert shape is not None
            limit = int(gpu_gib * share * GIB)
            kept, recomputed = (largest(shape, limit, rank=args.rank, recomputed=layers) for layers in (0, shape.layers - 1))
            rows.append({"model": model, "gpu_gib": gpu_gib, "share": share, "kept": kept, "recomputed": recomputed})
            print(json.dumps(rows[-1]), flush=True)
    print(f"written: {report.write(args.name, {'machine': report.machine(), 'rank': args.rank, 'rows': rows}, ['common/pools/memory.py'])}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-gib", default="24,80", help="memory of GPUs")
    parser.add_argument("--shares", default="0.4,1.0", help="parts of it that the trainer has; 0.4 is what the default engine leaves")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--name", default="train-tokens", help="of the file in bench/results")
    return parser.parse_args(argv)


def largest(shape: ModelShape, limit: int, *, rank: int, recomputed: int) -> int:
    """Most tokens, in steps of `STEP_TOKENS`, whose estimate is within `limit` bytes."""

    def fits(steps: int) -> bool:
        tokens = steps * STEP_TOKENS
        return train_memory(shape, rank=rank, tokens=tokens, precision="bfloat16", on_cpu=False, recomputed=recomputed).total <= limit

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * STEP_TOKENS


if __name__ == "__main__":
    main()
