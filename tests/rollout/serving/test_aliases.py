"""Versions that aliases name stay loaded within the places of serving; the engine only keeps book."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from common.bus import Bus
from common.messages import KnownAlias
from common.streams import ALIASES_BUCKET
from rollout_svc.adapters import Adapters
from rollout_svc.serving.aliases import KeptAliases
from tests.support.rollout.books import Book, adapters_of, version
from tests.support.waiting import at_work, eventually


@pytest_asyncio.fixture(loop_scope="session")
async def book() -> Book:
    """Holds eight versions; four places are serving's own."""
    book = Book()
    book.settings.serving_adapters = 1
    return book


@pytest_asyncio.fixture(loop_scope="session")
async def adapters(book: Book, tmp_path: Path) -> AsyncIterator[Adapters]:
    async with adapters_of(book, tmp_path / "adapters") as adapters:
        yield adapters


def held(book: Book) -> set[str]:
    """Versions that are loaded, by task and number."""
    return {name.rpartition("-")[0] for name in book.held}


def alias(name: str, number: int, task: str = "named", pool: str = "tiny") -> KnownAlias:
    return KnownAlias(tenant="acme", name=name, pool=pool, adapter=version(number, task), changed_s=float(number))


async def test_named_version_is_loaded_and_outlives_its_task(book: Book, adapters: Adapters) -> None:
    kept = KeptAliases(adapters, "tiny")
    kept.note("acme.prod", alias("prod", 1))
    kept.note("acme.other", alias("other", 2, pool="another"))
    await kept.load()
    adapters.end("named")
    async with adapters.using(version(9, "named")):  # newer than `keep` allows for the first
        pass
    await eventually(lambda: held(book) == {"named.v1"}, 20)
    kept.note("acme.prod", None)
    await eventually(lambda: held(book) == set(), 20)


async def test_others_make_room_first_and_rollouts_never_take_its_place(book: Book, adapters: Adapters) -> None:
    kept = KeptAliases(adapters, "tiny")
    async with adapters.using(version(1, "named")):  # a rollout has loaded it
        kept.note("acme.prod", alias("prod", 1))
    await kept.load()
    for number in range(12):
        async with adapters.using(version(number, f"rollout-{number}")):
            pass
        async with adapters.using(version(number, f"served-{number}"), serving=True):
            pass
        assert "named.v1" in held(book)
    assert not any(name.startswith("named.v1-") for name in book.unloading)


async def test_of_too_many_the_latest_are_kept_and_one_place_is_left(book: Book, adapters: Adapters) -> None:
    kept = KeptAliases(adapters, "tiny")
    for number in range(1, 8):
        kept.note(f"acme.n{number}", alias(f"n{number}", number))
    kept.note("acme.twin", alias("twin", 7))
    assert [ref.version for ref in kept.wanted] == [7, 6, 5]
    await kept.load()
    assert held(book) == {"named.v7", "named.v6", "named.v5"}


async def test_replica_follows_what_the_scheduler_tells(book: Book, adapters: Adapters, bus: Bus) -> None:
    await bus.kv.put(ALIASES_BUCKET, "acme.prod", alias("prod", 3))
    async with at_work(KeptAliases(adapters, "tiny").run(bus)):
        await eventually(lambda: held(book) == {"named.v3"}, 20)
        await bus.kv.put(ALIASES_BUCKET, "acme.prod", alias("prod", 4))
        await eventually(lambda: "named.v4" in held(book), 20)
        await bus.kv.delete(ALIASES_BUCKET, "acme.prod")
        adapters.end("named")
        await eventually(lambda: held(book) == set(), 20)


async def test_version_that_a_wake_has_dropped_is_loaded_once_the_engine_is_awake(book: Book, adapters: Adapters, bus: Bus) -> None:
    """And not at the next periodic attempt, up to half a minute later."""
    await bus.kv.put(ALIASES_BUCKET, "acme.prod", alias("prod", 3))
    async with at_work(KeptAliases(adapters, "tiny").run(bus)):
        await eventually(lambda: held(book) == {"named.v3"}, 20)
        await adapters.stop()
        await adapters.recheck(must_load=True)
        assert held(book) == set()
        adapters.go()
        await eventually(lambda: held(book) == {"named.v3"}, 10)
