"""The environment `exact_words`: its splits, its order of prompts, and what is graded."""

import pytest

from env_svc.builtin.exact_words import COUNTS, ExactWords, question, reward, topics_of, words_in
from env_svc.contract import Finish, Reply, WrongOptions


async def asked(environment: ExactWords, rows: int, seed: int = 0, first: int = 0) -> list[str]:
    return [(await environment.open(first + row, seed)).messages[0].content for row in range(rows)]


async def finish(count: int, text: str, *, truncated: bool = False) -> Finish:
    turn = await ExactWords().step({"count": count}, Reply(text, truncated))
    assert isinstance(turn, Finish)
    return turn


def test_no_topic_is_on_both_sides() -> None:
    train, held_out = topics_of("train"), topics_of("held_out")
    assert (len(set(train)), len(set(held_out))) == (len(train), len(held_out)) == (64, 32)
    assert not set(train) & set(held_out)


async def test_rows_are_all_prompts_of_the_split_in_an_order_of_the_seed_before_one_repeats() -> None:
    environment = ExactWords(split="held_out")
    prompts = 32 * len(COUNTS)
    order = await asked(environment, prompts)
    assert sorted(order) == sorted(question(topic, count) for topic in topics_of("held_out") for count in COUNTS)
    assert await asked(ExactWords(split="held_out"), prompts, first=prompts) == order
    assert await asked(environment, prompts, seed=1) != order


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Bright and tall.", 3), ("  Bright,\n tall ", 2), ("well-made chair", 2), ("Light - and 2 stairs", 4), ("... !", 0), ("", 0),
        ("Лес ночью", 2),
    ],
)  # fmt: skip
def test_word_is_a_part_between_blanks_with_a_letter_or_digit(text: str, words: int) -> None:
    assert words_in(text) == words


async def test_only_a_reply_that_ended_with_as_many_words_as_asked_for_earns_all() -> None:
    assert (await finish(4, "Tall, white and bright.")).reward == 1.0
    assert (await finish(4, "Tall, white and bright.")).components == {"exact": 1.0, "words": 4.0}
    cut = await finish(4, "Tall, white and bright.", truncated=True)
    assert (cut.reward, cut.components["exact"]) == (0.0, 0.0)
    assert (await finish(4, "")).reward == 0.0


def test_reward_falls_with_the_distance_and_stays_below_half_and_not_below_zero() -> None:
    near = [reward(words, 4) for words in (3, 2, 1, 0)]
    assert near == sorted(near, reverse=True) == [0.375, 0.25, 0.125, 0.0]
    assert [reward(words, 4) for words in (5, 6, 8, 20)] == [0.375, 0.25, 0.0, 0.0]


@pytest.mark.parametrize("count", [1, *COUNTS])
async def test_gold_reply_earns_all(count: int) -> None:
    environment = ExactWords(counts=[count])
    opening = await environment.open(0, 0)
    assert opening.messages[0].content.endswith("1 word." if count == 1 else f"{count} words.")
    gold = await environment.gold(opening.state)
    assert gold is not None
    turn = await environment.step(opening.state, Reply(gold))
    assert isinstance(turn, Finish)
    assert turn.reward == 1.0


@pytest.mark.parametrize("counts", [[], [0, 2], [101]])
def test_counts_that_no_reply_can_have_are_refused(counts: list[int]) -> None:
    with pytest.raises(WrongOptions, match="from 1 to 100"):
        ExactWords(counts=counts)
