"""Covering arrays: tables in which every combination of values of any few fields occurs, and combinations that no table may have do not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]
Choice = tuple[tuple[str, int], ...]
"""A combination: fields, in their order, and the position of each one's value."""


def covering_array(factors: Mapping[str, Sequence[Any]], strength: int, is_allowed: Callable[[Row], bool]) -> list[Row]:
    """Rows in which every allowed combination of `strength` fields' values occurs.

    `is_allowed` is given incomplete rows too, and is false only where no completion can be allowed.
    Source: one row at a time, each field greedily: AETG, Cohen et al. 1997.
    """
    missing = dict.fromkeys(allowed_choices(factors, strength, is_allowed))
    rows: list[Row] = []
    while missing:
        row = _completed(dict(next(iter(missing))), factors, strength, missing, is_allowed)
        for choice in combinations(row.items(), strength):
            missing.pop(choice, None)
        rows.append({name: factors[name][place] for name, place in row.items()})
    return rows


def allowed_choices(factors: Mapping[str, Sequence[Any]], strength: int, is_allowed: Callable[[Row], bool]) -> Iterator[Choice]:
    for names in combinations(factors, strength):
        for places in product(*(range(len(factors[name])) for name in names)):
            if is_allowed({name: factors[name][place] for name, place in zip(names, places, strict=True)}):
                yield tuple(zip(names, places, strict=True))


def _completed(
    fixed: dict[str, int],
    factors: Mapping[str, Sequence[Any]],
    strength: int,
    missing: Mapping[Choice, None],
    is_allowed: Callable[[Row], bool],
) -> dict[str, int]:
    """Row with `fixed`, and for each other field the allowed value that covers the most missing combinations."""
    order = {name: place for place, name in enumerate(factors)}
    row = dict(fixed)

    def gain(name: str, place: int) -> int:
        choices = ([*others, (name, place)] for others in combinations(row.items(), strength - 1))
        return sum(tuple(sorted(choice, key=lambda one: order[one[0]])) in missing for choice in choices)

    for name in [name for name in sorted(factors, key=lambda name: -len(factors[name])) if name not in row]:
        places = [place for place in range(len(factors[name])) if is_allowed(_values(row | {name: place}, factors))]
        row[name] = max(places, key=lambda place: gain(name, place))
    return dict(sorted(row.items(), key=lambda one: order[one[0]]))


def _values(row: Mapping[str, int], factors: Mapping[str, Sequence[Any]]) -> Row:
    return {name: factors[name][place] for name, place in row.items()}
