"""What operators have ordered of executors that have no slice, and moves that they have measured.

A move is measured by an order to wake that names a tier. Once its executor is awake, its slice ends, it is parked there and woken once
more. Until it has parked no other slice is ordered, so that nothing is moved for others meanwhile. These moves themselves lift the order:
its sender need not live until then.
"""

from common.accelerators import ExecutorState, Tier
from scheduler_svc.accelerators.demands import AcceleratorSnapshot
from scheduler_svc.accelerators.deployed import Key
from scheduler_svc.accelerators.orders import ParkOrder
from scheduler_svc.accelerators.queries.standing import ExecutorRow
from scheduler_svc.base.states import Hold

IGNORED_S = 30.0
"""Time in which an executor must have begun what it was ordered, or have said why not."""


class Holds:
    def __init__(self) -> None:
        self._told: set[Key] = set()
        """Held executors without a slice that were ordered off the device."""

    def parks(self, picture: AcceleratorSnapshot) -> list[ParkOrder]:
        """Orders for what is held and still on the device, each given once: they take effect."""
        found = list[ParkOrder]()
        for one in picture.executors.values():
            row, key = one.row, (one.row.accelerator, one.row.executor)
            if row.held not in (Hold.PARK, Hold.DRAIN):
                self._told.discard(key)
            elif row is not picture.standing.holder and one.report.tier is Tier.DEVICE is not one.deepest and key not in self._told:
                found.append(ParkOrder(row.executor, one.deepest))
        self._told |= {(picture.standing.accelerator, park.executor) for park in found}
        return found


def is_due(holder: ExecutorRow) -> bool:
    """Whether the open slice ends by an operator's order: immediately, or, where its moves are measured, once its executor is awake."""
    is_awake = holder.newest is not None and holder.newest.awake_ms is not None
    return holder.held in (Hold.PARK, Hold.DRAIN) or (holder.measured is not None and is_awake)


def has_to_end(holder: ExecutorRow) -> bool:
    """Whether what runs ends first. Nothing is parked in the tier `none` beside requests that are frozen."""
    return holder.held is Hold.DRAIN or holder.measured is Tier.NONE


def is_measuring(picture: AcceleratorSnapshot) -> bool:
    """Whether an executor is on its way to the tier whose moves are measured."""
    return picture.standing.holder is None and any(
        one.row.measured is not None and _parks(one.report.state, one.row, picture.now_s) for one in picture.executors.values()
    )


def _parks(state: ExecutorState, row: ExecutorRow, now_s: float) -> bool:
    if row.newest is None or row.newest.ended_ms is None:
        return False
    return state is ExecutorState.PARKING or (state is ExecutorState.AWAKE and now_s < row.newest.ended_ms / 1000 + IGNORED_S)
