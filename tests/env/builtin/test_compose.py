"""The environment `compose`: its functions, which pairs are held out, that no held-out effect is ever trained, and what is graded."""

import itertools
from collections import Counter

import pytest

from env_svc.builtin.compose import FUNCTIONS, LETTERS, Compose, Split, effect, is_held_out, programs, programs_of, run, solution
from env_svc.contract import Finish, Reply, WrongOptions

WORDS = ["".join(letters) for letters in itertools.product(LETTERS, repeat=4)]


async def finish(environment: Compose, row: int, text: str, *, truncated: bool = False) -> Finish:
    turn = await environment.step((await environment.open(row, seed=0)).state, Reply(text, truncated))
    assert isinstance(turn, Finish)
    return turn


async def asked(environment: Compose, rows: int, seed: int = 0) -> list[str]:
    return [(await environment.open(row, seed)).messages[0].content for row in range(rows)]


@pytest.mark.parametrize(
    ("name", "word", "result"),
    [
        ("W", "ahgc", "chac"), ("L", "abcd", "bcda"), ("T", "hbcd", "bcda"), ("D", "abcd", "aabc"), ("S", "abcd", "dbca"),
        ("R", "abcd", "dcba"), ("K", "abcd", "acbd"), ("A", "hhhh", "ahhh"), ("F", "ahcd", "bacd"), ("N", "ceab", "ceha"),
    ],
)  # fmt: skip
def test_function_changes_a_word_as_its_table_row_says(name: str, word: str, result: str) -> None:
    assert run(name, word) == result


def test_every_function_has_a_case_above() -> None:
    marks = {case[0] for mark in test_function_changes_a_word_as_its_table_row_says.pytestmark for case in mark.args[1]}
    assert marks == set(FUNCTIONS)


def test_program_is_its_functions_one_after_the_other_from_the_left() -> None:
    for program in programs(3)[::7]:
        for word in WORDS[::131]:
            assert run(program, word) == run(program[2], run(program[1], run(program[0], word)))


def test_pair_with_a_held_out_effect_is_on_no_other_side() -> None:
    """By enumeration of all words, without the algebra of effects that the splits are made with."""
    held_out = {tuple(run(pair, word) for word in WORDS): pair for pair in programs_of("held_out")}
    assert len(held_out) == 20
    for program in [*programs_of("train"), *programs_of("single"), ""]:
        assert tuple(run(program, word) for word in WORDS) not in held_out, program


def test_no_pair_that_is_asked_for_has_the_effect_of_another_program_of_up_to_two_functions() -> None:
    meant = Counter(tuple(run(program, word) for word in WORDS) for length in range(3) for program in programs(length))
    pairs = programs_of("train") + programs_of("held_out")
    assert len(pairs) == 78
    assert {meant[tuple(run(pair, word) for word in WORDS)] for pair in pairs} == {1}


def test_equal_effects_are_found_and_only_those() -> None:
    by_words, by_effect = (
        Counter(what(program) for length in (1, 2) for program in programs(length))
        for what in (lambda program: tuple(run(program, word) for word in WORDS), effect)
    )
    assert sorted(by_words.values()) == sorted(by_effect.values())
    assert max(by_effect.values()) > 1


def test_each_function_is_equally_often_first_and_second_in_held_out_pairs() -> None:
    for place in (0, 1):
        assert Counter(pair[place] for pair in programs_of("held_out")) == dict.fromkeys(FUNCTIONS, 2)
    assert not any(is_held_out(pair) for pair in programs_of("train"))
    assert {pair[place] for pair in programs_of("train") for place in (0, 1)} == set(FUNCTIONS)


def test_longer_program_has_an_effect_of_its_own() -> None:
    shorter = {effect(program) for length in range(3) for program in programs(length)}
    longer = programs_of("longer")
    assert all(len(program) == 3 and effect(program) not in shorter for program in longer)
    assert len(longer) > 500


@pytest.mark.parametrize("split", ["train", "held_out", "longer", "single"])
async def test_row_is_of_its_split_and_depends_on_seed_and_options_alone(split: Split) -> None:
    first, same, other = [await asked(Compose(split=split), 300, seed) for seed in (0, 0, 1)]
    assert first == same != other
    assert {question.split()[0].rstrip("_") for question in first} <= set(programs_of(split))


async def test_share_of_single_functions_is_as_asked() -> None:
    questions = await asked(Compose(single_share=0.25), 2000)
    singles = [question for question in questions if question[1:4] == "___"]
    assert 0.2 < len(singles) / len(questions) < 0.3
    assert {question[0] for question in singles} == set(FUNCTIONS)
    assert not [question for question in await asked(Compose(), 2000) if question[1] == "_"]


async def test_last_letters_of_a_reply_that_ended_are_graded() -> None:
    environment = Compose()
    program, word = (await environment.open(3, seed=0)).messages[0].content.split()
    right = run(program.rstrip("_"), word)
    wrong = right[:3] + LETTERS[(LETTERS.index(right[3]) + 1) % len(LETTERS)]
    for text in (right, f"R{word}{right}", solution(program.rstrip("_"), word)):
        assert (await finish(environment, 3, text)) == Finish(1.0, {"correct": 1.0})
        assert (await finish(environment, 3, text, truncated=True)).reward == 0.0
    for text in (wrong, right + "a", right[1:], "", right + " "):
        assert (await finish(environment, 3, text)) == Finish(0.0, {"correct": 0.0})


@pytest.mark.parametrize("split", ["train", "held_out", "longer", "single"])
async def test_gold_answer_earns_the_reward(split: Split) -> None:
    environment = Compose(split=split)
    for row in range(50):
        gold = await environment.gold((await environment.open(row, seed=0)).state)
        assert (await finish(environment, row, gold or "")).reward == 1.0


async def test_coin_knows_nothing_of_the_result() -> None:
    environment = Compose(reward="coin", coin_rate=0.25)
    right, wrong = list[float](), list[float]()
    for row in range(2000):
        program, word = (await environment.open(row, seed=0)).messages[0].content.split()
        result = run(program.rstrip("_"), word)
        turn = await finish(environment, row, result)
        assert turn.components == {"correct": 1.0}
        right.append(turn.reward)
        wrong.append((await finish(environment, row, "x" + result[::-1] + "x")).reward)
    for rewards in (right, wrong):
        assert set(rewards) == {0.0, 1.0}
        assert abs(sum(rewards) / len(rewards) - 0.25) < 0.04
    agreement = sum(a == b for a, b in zip(right, wrong, strict=True)) / len(right)
    assert abs(agreement - (0.25**2 + 0.75**2)) < 0.05


@pytest.mark.parametrize("options", [{"single_share": -0.1}, {"single_share": 1.5}, {"reward": "coin", "coin_rate": 2.0}])
def test_share_outside_of_0_and_1_is_refused_with_both_values(options: dict[str, float]) -> None:
    with pytest.raises(WrongOptions, match=r"single_share is .* and coin_rate .*: both are shares"):
        Compose(**options)  # type: ignore[arg-type]
