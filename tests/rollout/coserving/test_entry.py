"""vLLM's scheduler with latency goals, without a model: places and blocks of rollouts, and of served requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollout_svc.coserving.pressure import LENGTHS
from rollout_svc.engine.config import URGENT_PRIORITY
from tests.support.rollout.coserving import PROMPT, ROLLOUT_SEATS, SEATS, engine, goals, own_prompt


def test_served_prompt_without_blocks_cuts_rollouts_to_half_once_until_a_newer_adapter(
    configured: Callable[[Path], Any], tmp_path: Path
) -> None:
    ahead = engine(configured, tmp_path / "figures")
    rollouts = [ahead.add(f"{number}", own_prompt(number), 200, adapter=1) for number in range(ROLLOUT_SEATS)]
    ahead.schedule()
    ahead.deliver()
    ahead.add("served", own_prompt(100), 4, URGENT_PRIORITY, extra=goals(10.0, 1.0))
    assert ahead.schedule().keys() == {*"0123", "served"}
    assert [request.num_preemptions for request in rollouts] == [0] * 4 + [1] * 4
    for _ in range(20):
        ahead.deliver()
        assert ahead.schedule().keys() <= {*"0123", "served"}
    assert "served" not in ahead.scheduler.requests
    assert sum(request.num_preemptions for request in rollouts) == 4
    ahead.deliver()
    ahead.add("next step", [1, 2, 3], 4, adapter=2)
    assert ahead.schedule().keys() >= {*"01234"}


def test_after_a_cut_no_more_rollouts_run_than_it_left(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    """They grow: small ones in the place of a large one would soon have more blocks than the cut left."""
    ahead = engine(configured, tmp_path / "figures")
    for number in range(ROLLOUT_SEATS):
        ahead.add(f"{number}", own_prompt(number), 2 if number == 3 else 200, adapter=1)
    ahead.schedule()
    ahead.deliver()
    ahead.add("served", own_prompt(100), 40, URGENT_PRIORITY, extra=goals(10.0, 1.0))
    for name in ("small", "smaller"):
        ahead.add(name, [1, 2, 3], 200, priority=-5, adapter=1)
    assert ahead.schedule().keys() == {*"0123", "served"}
    for _ in range(3):
        ahead.deliver()
        ahead.schedule()
    assert {each.request_id for each in ahead.scheduler.running} == {*"012", "small", "served"}


def test_rollouts_that_grow_in_a_full_cache_cut_nothing(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    rollouts = [ahead.add(f"{number}", own_prompt(number), 200) for number in range(ROLLOUT_SEATS)]
    ahead.add("served", [1, 2, 3], 40, URGENT_PRIORITY, extra=goals(10.0, 1.0))
    for _ in range(35):
        ahead.schedule()
        ahead.deliver()
    assert sum(request.num_preemptions for request in rollouts) == 2, "vLLM's own, one for each seven blocks"
    assert "served" in ahead.scheduler.requests


def test_rollouts_enter_a_full_cache_only_as_far_as_all_can_grow(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    """Sixty blocks for rollouts of eleven each: eight fit with their prompts, of six blocks, and five until they end."""
    ahead = engine(configured, tmp_path / "figures")

    def sample(names: str, tokens: int) -> tuple[int, int]:
        """Maximum rollouts in a step, and preemptions, until all have ended."""
        rollouts, most = [ahead.add(name, [ord(name)] * 99, tokens) for name in names], 0
        while ahead.scheduler.requests:
            most = max(most, len(ahead.schedule()))
            ahead.deliver()
        return most, sum(request.num_preemptions for request in rollouts)

    before = sample("abcdefgh", 70)
    assert before[0] == ROLLOUT_SEATS
    assert before[1] > 0, "nothing is known of lengths"
    assert sample("ijklmnopqrst", 70) == (5, 0)
    for _ in range(LENGTHS):
        ahead.scheduler._entry._lengths[False].add(1)
    assert sample("ABCDEFGH", 1)[0] == ROLLOUT_SEATS


def test_rollouts_leave_blocks_for_as_many_requests_as_came_lately(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    """Requests of eight blocks each come in pairs, with a pause; the cut that the first ones cause ends with a newer adapter."""
    ahead = engine(configured, tmp_path / "figures")
    cuts = list[int]()
    for turn in range(6):
        rollouts = [ahead.add(f"{turn} {number}", [turn, number] * 50, 70, adapter=1 + turn) for number in range(16)]
        for _ in range(60):
            ahead.schedule()
            ahead.deliver()
        before = ahead.scheduler._cut
        for name in ("one", "two"):
            ahead.add(f"{turn} {name}", [turn, 9, len(name)] * 35, 20, URGENT_PRIORITY, extra=goals(10.0, 1.0))
        ahead.schedule()
        ahead.deliver()
        cuts.append(ahead.scheduler._cut is not before)
        while any(request.request_id in ahead.scheduler.requests for request in rollouts):
            ahead.schedule()
            ahead.deliver()
    assert cuts == [1, 0, 0, 0, 0, 0]
    ahead.add("large", list(range(700)), 4, adapter=9)
    assert "large" in ahead.schedule(), "alone it may have all"


def test_rollouts_without_an_adapter_slot_leave_their_blocks_to_the_next_one(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    ahead.add("served", [1, 2, 3], 40, URGENT_PRIORITY, extra=goals(10.0, 1.0))
    for adapter in range(1, 4):
        ahead.add(f"{adapter}", [1, 2, 3], 40, adapter=adapter)
    ahead.schedule()
    ahead.deliver()
    for name in ("large", "larger"):
        ahead.add(name, list(range(500)), 4, adapter=4)
    ahead.add("small", [4, 5, 6], 4, adapter=1)
    assert ahead.schedule().keys() == {"served", *"123", "small"}


def test_canary_takes_only_the_blocks_that_it_needs(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    rollouts = [ahead.add(f"{number}", own_prompt(number), 200) for number in range(ROLLOUT_SEATS)]
    ahead.schedule()
    ahead.deliver()
    ahead.add("canary", own_prompt(100), 1, URGENT_PRIORITY)
    assert "canary" in ahead.schedule()
    assert sum(request.num_preemptions for request in rollouts) == 1


def test_rollouts_leave_the_places_of_served_requests_free(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    for number in range(SEATS):
        ahead.add(f"{number}", PROMPT, 30)
    assert len(ahead.schedule()) == ROLLOUT_SEATS
    ahead.deliver()
    ahead.add("served", PROMPT, 4, URGENT_PRIORITY, extra=goals(10.0, 1.0))
    assert len(ahead.schedule()) == ROLLOUT_SEATS + 1
