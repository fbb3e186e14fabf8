"""A batch is trained only if the stored messages match it."""

from dataclasses import replace

import numpy as np
import pytest

from common.errors import Reject
from common.messages import BatchGroup, BatchMember, TrainBatch, TrajectoriesScored
from tests.support.trainer.groups import context_of, make_groups, make_spec, scored
from tests.support.trainer.models import VOCABULARY
from trainer_svc.batch import Group, assemble, sequences_of

GROUPS = make_groups(1, groups=2, size=4)


def stored(groups: list[Group] = GROUPS) -> dict[int, TrajectoriesScored]:
    """Each group in two messages of two members: sequences 10 and 11, 20 and 21."""
    return {
        10 * (group.group + 1) + half: TrajectoriesScored(
            group=context_of("a", group, version=4), members=[scored(t) for t in group.trajectories[2 * half : 2 * half + 2]]
        )
        for group in groups
        for half in (0, 1)
    }


def named() -> TrainBatch:
    return TrainBatch(
        tenant="acme",
        task="a",
        pool="tiny",
        version=5,
        spec=make_spec(),
        checkpoint=None,
        groups=[
            BatchGroup(
                group=group.group,
                version=4,
                members=[
                    BatchMember(member=t.member, sequence=10 * (group.group + 1) + t.member // 2, reward=t.reward)
                    for t in group.trajectories
                ],
            )
            for group in GROUPS
        ],
        weight=1.0,
    )


def with_member(batch: TrainBatch, **update: object) -> TrainBatch:
    first = batch.groups[0]
    members = [first.members[0].model_copy(update=update), *first.members[1:]]
    return batch.model_copy(update={"groups": [first.model_copy(update={"members": members}), *batch.groups[1:]]})


def test_members_that_share_a_message_are_read_once_and_kept_apart() -> None:
    assert sequences_of(named()) == [10, 11, 20, 21]
    groups = assemble(named(), stored(), VOCABULARY)
    assert [(group.group, group.staleness) for group in groups] == [(0, 1), (1, 1)]
    for found, expected in zip(groups, GROUPS, strict=True):
        for trajectory, wanted in zip(found.trajectories, expected.trajectories, strict=True):
            assert trajectory.member == wanted.member
            assert trajectory.ids_T.tolist() == wanted.ids_T.tolist()
            assert trajectory.sampled_T.tolist() == wanted.sampled_T.tolist()
            assert trajectory.sampler_logprobs_T.tolist() == wanted.sampler_logprobs_T.tolist()
            assert (trajectory.reward, trajectory.truncated) == (wanted.reward, wanted.truncated)


def test_order_in_the_batch_does_not_matter() -> None:
    batch = named()
    backwards = [group.model_copy(update={"members": group.members[::-1]}) for group in batch.groups[::-1]]
    groups = assemble(batch.model_copy(update={"groups": backwards}), stored(), VOCABULARY)
    assert [[t.member for t in group.trajectories] for group in groups] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert [group.group for group in groups] == [0, 1]


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({"sequence": 20}, r"message 20 is about .*'a', 1, 4.* expected .*'a', 0, 4"),
        ({"sequence": 11}, r"message 11 has members \[2, 3\] only"),
        ({"reward": 0.5}, "settled with 0.5"),
        ({"member": 1}, "at least 2 different"),
    ],
)
def test_message_about_something_else_is_rejected(update: dict[str, object], reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        assemble(with_member(named(), **update), stored(), VOCABULARY)


def test_void_member_never_enters_a_step() -> None:
    messages = stored()
    context, members = messages[10].group, messages[10].members
    messages[10] = TrajectoriesScored(group=context, members=[members[0].model_copy(update={"failure": "sandbox died"}), members[1]])
    with pytest.raises(Reject, match=r"group 0, member 0: void .sandbox died."):
        assemble(named(), messages, VOCABULARY)


def test_group_without_its_void_member_is_a_group_of_the_others() -> None:
    batch = named()
    first = batch.groups[0].model_copy(update={"members": batch.groups[0].members[1:]})
    groups = assemble(batch.model_copy(update={"groups": [first, batch.groups[1]]}), stored(), VOCABULARY)
    assert [t.member for t in groups[0].trajectories] == [1, 2, 3]


def test_policy_from_the_future_and_other_tasks_messages_are_rejected() -> None:
    batch = named()
    newer = [group.model_copy(update={"version": 6}) for group in batch.groups]
    with pytest.raises(Reject, match="newer than the policy"):
        assemble(batch.model_copy(update={"groups": newer}), stored(), VOCABULARY)
    with pytest.raises(Reject, match=r"expected .'b', 0, 4."):
        assemble(batch.model_copy(update={"task": "b"}), stored(), VOCABULARY)
    with pytest.raises(Reject, match="names a group twice"):
        assemble(batch.model_copy(update={"groups": [batch.groups[0], batch.groups[0]]}), stored(), VOCABULARY)


def test_tokens_that_cannot_be_trained_on_are_named() -> None:
    def first_changed(**change: object) -> list[Group]:
        member = replace(GROUPS[0].trajectories[0], **change)  # pyright: ignore[reportArgumentType]
        return [replace(GROUPS[0], trajectories=(member, *GROUPS[0].trajectories[1:])), GROUPS[1]]

    length = len(GROUPS[0].trajectories[0].ids_T)
    for change, reason in (
        ({"ids_T": np.full(length, VOCABULARY, np.int32)}, f"knows 0 to {VOCABULARY - 1}"),
        ({"ids_T": np.full(length, -1, np.int32)}, "token ids from -1"),
        ({"sampled_T": np.ones(length, np.uint8)}, "marks the first token"),
        ({"sampled_T": np.full(length, 2, np.uint8)}, "values other than 0 and 1"),
        ({"sampler_logprobs_T": np.full(length, np.nan, np.float32)}, "not all finite"),
    ):
        with pytest.raises(Reject, match=f"group 0, member 0: .*{reason}"):
            assemble(named(), stored(first_changed(**change)), VOCABULARY)
