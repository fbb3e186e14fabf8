"""Measures the moves of executors of shared accelerators: each is parked in every tier that its pool allows, and woken from there.

One order makes the scheduler park and wake an executor, and ends with these moves. So an interrupted calibration needs no clean-up.
"""

import asyncio
import time
from collections.abc import Callable

from common.accelerators import Tier
from common.client_api.deployment import Accelerators
from common.client_api.errors import ClientError, NoAnswer
from common.messages import ExecutorOf, MoveOf

POLL_S = 0.2
MEASURED_WITHIN_S = 600.0
"""Maximum seconds to park an executor in one tier and wake it, including waits for operations of other executors."""
ATTEMPTS = 3
"""Maximum orders per tier: an order may move nothing if the accelerator was just given to another executor."""

Key = tuple[str, str]
"""Names of an accelerator and an executor on it."""
Say = Callable[[str], None]


async def calibrate(accelerators: Accelerators, rounds: int, say: Say, complain: Say) -> bool:
    """Measure all executors that no operator holds; returns whether all succeeded. A failed one is reported and then left out.

    Raises: NoAnswer if the scheduler does not answer.
    """
    failed = set[Key]()
    found = [one for one in await accelerators.executors() if one.held not in ("park", "drain")]
    if not found:
        say("nothing to measure: no executor shares an accelerator, or operators hold all that do")
        return True
    moved = sum(len(tiers_of(one)) for one in found) * rounds
    say(f"{len(found)} executors are parked and woken {moved} times. Running tasks wait meanwhile and lose nothing: requests are frozen,")
    say("steps end first. It may be interrupted at any time: the scheduler continues from its current state.")
    for number in range(1, rounds + 1):
        for one in found:
            if (one.accelerator, one.executor) not in failed and not await _move_all(accelerators, one, f"round {number}", say, complain):
                failed.add((one.accelerator, one.executor))
    return not failed


async def _move_all(accelerators: Accelerators, one: ExecutorOf, when: str, say: Say, complain: Say) -> bool:
    """Move an executor through all its tiers; returns whether that succeeded. Raises: NoAnswer."""
    where = f"{when}: {one.executor} on {one.accelerator}"
    try:
        for tier in tiers_of(one):
            say(f"{where}, {tier}: {await _measure(accelerators, one, tier)}")
    except NoAnswer:
        raise
    except ClientError as error:
        complain(f"{where}: {error}")
        return False
    return True


def tiers_of(one: ExecutorOf) -> list[Tier]:
    """Tiers in which an executor may be parked, nearest first."""
    deepest = one.deepest or Tier.DEVICE
    return [tier for tier in Tier if tier.depth <= deepest.depth]


async def _measure(accelerators: Accelerators, one: ExecutorOf, tier: Tier) -> str:
    """Move an executor to the tier and back; returns the moves' durations as text. Raises: ClientError if a move failed."""
    reached = list[str]()
    for _ in range(ATTEMPTS):
        before = await _moves(accelerators, one)
        await _order_moves(accelerators, one, tier)
        new = {between: move for between, move in (await _moves(accelerators, one)).items() if move != before.get(between)}
        there, back = new.get((Tier.DEVICE, tier)), new.get((tier, Tier.DEVICE))
        if there is not None and back is not None:
            return f"there {there.p50_s:.3f} s, back {back.p50_s:.3f} s, medians of {there.n} and {back.n}"
        reached = [to.value for from_, to in new if from_ is Tier.DEVICE is not to]
    instead = f"; it was parked in {' or '.join(reached)} instead" if reached else ""
    raise ClientError(f"its moves were not measured in {ATTEMPTS} attempts{instead}")


async def _moves(accelerators: Accelerators, one: ExecutorOf) -> dict[tuple[Tier, Tier], MoveOf]:
    own = (one.accelerator, one.executor)
    return {(move.from_tier, move.to_tier): move for move in await accelerators.moves() if (move.accelerator, move.executor) == own}


async def _order_moves(accelerators: Accelerators, one: ExecutorOf, tier: Tier) -> None:
    """Order the moves, and wait until the executor has woken after them; without work, it may be parked again by then.

    Raises: ClientError if the executor cannot wake or takes too long; the order is then withdrawn.
    """
    began_s, before = time.monotonic(), await _now(accelerators, one)
    await accelerators.order(one.pool, "wake", accelerator=one.accelerator, service=one.service, tier=tier)
    now = before
    while time.monotonic() - began_s < MEASURED_WITHIN_S:
        now = await _now(accelerators, one)
        if now is None or _has_failed(now, before):
            break
        is_over = now.state == "parked" and not now.is_holder and (before is None or now.since_s != before.since_s)
        if now.held is None and (now.state == "awake" or is_over):
            return
        await asyncio.sleep(POLL_S)
    if now is None:
        raise ClientError("it could not wake: it is gone")
    await accelerators.order(one.pool, "release", accelerator=one.accelerator, service=one.service)
    raise ClientError(f"it could not wake: {now.fault}" if now.fault else f"it was not awake again within {MEASURED_WITHIN_S:.0f} s")


def _has_failed(now: ExecutorOf, before: ExecutorOf | None) -> bool:
    """Whether the executor failed to wake since `before`, or will not be woken now: it can never fit, or its next attempt is later."""
    if now.fault is None:
        return False
    is_new = before is None or (now.fault, now.retry_s) != (before.fault, before.retry_s)
    return is_new or now.retry_s is None or now.retry_s > time.time()


async def _now(accelerators: Accelerators, one: ExecutorOf) -> ExecutorOf | None:
    found = await accelerators.executors(one.pool)
    return next((each for each in found if (each.accelerator, each.executor) == (one.accelerator, one.executor)), None)
