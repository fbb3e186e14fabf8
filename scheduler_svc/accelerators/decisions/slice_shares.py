"""Shares of a slice: whole milliseconds by task, whose sum is the slice. Pure."""

from collections.abc import Collection, Mapping


def slice_shares(slice_ms: int, served: Mapping[str, int], ordered_for: Collection[str]) -> dict[str, int]:
    """Milliseconds of a slice booked to each task, the switch to it included.

    `served`: what each task was served, in one unit for all (tokens or milliseconds). `ordered_for`: tasks whose ready work the slice was
    ordered for; they pay in equal parts where nothing was served. Rounded by the largest remainder, ids break ties: the sum is exact.
    Raises: ValueError for negative numbers, and where there is no task to book to.
    """
    if slice_ms < 0 or any(amount < 0 for amount in served.values()):
        raise ValueError(f"a slice of {slice_ms} ms and served amounts {dict(served)} must not be negative")
    parts = {task: amount for task, amount in served.items() if amount > 0} or dict.fromkeys(ordered_for, 1)
    if not parts:
        raise ValueError(f"a slice of {slice_ms} ms served no task and was ordered for none")
    whole = sum(parts.values())
    shares = {task: slice_ms * part // whole for task, part in sorted(parts.items())}
    missing = slice_ms - sum(shares.values())
    by_remainder = sorted(parts, key=lambda task: (-(slice_ms * parts[task] % whole), task))
    for task in by_remainder[:missing]:
        shares[task] += 1
    return shares
