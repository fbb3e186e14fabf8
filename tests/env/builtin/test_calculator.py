"""The environment `calculator`: its rows, what counts as the right answer, and what it measures."""

import pytest

from env_svc.builtin.calculator import Calculator
from env_svc.contract import Finish, Reply, ToolUsage, WrongOptions


async def finish(environment: Calculator, row: int, text: str, usage: ToolUsage | None = None) -> Finish:
    turn = await environment.step((await environment.open(row, seed=0)).state, Reply(text, usage=usage))
    assert isinstance(turn, Finish)
    return turn


async def answer_of(environment: Calculator, row: int) -> int:
    return (await environment.open(row, seed=0)).state["answer"]


async def test_question_can_be_worked_out_and_has_numbers_of_the_lengths_asked_for() -> None:
    environment = Calculator(min_digits=2, max_digits=3)
    for row in range(200):
        opening = await environment.open(row, seed=5)
        _, _, left, sign, right = opening.messages[0].content.rstrip("?").split()
        assert {len(left), len(right)} <= {2, 3}
        assert opening.state["answer"] == {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]


async def test_row_depends_on_seed_and_options_alone() -> None:
    asked = [[(await Calculator().open(row, seed)).messages[0].content for row in range(20)] for seed in (0, 0, 1)]
    assert asked[0] == asked[1] != asked[2]
    assert len(set(asked[0])) == 20


async def test_signs_are_those_asked_for() -> None:
    environment = Calculator(signs="*")
    asked = [(await environment.open(row, seed=0)).messages[0].content for row in range(20)]
    assert all(" * " in question for question in asked)


@pytest.mark.parametrize("form", ["{}", " {}.", "It is {}.", "First 12, then {}", "{}.0"])
async def test_last_number_of_the_reply_is_the_answer(form: str) -> None:
    environment = Calculator()
    right = await answer_of(environment, 3)
    assert (await finish(environment, 3, form.format(right))).reward == 1.0
    assert (await finish(environment, 3, form.format(right + 1))).reward == 0.0


@pytest.mark.parametrize("text", ["", "none", "-", "the product", "1" * 5000])
async def test_reply_without_the_answer_is_wrong(text: str) -> None:
    assert (await finish(Calculator(), 0, text)).reward == 0.0


@pytest.mark.parametrize("form", ["{}", "{:,}", "{}.0"])
async def test_answer_beyond_what_a_float_holds_is_compared_exactly(form: str) -> None:
    environment = Calculator(min_digits=9, max_digits=9, signs="*")
    for row in range(50):
        right = await answer_of(environment, row)
        assert right > 2**53
        assert (await finish(environment, row, form.format(right))).reward == 1.0
        assert (await finish(environment, row, form.format(right + 1))).reward == 0.0


async def test_gold_answer_earns_the_reward() -> None:
    environment = Calculator(min_digits=1, max_digits=9)
    for row in range(50):
        gold = await environment.gold((await environment.open(row, seed=0)).state)
        assert (await finish(environment, row, gold or "")).reward == 1.0


async def test_separators_and_signs_are_read() -> None:
    environment = Calculator(min_digits=3, max_digits=3, signs="-*")
    rows = [await answer_of(environment, row) for row in range(20)]
    negative, large = next(row for row in rows if row < 0), next(row for row in rows if row >= 10_000)
    assert (await finish(environment, rows.index(negative), f"−{-negative}")).reward == 1.0
    assert (await finish(environment, rows.index(negative), f"{-negative}")).reward == 0.0
    assert (await finish(environment, rows.index(large), f"{large:,}")).reward == 1.0


@pytest.mark.parametrize(
    ("usage", "share"), [(None, 0.0), (ToolUsage(), 0.0), (ToolUsage(calls=2), 1.0), (ToolUsage(1, 1), 0.5), (ToolUsage(0, 3), 0.0)]
)
async def test_share_of_well_formed_calls_is_measured(usage: ToolUsage | None, share: float) -> None:
    assert (await finish(Calculator(), 0, "no", usage)).components == {"well_formed": share}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_digits": 3, "max_digits": 2}, "min_digits is 3 and max_digits 2"),
        ({"max_digits": 40}, "max_digits <= 9"),
        ({"signs": "+/"}, "signs is '\\+/', expected some of"),
        ({"signs": ""}, "expected some of"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(WrongOptions, match=complaint):
        Calculator(**options)  # pyright: ignore[reportArgumentType]
