"""Policies that `slicing.py` is compared with. Pure. All of them park by draining and know neither shares nor switch costs."""

from scheduler_svc.decisions.accelerators.situation import Candidate, Situation
from scheduler_svc.decisions.accelerators.state import Idle, Keep, Reason, Switch

NEVER_S = float("inf")

Decision = Keep | Idle | Switch


def first_come_first_served(seen: Situation) -> Decision:
    """The operation that has been ready longest is next, wherever it has to run."""
    oldest = min(seen.candidates, key=lambda one: (_ready_since_s(one), one.executor), default=None)
    own = None if seen.holder is None else seen.holder.ready_since_s
    if oldest is not None and (own is None or _ready_since_s(oldest) < own):
        return oldest.chosen(Reason.ORDER)
    return Keep(NEVER_S) if seen.is_working else Idle(NEVER_S)


def in_turns(seen: Situation) -> Decision:
    """Executors in the order of their ids, each until it has no work, or for its window."""
    if seen.is_working and seen.holding is not None:
        window_ends_s = seen.holding.awake_s + seen.rules.window_s
        if seen.now_s < window_ends_s or not seen.candidates:
            return Keep(window_ends_s if seen.now_s < window_ends_s else NEVER_S)
    last = "" if seen.holding is None else seen.holding.executor
    following = min(seen.candidates, key=lambda one: (one.executor <= last, one.executor), default=None)
    return Idle(NEVER_S) if following is None else following.chosen(Reason.ORDER)


def in_fixed_windows(seen: Situation) -> Decision:
    """Pools have windows in turn, with or without work; first come first served inside a window."""
    pool, ends_s = _window(seen)
    oldest = min(
        (one for one in seen.candidates if one.demand.pool == pool), key=lambda one: (_ready_since_s(one), one.executor), default=None
    )
    is_own_window = seen.holder is not None and seen.holder.pool == pool
    own = seen.holder.ready_since_s if is_own_window and seen.holder is not None else None
    if oldest is not None and (own is None or _ready_since_s(oldest) < own):
        return oldest.chosen(Reason.ORDER)
    if is_own_window and seen.is_working:
        return Keep(ends_s)
    return Idle(ends_s if seen.candidates or seen.is_working else NEVER_S)


def _window(seen: Situation) -> tuple[str, float]:
    """The pool whose window it is, and when that ends. Cycles of all windows follow each other from time 0."""
    lengths_s = [seen.rules.windows_s.get(pool, seen.rules.window_s) for pool in seen.pools]
    if not lengths_s:
        return "", NEVER_S
    cycle_s = sum(lengths_s)
    ends_s = seen.now_s // cycle_s * cycle_s
    for pool, length_s in zip(seen.pools, lengths_s, strict=True):
        ends_s += length_s
        if seen.now_s < ends_s:
            return pool, ends_s
    return seen.pools[0], ends_s + lengths_s[0]  # rounding: a moment of the next cycle


def _ready_since_s(candidate: Candidate) -> float:
    return NEVER_S if candidate.demand.ready_since_s is None else candidate.demand.ready_since_s
