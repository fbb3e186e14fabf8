"""Faults of connections. Each lasts for some seconds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.target import Target
from tests.support.proxy import Wire

MIN_DURATION_S, MAX_DURATION_S = 1.0, 8.0
LATENCY_S = (0.02, 0.3)
BYTES_PER_S = (20_000, 500_000)


async def cut(target: Target, wire: str) -> None:
    """Every connection is reset, and no new one is made."""
    with _mended([target.wires[wire]]) as (it,):
        it.refuses = True
        it.cut()
        await target.pass_time(0, MAX_DURATION_S)


async def silence(target: Target, wire: str) -> None:
    """Connections stay open without traffic."""
    with _mended([target.wires[wire]]) as (it,):
        it.silence()
        await target.pass_time(MIN_DURATION_S, 2 * MAX_DURATION_S)


async def half_close(target: Target, wire: str) -> None:
    target.wires[wire].half_close(target.random)


async def slow(target: Target, server: str) -> None:
    with _mended(_to(target, server)) as wires:
        for wire in wires:
            wire.latency_s = target.random.uniform(*LATENCY_S)
        await target.pass_time(MIN_DURATION_S, MAX_DURATION_S)


async def throttle(target: Target, server: str) -> None:
    with _mended(_to(target, server)) as wires:
        for wire in wires:
            wire.bytes_per_s = target.random.uniform(*BYTES_PER_S)
        await target.pass_time(MIN_DURATION_S, MAX_DURATION_S)


def _to(target: Target, server: str) -> list[Wire]:
    return [wire for name, wire in sorted(target.wires.items()) if name.endswith(server)]


@contextmanager
def _mended(wires: Sequence[Wire]) -> Iterator[Sequence[Wire]]:
    try:
        yield wires
    finally:
        for wire in wires:
            wire.mend()
