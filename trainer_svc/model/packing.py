"""Packing of trajectories into rows of tokens: each shared prompt is computed once, with little padding. Pure.

The attempts of a group begin with the same prompt. A row holds that prompt once, then each attempt's own tokens:

    tokens      p p p p  a a a  b b  c c c c
    branch      0 0 0 0  1 1 1  2 2  3 3 3 3
    position    0 1 2 3  4 5 6  4 5  4 5 6 7

A token attends to earlier tokens of branch 0 and of its own branch (`attention_plan.py`), exactly as in a row of its own.
An attempt's last sampled token is only predicted, so neither it nor later tokens are computed.
A micro-batch may have rows of several tasks. Each task's rows, and its tokens, are contiguous: a `Segment`.
"""

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from trainer_svc.batch import Group
from trainer_svc.model.attention_plan import Span, Spans, branches_per_span, spans_of

PAD = -1
MIN_MICRO_BATCH_TOKENS = 1024
"""Minimum padded tokens of a micro-batch before another costs less than the padding that it avoids."""
MAX_PADDING = 0.15
"""Maximum share of padding in a row; beyond it a new micro-batch starts."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One trajectory with its advantage and its weight in the loss.

    Shapes: all arrays (T,); `ids_T` int32, `sampled_T` uint8, `logprobs_T` float32, of the sampler.
    """

    ids_T: NDArray[np.int32]
    sampled_T: NDArray[np.uint8]
    logprobs_T: NDArray[np.float32]
    advantage: float
    weight: float
    """Weight of each sampled token in the loss."""
    staleness: int = 0

    @cached_property
    def sampled_N(self) -> NDArray[np.int64]:
        """Positions of the sampled tokens."""
        return self.sampled_T.nonzero()[0]

    @cached_property
    def input_tokens(self) -> int:
        """Number of tokens to compute: those before the last sampled token. 0 if nothing was sampled."""
        return int(self.sampled_N[-1]) if len(self.sampled_N) else 0


@dataclass(frozen=True)
class Row:
    """Samples that share their first `prefix` tokens, none of them sampled; the prefix of a single sample is all its tokens."""

    prefix: int
    samples: tuple[Sample, ...]
    branches_per_span: int = 1

    @cached_property
    def tokens(self) -> int:
        return self.prefix + sum(sample.input_tokens - self.prefix for sample in self.samples)


@dataclass(frozen=True)
class Segment:
    """Ranges of rows and of sampled tokens of one owner in a micro-batch. `owner`: index into the lists given to `pack`."""

    owner: int
    rows: slice
    sampled: slice


@dataclass(frozen=True, eq=False)
class Packed:
    """One micro-batch as arrays. B rows, T columns, N sampled tokens, ordered by row, then by sample.

    `predictor_N` is the flat index (row · T + column) of the token before each sampled one, and is always a real
    token; `branch_B_T` is PAD in unused columns.
    """

    ids_B_T: NDArray[np.int64]
    positions_B_T: NDArray[np.int64]
    branch_B_T: NDArray[np.int16]
    predictor_N: NDArray[np.int64]
    target_N: NDArray[np.int64]
    sampler_logprobs_N: NDArray[np.float32]
    advantages_N: NDArray[np.float32]
    weights_N: NDArray[np.float32]
    sequence_N: NDArray[np.int64]
    """Index in the micro-batch of each sampled token's sample."""
    staleness_N: NDArray[np.int16]
    segments: tuple[Segment, ...]
    """Segments in the order of rows; together they cover all rows."""
    spans: Spans | None
    """Attention plan of rows with branches; None if no row has any, for which plain causal attention suffices."""


def pack(owners: Sequence_[Sequence_[Row]], *, budget_tokens: int) -> list[Packed]:
    """Micro-batches of at most `budget_tokens` padded tokens (a single row may exceed it), by descending row length.

    Rows of all owners are mixed, as far as their lengths fit; each owner's rows keep their order.
    """
    rows = [(owner, row) for owner, owned in enumerate(owners) for row in owned]
    rows.sort(key=lambda item: item[1].tokens, reverse=True)
    found: list[list[tuple[int, Row]]] = []
    for owner, row in rows:
        if not found or not _fits(found[-1], row, budget_tokens):
            found.append([])
        found[-1].append((owner, row))
    return [collate(micro_batch) for micro_batch in found]


def rows_of(groups: Sequence_[Sequence_[Sample]], *, budget_tokens: int, width: int, shared: bool = True) -> list[Row]:
    """Rows of one owner's groups, by descending length; excludes samples without a sampled token.

    `width` is the model's hidden size, which sets the relative cost of attention. Without `shared` every sample has its own row.
    """
    rows = [row for group in groups for row in rows_of_group(group, budget_tokens=budget_tokens, width=width, shared=shared)]
    return sorted(rows, key=lambda row: row.tokens, reverse=True)


def _fits(micro_batch: list[tuple[int, Row]], row: Row, budget_tokens: int) -> bool:
    width = micro_batch[0][1].tokens
    padded = width * len(micro_batch)
    return padded + width <= budget_tokens and (row.tokens >= (1 - MAX_PADDING) * width or padded < MIN_MICRO_BATCH_TOKENS)


def rows_of_group(group: Sequence_[Sample], *, budget_tokens: int, width: int, shared: bool) -> list[Row]:
    """Rows of one group's samples, filled in order of descending tokens, each up to the budget; without a shared prefix one a sample."""
    samples = sorted((sample for sample in group if sample.input_tokens), key=lambda sample: sample.input_tokens, reverse=True)
    prefix = common_prefix(samples) if shared and len(samples) > 1 else 0
    members: list[list[Sample]] = []
    tokens = 0
    for sample in samples:
        own = sample.input_tokens - prefix
        if not members or not prefix or tokens + own > budget_tokens:
            members.append([])
            tokens = prefix
        members[-1].append(sample)
        tokens += own
    return [_row(prefix, row, width) for row in members]


def unpadded_tokens(groups: Sequence_[Group]) -> int:
    """Estimated tokens that a step of these groups computes, before packing: each prompt once."""
    found = 0
    for group in groups:
        prompts = [int(np.argmax(trajectory.sampled_T)) for trajectory in group.trajectories]
        found += max(prompts) + sum(len(t.ids_T) - prompt for t, prompt in zip(group.trajectories, prompts, strict=True))
    return found


def _row(prefix: int, samples: list[Sample], width: int) -> Row:
    if len(samples) == 1:
        return Row(samples[0].input_tokens, tuple(samples))
    return Row(prefix, tuple(samples), branches_per_span([sample.input_tokens - prefix for sample in samples], prefix, width))


def common_prefix(samples: Sequence_[Sample]) -> int:
    """Length of the samples' common prefix before any sampled token."""
    length = min(int(sample.sampled_N[0]) for sample in samples)
    ids_S_T = np.stack([sample.ids_T[:length] for sample in samples])
    differs_T = (ids_S_T[1:] != ids_S_T[0]).any(axis=0)
    return int(differs_T.argmax()) if differs_T.any() else length


def collate(owned: Sequence_[tuple[int, Row]]) -> Packed:
    """Arrays of one micro-batch from (owner, row) pairs: ordered by owner, padded to the longest row."""
    owned = sorted(owned, key=lambda item: item[0])
    rows = [row for _, row in owned]
    shape = (len(rows), max(row.tokens for row in rows))
    ids_B_T = np.zeros(shape, np.int64)
    positions_B_T = np.zeros(shape, np.int64)
    branch_B_T = np.full(shape, PAD, np.int16)
    predictors: list[NDArray[np.int64]] = []
    prefixes, branches = list[Span](), list[Span]()
    for index, row in enumerate(rows):
        prefix = row.prefix
        ids_B_T[index, :prefix] = row.samples[0].ids_T[:prefix]
        positions_B_T[index, :prefix] = np.arange(prefix)
        branch_B_T[index, :prefix] = 0
        prefix_P = np.arange(prefix) + index * shape[1]
        prefixes.append(Span(prefix_P, prefix_P))
        start, ends = prefix, [prefix]
        for number, sample in enumerate(row.samples, start=1):
            end = start + sample.input_tokens - prefix
            ids_B_T[index, start:end] = sample.ids_T[prefix : sample.input_tokens]
            positions_B_T[index, start:end] = np.arange(prefix, sample.input_tokens)
            branch_B_T[index, start:end] = number
            before = sample.sampled_N - 1
            predictors.append(index * shape[1] + np.where(before < prefix, before, before + start - prefix))
            start = end
            ends.append(end)
        ends = [*ends[: -1 : row.branches_per_span], row.tokens]
        for start, end in pairwise(ends if len(row.samples) > 1 else []):
            own_Q = np.arange(start, end) + index * shape[1]
            if len(own_Q):
                branches.append(Span(own_Q, np.concatenate([prefix_P, own_Q])))
    samples = [sample for row in rows for sample in row.samples]
    counts = [len(sample.sampled_N) for sample in samples]
    return Packed(
        ids_B_T,
        positions_B_T,
        branch_B_T,
        predictor_N=np.concatenate(predictors),
        target_N=np.concatenate([sample.ids_T[sample.sampled_N] for sample in samples]).astype(np.int64),
        sampler_logprobs_N=np.concatenate([sample.logprobs_T[sample.sampled_N] for sample in samples]),
        advantages_N=np.repeat(np.array([sample.advantage for sample in samples], np.float32), counts),
        weights_N=np.repeat(np.array([sample.weight for sample in samples], np.float32), counts),
        sequence_N=np.repeat(np.arange(len(samples)), counts),
        staleness_N=np.repeat(np.array([sample.staleness for sample in samples], np.int16), counts),
        segments=_segments(owned),
        spans=spans_of(prefixes, branches, columns=shape[1]) if branches else None,
    )


def _segments(owned: Sequence_[tuple[int, Row]]) -> tuple[Segment, ...]:
    found: list[Segment] = []
    row = token = 0
    for owner, members in groupby(owned, key=lambda item: item[0]):
        rows = [row for _, row in members]
        sampled = sum(len(sample.sampled_N) for row in rows for sample in row.samples)
        found.append(Segment(owner, slice(row, row + len(rows)), slice(token, token + sampled)))
        row, token = row + len(rows), token + sampled
    return tuple(found)
