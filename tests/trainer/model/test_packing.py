"""Rows with shared prompts hold the same tokens, targets and contexts as separate trajectories."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.trainer.groups import make_groups, pack_alone
from trainer_svc.model.attention import visible
from trainer_svc.model.packing import PAD, Packed, Row, Sample, collate, common_prefix, rows_of_group


def sample(ids: Sequence[int], sampled: Sequence[int], advantage: float = 1.0) -> Sample:
    logprobs = -np.arange(len(ids), dtype=np.float32)
    return Sample(np.array(ids, np.int32), np.array(sampled, np.uint8), logprobs, advantage, weight=0.5)


TokenContext = tuple[bytes, int, float]
"""Tokens that a token attends to (int32, by position), the token itself, and its sampler logprob."""


def contexts(packed: Packed) -> list[TokenContext]:
    """Contexts of every sampled token."""
    seen_by = _seen_in_spans(packed) if packed.spans else _seen_in_rows(packed)
    ids, positions, branch = packed.ids_B_T.ravel(), packed.positions_B_T.ravel(), packed.branch_B_T.ravel()
    found: list[TokenContext] = []
    for flat, target, logprob in zip(packed.predictor_N, packed.target_N, packed.sampler_logprobs_N, strict=True):
        assert branch[flat] != PAD
        seen = seen_by[int(flat)]
        seen = seen[np.argsort(positions[seen])]
        assert np.array_equal(positions[seen], np.arange(len(seen)))
        found.append((ids[seen].astype(np.int32).tobytes(), int(target), float(logprob)))
    return sorted(found)


def _seen_in_rows(packed: Packed) -> list[np.ndarray]:
    columns = packed.ids_B_T.shape[1]
    return [np.arange(flat - flat % columns, flat + 1) for flat in range(packed.ids_B_T.size)]


def _seen_in_spans(packed: Packed) -> list[np.ndarray]:
    """Results at each token's own index."""
    assert packed.spans
    results: list[np.ndarray] = []
    for block in packed.spans.blocks:
        visible_S_Q_K = (
            np.tril(np.ones((*block.queries_S_Q.shape, block.keys_S_K.shape[1]), bool)) if block.causal else visible(packed, block)
        )
        for keys, visible_Q_K in zip(block.keys_S_K, visible_S_Q_K, strict=True):
            results += [keys[visible_K] for visible_K in visible_Q_K]
    return [results[home] for home in packed.spans.result_index_N]


def expected_contexts(samples: Sequence[Sample]) -> list[TokenContext]:
    return sorted(
        (s.ids_T[:position].astype(np.int32).tobytes(), int(s.ids_T[position]), float(s.logprobs_T[position]))
        for s in samples
        for position in np.flatnonzero(s.sampled_T)
    )


def test_prompt_is_computed_once_and_branches_see_only_themselves() -> None:
    first, second = sample([1, 2, 3, 10, 11], [0, 0, 0, 1, 1]), sample([1, 2, 3, 20, 21, 22], [0, 0, 0, 1, 1, 1], advantage=-1.0)
    packed = collate([(0, Row(3, (first, second)))])
    assert packed.ids_B_T.tolist() == [[1, 2, 3, 10, 20, 21]]
    assert packed.branch_B_T.tolist() == [[0, 0, 0, 1, 2, 2]]
    assert packed.positions_B_T.tolist() == [[0, 1, 2, 3, 3, 4]]
    assert packed.target_N.tolist() == [10, 11, 20, 21, 22]
    assert packed.advantages_N.tolist() == [1, 1, -1, -1, -1]
    assert contexts(packed) == expected_contexts([first, second])


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("budget", [40, 200, 10_000])
def test_every_sampled_token_is_predicted_once_from_its_own_context(turns: int, shared: bool, budget: int) -> None:
    groups = [
        [Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, t.reward, 1.0) for t in group.trajectories]
        for group in make_groups(3, groups=5, size=6, turns=turns)
    ]
    micro_batches = pack_alone(groups, budget_tokens=budget, shared=shared)
    assert sorted(c for packed in micro_batches for c in contexts(packed)) == expected_contexts([s for group in groups for s in group])
    assert all(packed.ids_B_T.size <= budget or len(packed.ids_B_T) == 1 for packed in micro_batches)
    if budget > 40 or not shared:
        assert any(packed.spans is not None for packed in micro_batches) == shared


def test_nothing_after_the_last_sampled_token_is_computed() -> None:
    packed = collate(
        [(0, row) for row in rows_of_group([sample([1, 2, 3, 4, 5], [0, 1, 0, 1, 0])], budget_tokens=99, width=128, shared=True)]
    )
    assert packed.ids_B_T.tolist() == [[1, 2, 3]]
    assert packed.target_N.tolist() == [2, 4]


def test_trajectory_without_sampled_tokens_takes_no_room() -> None:
    group = [sample([1, 2, 3], [0, 0, 0]), sample([1, 2, 3], [0, 1, 1])]
    assert [row.samples for row in rows_of_group(group, budget_tokens=99, width=128, shared=True)] == [(group[1],)]


def test_prefix_ends_where_prompts_differ_or_sampling_begins() -> None:
    assert common_prefix([sample([1, 2, 3, 4], [0, 0, 1, 1]), sample([1, 2, 3, 5], [0, 0, 0, 1])]) == 2
    assert common_prefix([sample([1, 9, 3, 4], [0, 0, 0, 1]), sample([1, 2, 3, 5], [0, 0, 0, 1])]) == 1
    assert common_prefix([sample([8, 9, 3], [0, 0, 1]), sample([1, 2, 3], [0, 0, 1])]) == 0


@pytest.mark.parametrize(("replies", "together"), [([4000, 4000], 1), ([90] * 8, 1), ([2] * 8, 8), ([1, 0, 1], 3)])
def test_branches_attend_together_where_that_costs_less(replies: list[int], together: int) -> None:
    group = [sample([1] * 20 + [reply] * (reply + 1), [0] * 20 + [1] * (reply + 1)) for reply in replies]
    (row,) = rows_of_group(group, budget_tokens=16_384, width=128, shared=True)
    assert row.branches_per_span == together
    packed = collate([(0, row)])
    assert packed.spans
    assert sorted(len(block.queries_S_Q) for block in packed.spans.blocks) == sorted([1, len(replies) // together])
    assert contexts(packed) == expected_contexts(group)


def test_long_and_short_spans_are_not_padded_to_each_other() -> None:
    group = [sample([1] * 20 + [n] * n, [0] * 20 + [1] * n) for n in (2000, 1900, 150, 140)]
    (packed,) = pack_alone([group], budget_tokens=16_384)
    assert packed.spans
    assert [block.queries_S_Q.shape for block in packed.spans.blocks] == [(1, 20), (2, 1999), (2, 149)]


def test_rows_of_similar_length_share_a_micro_batch() -> None:
    lengths = [900, 880, 860, 300, 290, 280]
    groups = [[sample([n] * n + [5, 6], [0] * n + [1, 1])] for n in lengths]
    assert [len(packed.ids_B_T) for packed in pack_alone(groups, budget_tokens=4096)] == [3, 3]
