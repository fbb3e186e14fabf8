"""Times of many steps as bytes: the answer of `ask.<tenant>.timeline`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MISSING = -(2**31)
"""Value for a stage that has not ended."""
RECORD = np.dtype([("version", "<i4"), ("admitted_s", "<f8"), ("ms", "<i4", (5,))])
"""A step in 32 bytes: the version that it made, the Unix time at which its first group was admitted, and milliseconds from then until five
moments: the last group was sampled, the batch was formed, the trainer started, the trainer ended, and the task got the version. The
trainer's two moments are by its own clock.
"""


def pack_steps(versions: Sequence[int], admitted_s: Sequence[float], offsets_s: Sequence[Sequence[float | None]]) -> bytes:
    """Records as bytes. `offsets_s`: five sequences of seconds since admission."""
    found = np.empty(len(versions), RECORD)
    found["version"], found["admitted_s"] = versions, admitted_s
    ms = np.round(1000 * np.array(offsets_s, dtype=np.float64).reshape(5, len(versions)).T)
    found["ms"] = np.where(np.isnan(ms), MISSING, np.clip(np.nan_to_num(ms), MISSING + 1, -MISSING - 1)).astype(np.int32)
    return found.tobytes()


def unpack_steps(packed: bytes) -> NDArray[np.void]:
    """Records of packed steps. Raises: ValueError if the size is not a multiple of a record's."""
    return np.frombuffer(packed, RECORD)
