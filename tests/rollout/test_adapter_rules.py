"""Loading and eviction of adapter versions, beside an engine that only keeps book and can be stopped anywhere."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import ValidationError

from common.errors import Reject, Unavailable
from common.messages import AdapterRef, BlobRef
from rollout_svc.adapter_files import AdapterFiles
from rollout_svc.adapters import CALM_WITHIN_S, Adapters
from rollout_svc.engine.config import EXACT, ROUGH, EngineSettings, Tolerance
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from tests.support.rollout.books import Book, adapters_of, version
from tests.support.rollout.requests import POOL
from tests.support.waiting import at_work, eventually


@pytest_asyncio.fixture(loop_scope="session")
async def book() -> Book:
    return Book()


@pytest_asyncio.fixture(loop_scope="session")
async def adapters(book: Book, tmp_path: Path) -> AsyncIterator[Adapters]:
    async with adapters_of(book, tmp_path / "adapters") as adapters:
        yield adapters


async def test_version_that_comes_into_use_while_another_goes_stays(book: Book, adapters: Adapters) -> None:
    for number in (1, 2):
        async with adapters.using(version(number)):
            pass
    book.may_unload.clear()
    async with adapters.using(version(5)):  # both that are there are over at once
        pass
    await eventually(lambda: book.unloading == [version(1).engine_name])
    async with adapters.using(version(2)) as name:
        assert name in book.held
        book.used.append(name)
        book.may_unload.set()
        await eventually(lambda: version(1).engine_name not in book.held)
        async with adapters.using(version(6)):  # a version is loaded after outdated ones are evicted
            pass
        assert book.lost == []
        assert name in book.held
        book.used.remove(name)
    await eventually(lambda: book.held == {version(5).engine_name, version(6).engine_name})


async def test_load_waits_until_no_first_token_is_due_a_second_at_most(book: Book, adapters: Adapters) -> None:
    adapters.calm.clear()
    began_s = time.monotonic()
    async with adapters.using(version(1)):
        assert time.monotonic() - began_s >= CALM_WITHIN_S
    loading = asyncio.create_task(adapters.load_ahead(version(2)))
    await eventually(lambda: version(2).blob.name in book.asked)
    async with adapters.using(version(1)):  # a loaded version is used without waiting
        assert not loading.done()
        assert book.held == {version(1).engine_name}
    adapters.calm.set()
    await loading
    assert time.monotonic() - began_s < 30


async def test_old_version_stays_while_dialogues_come_back_to_it(book: Book, tmp_path: Path) -> None:
    """Six versions with the newest, of which two may be forgotten at once; a seventh and an eighth fill the engine."""
    adapters = Adapters(book, book, tmp_path / "adapters", keep=2, keep_s=60, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    loaded: list[int] = []
    async with at_work(adapters.run()):
        for number in (1, 2, 3, 4, 5, 6, 1, 2):
            async with adapters.using(version(number)):
                loaded.append(number)
        await asyncio.sleep(0.05)
        assert book.held == {version(number).engine_name for number in range(1, 7)}
        assert book.unloading == []
        for number in (7, 8):
            async with adapters.using(version(number)):
                pass
        await eventually(lambda: book.unloading == [version(3).engine_name])  # behind, and idle for the longest
        adapters._keep_s = 0
        async with adapters.using(version(8)):
            pass
        await eventually(lambda: book.held == {version(number).engine_name for number in (6, 7, 8)})


@pytest.mark.parametrize(
    ("tolerance", "differences", "is_served"),
    [
        (EXACT, [0.0005] * 7, True),
        (EXACT, [0.0] * 6 + [0.002], False),
        (ROUGH, [0.07, 0.0, 0.02, 0.09, 0.01, 0.0, 0.05], True),
        (ROUGH, [0.0] * 6 + [0.6], True),
        (ROUGH, [0.2] * 7, False),
        (ROUGH, [0.0] * 6 + [1.1], False),
        (ROUGH, [0.0] * 6 + [float("nan")], False),
        (Tolerance(max=2.0, mean=2.0), [1.5] * 7, True),
    ],
)
async def test_canary_may_differ_by_what_the_precision_makes(
    book: Book, tmp_path: Path, tolerance: Tolerance, differences: list[float], is_served: bool
) -> None:
    book.differences = differences
    adapters = Adapters(book, book, tmp_path / "adapters", keep=2, keep_s=0, tolerance=tolerance)  # pyright: ignore[reportArgumentType]
    if is_served:
        async with adapters.using(version(1)) as name:
            assert name in book.held
        return
    with pytest.raises(Reject, match=r"differ by .* at most and .* on average, allowed is .*MARLAAS_ROLLOUT_CANARY_TOLERANCE"):
        async with adapters.using(version(1)):
            pytest.fail("served an adapter that the trainer does not know")
    assert book.held == set()


@pytest.mark.parametrize(("cpu", "tolerance"), [(True, EXACT), (False, ROUGH)])
async def test_low_precision_is_compared_roughly(cpu: bool, tolerance: Tolerance) -> None:
    assert Engine(EngineProcess(EngineSettings.of(POOL), cpu=cpu)).canary_tolerance == tolerance


async def test_disk_that_takes_nothing_is_no_messages_fault_and_may_get_better(book: Book, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    folder.write_text("in the way")
    adapters = Adapters(book, book, folder, keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Unavailable, match=rf"task.v1 cannot be written to {folder}: .*; make room there, or set MARLAAS_DATA_DIR"):
        async with adapters.using(version(1)):
            pytest.fail("served an adapter that is not there")
    folder.unlink()
    async with adapters.using(version(1)) as name:
        assert name in book.held


async def test_folder_that_did_not_appear_is_no_messages_fault(book: Book, adapters: Adapters, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch_nothing(ref: BlobRef, into: Path) -> Path:
        return into

    monkeypatch.setattr(book, "fetch_folder", fetch_nothing)
    with pytest.raises(Unavailable, match=r"cannot be written to"):
        async with adapters.using(version(1)):
            pytest.fail("served an adapter that is not there")
    assert book.held == set()


@pytest.mark.parametrize("leads", ["absolute", "upward"])
async def test_folder_elsewhere_is_neither_loaded_nor_removed(book: Book, adapters: Adapters, tmp_path: Path, leads: str) -> None:
    """As if the pattern of AdapterRef let it through. The engine would refuse the folder, and so it would be removed."""
    precious = tmp_path / f"precious.v1-{version(1).blob.sha256[:12]}"
    precious.mkdir()
    task = str(tmp_path / "precious") if leads == "absolute" else "../precious"
    book.differences = [9.0] * 7
    with pytest.raises(Reject, match="leads out of the folder of adapters"):
        async with adapters.using(version(1).model_copy(update={"task": task})):
            pytest.fail("served an adapter of another folder")
    assert precious.is_dir()
    with pytest.raises(ValidationError, match="task"):
        AdapterRef.model_validate(dict(version(1)) | {"task": task})


async def use(adapters: Adapters, ref: AdapterRef, *, serving: bool) -> None:
    async with adapters.using(ref, serving=serving):
        pass


@pytest.mark.parametrize("comes_while_parked", [True, False])
@pytest.mark.parametrize("way", ["ahead", "served", "sampled"])
async def test_park_waits_for_no_fetch_and_the_version_is_loaded_when_it_has_come(
    book: Book, adapters: Adapters, way: str, comes_while_parked: bool
) -> None:
    late = version(1)
    book.late.add(late.blob.name)
    loading = asyncio.create_task(adapters.load_ahead(late) if way == "ahead" else use(adapters, late, serving=way == "served"))
    await eventually(lambda: book.asked == [late.blob.name])
    async with asyncio.timeout(30):
        await adapters.stop()
    if comes_while_parked:
        book.may_come.set()
        async with asyncio.timeout(30):
            await adapters._files._fetching.acquire()  # it has come
        adapters._files._fetching.release()
    assert not loading.done() and book.held == set()
    adapters.go()
    book.may_come.set()
    await loading
    assert book.held == {late.engine_name}


async def test_files_of_requests_that_are_gone_are_removed_beside_a_fetch(book: Book, adapters: Adapters, tmp_path: Path) -> None:
    late, unwanted = version(1, "late"), version(1, "unwanted")
    book.late.add(late.blob.name)
    await adapters.stop()
    leaving = asyncio.create_task(use(adapters, unwanted, serving=False))
    await eventually(lambda: (tmp_path / "adapters" / unwanted.engine_name).is_dir())
    loading = asyncio.create_task(adapters.load_ahead(late))
    await eventually(lambda: late.blob.name in book.asked)
    leaving.cancel()
    await eventually(lambda: not (tmp_path / "adapters" / unwanted.engine_name).exists())
    async with asyncio.timeout(30):
        await adapters.stop()
    adapters.go()
    book.may_come.set()
    await loading


async def test_version_whose_files_are_removed_before_its_turn_is_fetched_once_more(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[Path]()
    fetch = AdapterFiles.fetch

    async def noting(files: AdapterFiles, ref: AdapterRef) -> Path:
        found.append(await fetch(files, ref))
        return found[-1]

    monkeypatch.setattr(AdapterFiles, "fetch", noting)
    adapters = Adapters(book, book, tmp_path / "adapters", keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    ref = version(1)
    async with at_work(adapters.run()):
        await use(adapters, ref, serving=False)
        book.may_unload.clear()
        adapters.end("task")
        await eventually(lambda: book.unloading == [ref.engine_name])
        using = asyncio.create_task(use(adapters, ref, serving=False))
        await eventually(lambda: len(found) == 2)
        assert book.asked == [ref.blob.name], "its files were still there"
        book.may_unload.set()
        await using
        assert book.asked == [ref.blob.name] * 2


async def test_end_of_a_task_leaves_what_is_served(book: Book, tmp_path: Path) -> None:
    adapters = Adapters(book, book, tmp_path / "adapters", keep=2, keep_s=3600, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    async with at_work(adapters.run()):
        async with adapters.using(version(1), serving=True), adapters.using(version(2)):
            pass
        adapters.end("task")
        await eventually(lambda: book.unloading == [version(2).engine_name])
        async with adapters.using(version(1), serving=True):
            assert book.held == {version(1).engine_name}
        async with adapters.using(version(3), serving=True):  # the task has ended before
            pass
        assert book.held == {version(1).engine_name, version(3).engine_name}


async def test_rollouts_leave_places_to_serving_and_none_of_its_loads_waits_for_theirs(book: Book, tmp_path: Path) -> None:
    book.settings.serving_adapters = 1
    adapters = Adapters(book, book, tmp_path / "adapters", keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    async with AsyncExitStack() as in_use, asyncio.TaskGroup() as runners:
        for number in range(4):  # of 8, of which 4 are serving's
            await in_use.enter_async_context(adapters.using(version(number, f"task{number}")))
        waiting = runners.create_task(in_use.enter_async_context(adapters.using(version(9, "late"))))
        await eventually(lambda: not adapters._room.is_set())
        for number in range(5):
            async with asyncio.timeout(60), adapters.using(version(number, "served"), serving=True):
                pass
        assert not waiting.done()
        assert len(book.held) == 8
        assert len(book.unloading) == 1, "the fifth takes the place of another served one"
        waiting.cancel()
