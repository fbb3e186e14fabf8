"""How trajectories become rows of tokens: each shared prompt is computed once, and little is padded. Pure.

The attempts of a group begin with the same prompt. A row holds that prompt once, then what each attempt adds to it:

    tokens      p p p p  a a a  b b  c c c c
    branch      0 0 0 0  1 1 1  2 2  3 3 3 3
    position    0 1 2 3  4 5 6  4 5  4 5 6 7

A token attends to earlier tokens of branch 0 and of its own branch (`attention_plan.py`), so it sees exactly what it would see alone. What
follows an attempt's last sampled token is not computed, and neither is that token itself: it is only predicted.

Rows of several tasks may be in one micro-batch. Each task's rows follow each other there, and so do its tokens: a `Segment`.
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
"""Below this, computing a micro-batch costs more than the padding that a smaller one would avoid."""
MAX_PADDING = 0.15
"""Share of a row that may be padding before a new micro-batch is begun."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One trajectory with its part in the loss.

    Shapes: all arrays (T,); `ids_T` int32, `sampled_T` uint8, `logprobs_T` float32, the sampler's.
    """

    ids_T: NDArray[np.int32]
    sampled_T: NDArray[np.uint8]
    logprobs_T: NDArray[np.float32]
    advantage: float
    weight: float
    """Of each of its sampled tokens in the loss."""
    staleness: int = 0

    @cached_property
    def sampled_N(self) -> NDArray[np.int64]:
        """Where its sampled tokens are."""
        return self.sampled_T.nonzero()[0]

    @cached_property
    def input_tokens(self) -> int:
        """Tokens to compute: those before the last sampled one. 0 when nothing was sampled."""
        return int(self.sampled_N[-1]) if len(self.sampled_N) else 0


@dataclass(frozen=True)
class Row:
    """Samples that share their first `prefix` tokens, none of them sampled; a lone sample shares all it has."""

    prefix: int
    samples: tuple[Sample, ...]
    branches_per_span: int = 1

    @cached_property
    def tokens(self) -> int:
        return self.prefix + sum(sample.input_tokens - self.prefix for sample in self.samples)


@dataclass(frozen=True)
class Segment:
    """What one owner (an index into the lists that were packed) has of a micro-batch: ranges of rows and of sampled tokens."""

    owner: int
    rows: slice
    sampled: slice


@dataclass(frozen=True, eq=False)
class Packed:
    """One micro-batch as arrays. B rows, T columns, N sampled tokens, row by row and sample by sample.

    `predictor_N` is the flat index (row · T + column) of the token before each sampled one, and it always is a real
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
    """Which sample of the micro-batch each sampled token is of, counted from 0."""
    staleness_N: NDArray[np.int16]
    segments: tuple[Segment, ...]
    """In the order of rows; together they are all of them."""
    spans: Spans | None
    """How rows with branches attend; None where there are none, so that plain causal attention is right."""


def pack(owners: Sequence_[Sequence_[Row]], *, budget_tokens: int) -> list[Packed]:
    """Micro-batches of at most `budget_tokens` padded tokens (one row may exceed it alone), the longest rows first.

    Rows of all owners are mixed, as far as lengths go together; each owner's stay in their order.
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
    """The rows of one owner's groups, the longest first.

    `width` is the model's hidden size: it says what attention costs against the rest. Samples without a sampled token
    are left out. With `shared` off every sample has a row of its own.
    """
    rows = [row for group in groups for row in rows_of_group(group, budget_tokens=budget_tokens, width=width, shared=shared)]
    return sorted(rows, key=lambda row: row.tokens, reverse=True)


def _fits(micro_batch: list[tuple[int, Row]], row: Row, budget_tokens: int) -> bool:
    width = micro_batch[0][1].tokens
    padded = width * len(micro_batch)
    return padded + width <= budget_tokens and (row.tokens >= (1 - MAX_PADDING) * width or padded < MIN_MICRO_BATCH_TOKENS)


def rows_of_group(group: Sequence_[Sample], *, budget_tokens: int, width: int, shared: bool) -> list[Row]:
    """The group's samples, those with most tokens first, in as few rows as the budget allows."""
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
    """What a step of these groups has to compute, as far as can be said before it is packed: each prompt once."""
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
    """How many first tokens all samples share before any of them sampled one."""
    length = min(int(sample.sampled_N[0]) for sample in samples)
    ids_S_T = np.stack([sample.ids_T[:length] for sample in samples])
    differs_T = (ids_S_T[1:] != ids_S_T[0]).any(axis=0)
    return int(differs_T.argmax()) if differs_T.any() else length


def collate(owned: Sequence_[tuple[int, Row]]) -> Packed:
    """The rows, each with its owner, as arrays: owner by owner, padded to the longest."""
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
