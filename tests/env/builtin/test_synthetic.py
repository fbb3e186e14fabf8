"""The synthetic environment: latencies with the mean they are asked for, turns and rewards."""

import statistics

import pytest

from env_svc.builtin.synthetic import Synthetic
from env_svc.contract import Continue, Finish, Reply, WrongOptions


def delays(**options: object) -> list[float]:
    environment = Synthetic(latency_s=2.0, longest_s=1e9, **options)  # pyright: ignore
    return [environment.delay_s({"row": row, "seed": 1, "turn": 0}, "") for row in range(20_000)]


@pytest.mark.parametrize(("latency", "tolerance"), [("fixed", 0.0), ("uniform", 0.02), ("lognormal", 0.1), ("pareto", 0.4)])
def test_latencies_have_the_mean_that_is_asked_for(latency: str, tolerance: float) -> None:
    assert statistics.fmean(delays(latency=latency)) == pytest.approx(2.0, abs=tolerance)


def test_distributions_differ_in_their_tails() -> None:
    tails = {latency: sorted(delays(latency=latency))[-200] for latency in ("fixed", "uniform", "lognormal", "pareto")}
    assert tails["fixed"] == 2.0 < tails["uniform"] <= 3.0 < tails["lognormal"] < tails["pareto"]
    assert 12 < tails["pareto"] < 17  # what the docstring says of its hundredth part


def test_no_latency_is_above_the_maximum() -> None:
    environment = Synthetic(latency="pareto", latency_s=2.0, longest_s=3.0)
    assert max(environment.delay_s({"row": row, "seed": 1, "turn": 0}, "") for row in range(1000)) == 3.0


async def test_episode_has_its_turns_and_a_reward_that_can_be_repeated() -> None:
    environment = Synthetic(turns=3, reward="vowels")
    opening = await environment.open(4, 2)
    turn = await environment.step(opening.state, Reply("a"))
    assert isinstance(turn, Continue)
    turn = await environment.step(turn.state, Reply("a"))
    assert isinstance(turn, Continue)
    assert await environment.step(turn.state, Reply("ab, cd")) == Finish(0.25, {"turns": 3.0, "characters": 6.0})


async def test_coin_lands_on_both_sides() -> None:
    environment = Synthetic()
    opening = await environment.open(0, 0)
    finished = [await environment.step(opening.state, Reply(f"{number}")) for number in range(100)]
    assert {turn.reward for turn in finished if isinstance(turn, Finish)} == {0.0, 1.0}


@pytest.mark.parametrize(
    "options", [{"turns": 0}, {"latency_s": -1.0}, {"latency": "pareto", "spread": 1.0}, {"latency": "uniform", "spread": 2.0}]
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(WrongOptions):
        Synthetic(**options)  # pyright: ignore
