"""Attention plan: spans of tokens of rows with branches that attend together. Pure.

Attention over a whole row would mask out nearly all its pairs. A row is therefore cut into spans: the prefix, with plain causal
attention, and the branches, one or a few per span, each attending to the prefix and itself. Spans of similar size form a
block, which is one call. Every token is in one span's queries.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_PADDING_RATIO = 4
"""Maximum ratio of a span's padded to its own query-key pairs; beyond it the span starts a new block."""
SMALL_PAIRS = 4096
"""Maximum padded query-key pairs of a span that joins its block regardless of padding: another call would cost more."""
KEYS_PER_TOKEN = 8
"""Number of keys whose copy for the backward pass costs as much as computing one token."""
UNUSED = -1


@dataclass(frozen=True, eq=False)
class Span:
    """Tokens by their flat indices (row · T + column). A prefix's queries are its keys."""

    queries_Q: NDArray[np.int64]
    keys_K: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Block:
    """S spans in one call, padded with their first token; `keys_S`: number of real keys of each.

    `causal`: each token attends to all tokens up to itself. Otherwise position and branch decide (`attention.visible`).
    """

    queries_S_Q: NDArray[np.int64]
    keys_S_K: NDArray[np.int64]
    keys_S: NDArray[np.int64]
    causal: bool


@dataclass(frozen=True, eq=False)
class Spans:
    blocks: tuple[Block, ...]
    result_index_N: NDArray[np.int64]
    """Index (B · T,) of each token's result in the flat results of all blocks.

    Unused columns have the index of their row's first token: another row may be another task's, whose non-finite values would leak in.
    """


def spans_of(prefixes: Sequence[Span], branches: Iterable[Span], *, columns: int) -> Spans:
    """Plan for `prefixes`, one per row in the rows' order, and their branches; `columns` is T."""
    found = [(spans, True) for spans in _blocks(prefixes)] + [(spans, False) for spans in _blocks(branches)]
    result_index_B_T, start = np.full((len(prefixes), columns), UNUSED, np.int64), 0
    result_index_N = result_index_B_T.reshape(-1)
    for spans, _ in found:
        width = max(len(span.queries_Q) for span in spans)
        for span in spans:
            result_index_N[span.queries_Q] = np.arange(start, start + len(span.queries_Q))
            start += width
    np.copyto(result_index_B_T, result_index_B_T[:, :1].copy(), where=result_index_B_T == UNUSED)
    return Spans(tuple(_block(spans, causal=causal) for spans, causal in found), result_index_N)


def branches_per_span(branches: list[int], prefix: int, width: int) -> int:
    """Cheapest number of branches per span, given their tokens. `width`: the model's hidden size, as in `pair_tokens`."""

    def cost(members: int) -> float:
        queries = [sum(branches[start : start + members]) for start in range(0, len(branches), members)]
        return sum((own + prefix) / KEYS_PER_TOKEN + pair_tokens(own * (own + prefix), width) for own in queries)

    return min([*(2**power for power in range((len(branches) - 1).bit_length())), len(branches)], key=cost)


def pair_tokens(pairs: int, width: int) -> float:
    """Cost of query-key pairs, in tokens. A typical layer's matrices take 24·width² operations per token and attention
    4·width per pair, at about a third of the speed: 2·width pairs cost as much as a token."""
    return pairs / (2 * width)


def _blocks(spans: Iterable[Span]) -> list[list[Span]]:
    found: list[list[Span]] = []
    widths = (0, 0)
    for span in sorted(spans, key=_pairs, reverse=True):
        padded = max(widths[0], len(span.queries_Q)), max(widths[1], len(span.keys_K))
        if not found or padded[0] * padded[1] > max(SMALL_PAIRS, MAX_PADDING_RATIO * _pairs(span)):
            found.append([])
            padded = len(span.queries_Q), len(span.keys_K)
        found[-1].append(span)
        widths = padded
    return found


def _pairs(span: Span) -> int:
    return len(span.queries_Q) * len(span.keys_K)


def _block(spans: list[Span], *, causal: bool) -> Block:
    return Block(
        _padded([span.queries_Q for span in spans]),
        _padded([span.keys_K for span in spans]),
        np.array([len(span.keys_K) for span in spans]),
        causal,
    )


def _padded(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    found = np.repeat(np.array([row[0] for row in rows])[:, None], max(len(row) for row in rows), axis=1)
    for filled, row in zip(found, rows, strict=True):
        filled[: len(row)] = row
    return found
