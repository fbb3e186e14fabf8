"""Blobs, adapters, checkpoints, and the tokens of a trajectory."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from common.formats.wrong_values import described
from common.messages.base import Value
from common.spec import TASK_ID_PATTERN

BLOB_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""Pattern of blobs' names: without path separators, because services name files after them."""
SHA256_PATTERN = described(r"^[0-9a-f]{64}$", "a SHA-256 digest, 64 hexadecimal digits")


class BlobRef(Value):
    """An immutable object in the blob store."""

    name: str = Field(pattern=BLOB_NAME_PATTERN)
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=SHA256_PATTERN)


class CheckpointRef(BlobRef):
    """Source for resuming training: a version's state, or the blob from which it is recomputed."""

    since: int | None = None
    """Latest earlier version whose state is stored (0: the spec's); later steps are recomputed from their batches.
    None if the blob contains the state itself.
    """


class Canary(Value):
    """A fixed token sequence and the log-probabilities that the trainer gives it under the new adapter.

    Shapes: `ids` (T,) int32; `logprobs` (T-1,) float32, of tokens 1…T-1 at temperature 1.
    """

    ids: bytes
    logprobs: bytes


class AdapterRef(Value):
    """One version of a task's adapter: a PEFT folder in the blob store. Never reused, never overwritten."""

    task: str = Field(pattern=TASK_ID_PATTERN)
    version: int = Field(ge=0)
    """0 only if the task starts from another task's adapter."""
    rank: int
    blob: BlobRef
    canary: Canary

    @property
    def name(self) -> str:
        return f"{self.task}.v{self.version}"

    @property
    def engine_name(self) -> str:
        """Name in the engine. It includes the digest, because a step that ran twice may have made two adapters of one version."""
        return f"{self.name}-{self.blob.sha256[:12]}"


class TokenRecord(Value):
    """Tokens of one trajectory so far, prompt and replies in order, never re-encoded.

    Shapes: all (T,). `ids` int32; `logprobs` float32, under the distribution that was sampled from (0 if not sampled);
    `sampled` uint8, 1 if the policy chose the token.
    """

    ids: bytes = b""
    logprobs: bytes = b""
    sampled: bytes = b""

    @model_validator(mode="after")
    def _one_entry_per_token(self) -> Self:
        if not len(self.ids) == len(self.logprobs) == 4 * len(self.sampled):
            raise ValueError(
                f"ids, logprobs and sampled differ in length: {len(self.ids)}, {len(self.logprobs)}, {len(self.sampled)} bytes"
            )
        return self

    def __len__(self) -> int:
        return len(self.sampled)

    @property
    def sampled_tokens(self) -> int:
        return self.sampled.count(1)

    @property
    def longest_turn_tokens(self) -> int:
        """Sampled tokens of the longest turn. There is always context between two turns, so a run of sampled tokens is one turn."""
        return longest_run(self.sampled)

    def ids_T(self) -> NDArray[np.int32]:
        return np.frombuffer(self.ids, dtype="<i4")

    def logprobs_T(self) -> NDArray[np.float32]:
        return np.frombuffer(self.logprobs, dtype="<f4")

    def sampled_T(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.sampled, dtype=np.uint8)

    def with_context(self, ids: list[int]) -> "TokenRecord":
        """This record with appended tokens that the policy did not choose."""
        return self._extended(ids, [0.0] * len(ids), sampled=0)

    def with_sampled(self, ids: list[int], logprobs: list[float]) -> "TokenRecord":
        """This record with appended tokens that the policy chose."""
        return self._extended(ids, logprobs, sampled=1)

    def _extended(self, ids: list[int], logprobs: list[float], *, sampled: int) -> "TokenRecord":
        return TokenRecord(
            ids=self.ids + np.asarray(ids, dtype="<i4").tobytes(),
            logprobs=self.logprobs + np.asarray(logprobs, dtype="<f4").tobytes(),
            sampled=self.sampled + bytes([sampled]) * len(ids),
        )


def longest_run(sampled: bytes) -> int:
    """Length of the longest run of ones in a mask of zeros and ones."""
    return max(map(len, sampled.split(b"\0")))
