"""Environments of packages at play: whose processes they are, how many there are, and when they end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common import spec
from common.bus import Bus
from common.fairness.fair_queue import Claimant
from common.messages import BlobRef
from env_svc.calls import Continued, Failed, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from env_svc.packages.hosts import OwnBounds
from tests.env.hosted.playing import step
from tests.env.packages.making import ENTRIES, GUEST, Stage, example_wheel, guest_wheel, ref_of, staged, stored, wheel_of
from tests.support.waiting import eventually

NAMES = tuple(f"e{number}" for number in range(4))
CROWD = wheel_of({"own_guest.py": GUEST}, dict.fromkeys(NAMES, ENTRIES["guest"]))
"""Four environments."""


@pytest.fixture
async def narrow(bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two places, one for each tenant at most."""
    bounds = OwnBounds(places=2, tenant_places=1, slice_s=0.5)
    async with staged(bus, workers, sandbox, python, tmp_path / "packages", bounds) as stage:
        yield stage


async def guest(bus: Bus, tenant: str = "acme") -> BlobRef:
    return await stored(bus, tenant, guest_wheel())


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason


async def test_example_is_opened_and_scored(bus: Bus, stage: Stage) -> None:
    ref = await stored(bus, "acme", example_wheel())
    name = f"own:letter_count@{ref.sha256[:12]}"
    (opened,) = await stage.play(ref, [OpenCall(3, 1)], name=name, length=5)
    assert isinstance(opened, Opened) and "How often is the letter" in opened.messages[0].content
    right, wrong = StepCall(3, b"\x82\xa5count\x02\xa5tries\x00", Reply("2")), StepCall(3, b"\x82\xa5count\x02\xa5tries\x01", Reply("x"))
    good, bad = await stage.play(ref, [right, wrong], name=name, length=5, weights={"tries": 0.5, "reward": 1.0})
    assert isinstance(good, Scored) and good.reward == 1.5 and good.worked_s > 0
    assert isinstance(bad, Scored) and bad.reward == 1.0
    (option,) = await stage.play(ref, [OpenCall(3, 1)], name=name, length=0)
    assert "length is 0, expected 1 to 64" in reason(option)
    (weight,) = await stage.play(ref, [OpenCall(3, 1)], name=name, weights={"trys": 1.0})
    assert "no reward component 'trys'; did you mean 'tries'" in reason(weight)


@pytest.mark.parametrize(
    ("name", "tenant", "changed", "problem"),
    [
        ("own:guest", "acme", None, "comes without its package"),
        ("own:guest", "globex", {}, "is no such package of tenant globex"),
        ("own:guest@" + "0" * 12, "acme", {}, "is no such package of tenant acme"),
        ("own:guest", "acme", {"name": f"package-globex-{'0' * 64}.whl"}, "is no such package of tenant acme"),
        ("own:guest", "acme", {"sha256": "0" * 64}, "is no such package of tenant acme"),
        ("own:gast", "acme", {}, "has no environment 'gast'; it has computing, guest, intruder"),
    ],
)
async def test_package_that_is_not_the_tenants_is_refused(
    bus: Bus, stage: Stage, name: str, tenant: str, changed: dict[str, str] | None, problem: str
) -> None:
    ref = await guest(bus)
    given = None if changed is None else ref.model_copy(update=changed)
    (outcome,) = await stage.play(given, [step("word")], name=name, tenant=tenant)
    assert problem in reason(outcome)
    assert stage.hosts.processes == 0


async def test_tenants_with_the_same_package_share_no_process(bus: Bus, stage: Stage) -> None:
    mark = [step("import sys\nsys.mark = getattr(sys, 'mark', 0) + 1\nprint(sys.mark)")]
    said: list[str] = []
    for tenant in ("acme", "globex", "acme"):
        (outcome,) = await stage.play(await guest(bus, tenant), mark, name="own:intruder", tenant=tenant)
        assert isinstance(outcome, Continued)
        said.append(outcome.messages[0].content.strip())
    assert said == ["1", "1", "2"]
    assert stage.hosts.processes == 2 and len(stage.unpacked()) == 2


async def test_package_that_is_gone_from_the_store_is_named(stage: Stage) -> None:
    (outcome,) = await stage.play(ref_of("acme", b"nothing"), [step("word")])
    assert "is not in the store" in reason(outcome)


async def test_process_that_dies_costs_its_calls_and_the_next_has_another(bus: Bus, stage: Stage) -> None:
    ref = await guest(bus)
    (died,) = await stage.play(ref, [step("die")])
    assert "its process ended (exit status 7)" in reason(died)
    (outcome,) = await stage.play(ref, [step("word")])
    assert isinstance(outcome, Scored)


async def test_there_are_no_more_processes_than_places_and_the_least_used_ends(bus: Bus, narrow: Stage) -> None:
    ref = await stored(bus, "acme", CROWD)
    for name in NAMES:
        assert isinstance((await narrow.play(ref, [step("word")], name=f"own:{name}"))[0], Scored)
        assert narrow.hosts.processes <= 2
    running = [key.environment for key, host in narrow.hosts._by_key.items() if host.process is not None]
    assert running == ["e2", "e3"]
    assert len(narrow.unpacked()) == 1


async def test_tenant_with_many_environments_leaves_a_place_to_others(bus: Bus, narrow: Stage) -> None:
    ref = await stored(bus, "acme", CROWD)
    ended = asyncio.Event()

    async def busy(name: str) -> None:
        while not ended.is_set():
            await narrow.play(ref, [step("sleep 0.05") for _ in range(8)], name=f"own:{name}", task=name)

    crowd = [asyncio.ensure_future(busy(name)) for name in NAMES]
    await eventually(lambda: narrow.hosts.waiting >= 3)
    outcomes = [outcome for _ in range(5) for outcome in await narrow.play(await guest(bus, "globex"), [step("word")], tenant="globex")]
    assert all(isinstance(outcome, Scored) for outcome in outcomes)
    ended.set()
    await asyncio.gather(*crowd)


@pytest.mark.parametrize("slice_s", [0.5, pytest.param(0.01, id="shorter-than-a-start")])
async def test_tenants_without_a_place_take_turns_with_one_that_never_pauses(
    bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path, slice_s: float
) -> None:
    bounds = OwnBounds(places=1, tenant_places=1, slice_s=slice_s)
    ended = asyncio.Event()
    async with staged(bus, workers, sandbox, python, tmp_path / "packages", bounds) as stage:
        ref = await guest(bus)

        async def busy(seconds: float) -> None:
            while not ended.is_set():
                await stage.play(ref, [step(f"sleep {seconds}")])

        crowd = [asyncio.ensure_future(busy(seconds)) for seconds in (0.05, 0.07, 0.11, 0.13)]  # one of them is always at work
        await eventually(lambda: stage.hosts.processes)
        (outcome,) = await stage.play(await guest(bus, "globex"), [step("word")], tenant="globex")
        assert isinstance(outcome, Scored) and not ended.is_set()
        (mine,) = await stage.play(ref, [step("word")])
        assert isinstance(mine, Scored)
        ended.set()
        await asyncio.gather(*crowd)


async def test_call_without_a_place_ends_at_its_deadline(bus: Bus, narrow: Stage) -> None:
    crowd = await stored(bus, "acme", CROWD)
    hog = asyncio.ensure_future(narrow.play(crowd, [step("sleep 30")], name="own:e0"))
    await eventually(lambda: narrow.hosts.processes)
    executor = EnvironmentExecutor(narrow.workers, 60.0, own=narrow.hosts)
    batches = executor.run(Claimant("acme", "t"), spec.EnvironmentSection(name="own:e1"), [step("word")], 1.0, package=crowd)
    ((_, outcome),) = [one async for batch in batches for one in batch]
    assert "had no process before the deadline" in reason(outcome)
    hog.cancel()
    await asyncio.gather(hog, return_exceptions=True)


async def test_last_task_that_ends_takes_the_process_and_the_folder_along(bus: Bus, stage: Stage) -> None:
    ref = await guest(bus)
    for task in ("one", "two"):
        await stage.play(ref, [step("word")], task=task)
    stage.hosts.end_task("one")
    await stage.play(ref, [step("word")], task="two")
    assert stage.hosts.processes == 1 and stage.unpacked() == [f"acme.{ref.sha256}"]
    stage.hosts.end_task("two")
    await eventually(lambda: stage.unpacked() == [])
    assert stage.hosts.processes == 0
    assert isinstance((await stage.play(ref, [step("word")], task="three"))[0], Scored)


async def test_idle_process_ends_with_its_folder(bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path) -> None:
    async with staged(bus, workers, sandbox, python, tmp_path / "packages", OwnBounds(idle_s=0.01)) as stage:
        ref = await guest(bus)
        calling = asyncio.ensure_future(stage.play(ref, [step("sleep 1")]))
        await eventually(lambda: stage.hosts.processes)
        await stage.hosts.stop_idle()
        assert stage.hosts.processes == 1, "one that works is not idle"
        await calling

        async def idle() -> bool:
            await stage.hosts.stop_idle()
            return stage.unpacked() == [] and not stage.hosts._by_key

        await eventually(idle)


async def test_folders_of_a_replica_that_was_killed_are_removed_by_the_next(
    bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path
) -> None:
    left = tmp_path / "packages" / "4711-0" / "acme.0"
    left.mkdir(parents=True)
    async with staged(bus, workers, sandbox, python, tmp_path / "packages") as first:
        assert not left.parent.exists()
        await first.play(await guest(bus), [step("word")])
        async with staged(bus, workers, sandbox, python, tmp_path / "packages"):
            assert len(first.unpacked()) == 1, "one that runs keeps its own"
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["lock"]


CHANGES = """
import os, own_guest
for place, mode in ((own_guest.__file__, "a"), (own_guest.__file__, "w"), ("/package/new", "w")):
    try:
        open(place, mode)
        print("GOT")
    except OSError as error:
        print("refused")
"""


async def test_unpacked_files_cannot_be_changed(bus: Bus, stage: Stage) -> None:
    (outcome,) = await stage.play(await guest(bus), [step(CHANGES)], name="own:intruder")
    assert isinstance(outcome, Continued) and outcome.messages[0].content.split() == ["refused"] * 3
    (folder,) = stage.folder.glob("*/acme.*")
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.py")} == {0o444}
    assert [one.stat().st_mode & 0o777 for one in (folder.parent, folder)] == [0o700, 0o755]
