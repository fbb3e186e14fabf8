"""What the pools file says of an executor, read once at its start."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.accelerators.memory import driver_memory
from common.bus import Bus, Delivery, Outgoing, Slots
from common.errors import Fatal
from common.leases import Identity, Reading, budget_bytes, leased_executor, placed
from common.leases.locks import holders
from common.streams import trainer_batches
from tests.support.leases.executables import Paper
from tests.support.nvidia import stand_in
from tests.support.waiting import at_work, eventually

POOLS = """
[accelerator.a]
device = "cpu"
cores = "0"
memory_gib = 0.5

[one]
model = "model"
train_on = ["a"]
"""


@pytest.fixture
def pools_file(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "pools.toml").write_text(POOLS)
    return tmp_path / "pools.toml"


async def test_executor_is_made_of_what_was_read_at_its_start(bus: Bus, pools_file: Path) -> None:
    """A file that changes meanwhile would describe it in two ways."""
    place = placed(Identity("a", "trainer", "one", "r1"), pools_file)
    pools_file.unlink()
    folder = pools_file.parent / "accelerators"
    locks = place.locks(folder)
    executor = leased_executor(
        bus, place, Paper(), locks, Reading([trainer_batches("one")]), data_dir=pools_file.parent, show=lambda _: None
    )
    assert executor.busy["awake"] == 0
    assert budget_bytes(place.accelerator) == 2**29
    assert locks.take_compute() and holders(folder / "a").computing


@pytest.mark.parametrize(("visible", "free"), [(None, 1), ("3", 3), ("3,1", 3), ("GPU-4", 4)])
def test_memory_is_that_of_the_gpu_on_which_the_process_computes(
    visible: str | None, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cuda:1` counts those that the operator allowed; a stack gives each process its own."""
    stand_in(tmp_path, monkeypatch, gpus="")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert driver_memory("cuda:1").free_bytes == free * 2**20


def test_driver_that_does_not_answer_is_fatal_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, gpus="", status=9)
    with pytest.raises(Fatal, match="how much memory cuda:1 has: nvidia-smi fails: 2, 1"):
        driver_memory("cuda:1")


async def test_executor_reports_a_queue_of_its_own_once_it_reads_that(bus: Bus, pools_file: Path) -> None:
    me = Identity("a", "trainer", "one", "r1")
    reads, consuming = placed(me, pools_file).reading(bus, Slots(1), untaken, move_s=lambda: 1.0)
    consuming.close()
    assert reads == Reading([trainer_batches("one")]), "its pool is on no other accelerator"
    other = '[accelerator.b]\ndevice = "cpu"\ncores = "1"\nmemory_gib = 1\n'
    pools_file.write_text(POOLS.replace('train_on = ["a"]', 'train_on = ["a", "b"]') + other)
    place = placed(me, pools_file)
    reads, consuming = place.reading(bus, Slots(1), untaken, move_s=lambda: 1.0)
    locks = place.locks(pools_file.parent / "accelerators")
    executor = leased_executor(bus, place, Paper(), locks, reads, data_dir=pools_file.parent, show=lambda _: None)
    assert "queue@a" not in executor.busy, "NATS may not permit it"
    async with at_work(consuming):
        await eventually(lambda: executor.busy.get("queue@a") == 1.0)


async def untaken(_: Delivery) -> AsyncIterator[Outgoing]:
    raise AssertionError("nothing was sent")
    yield


@pytest.mark.parametrize(("accelerator", "expected"), [("a", ({0, 2, 3}, {0})), ("gpu", ())])
def test_executor_of_a_cpu_is_to_leave_the_cores_of_all_or_else_its_own(
    accelerator: str, expected: tuple[set[int], ...], pools_file: Path
) -> None:
    others = '[accelerator.b]\ndevice = "cpu"\ncores = "2-3"\nmemory_gib = 1\n[accelerator.gpu]\ndevice = "cuda:0"\ncores = "0"\n'
    pools_file.write_text(POOLS.replace('train_on = ["a"]', 'train_on = ["a", "gpu"]') + others)
    place = placed(Identity(accelerator, "trainer", "one", "r1"), pools_file)
    assert place.cores_to_leave((0,)) == expected
    assert place.cores_to_leave(()) == (), "it computes wherever it fits, on these cores, too"


def test_executor_that_the_file_does_not_put_there_is_refused(pools_file: Path) -> None:
    expected = "MARLAAS_ROLLOUT_ACCELERATOR is 'a', but .* puts the rollout of pool 'one' on no shared accelerator"
    with pytest.raises(Fatal, match=expected):
        placed(Identity("a", "rollout", "one", "r1"), pools_file)
