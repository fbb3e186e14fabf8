"""A whole replica that serves packages of tenants, and one that cannot."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import (
    BlobRef,
    CheckEnvironment,
    CheckPackage,
    EnvironmentChecked,
    GroupContext,
    OpenGroup,
    PackageChecked,
    SampledTurn,
    SampleTurns,
    TaskStatus,
    TrajectoriesScored,
    TurnsSampled,
)
from common.spec import EnvironmentSection, Limits
from env_svc.hosted.confinement import Confinement
from tests.env.packages.making import example_wheel, stored
from tests.support.buses import message_on
from tests.support.env.replicas import lives, processes_of, ready, replica
from tests.support.groups import group_context
from tests.support.keyed import Keyed
from tests.support.waiting import eventually


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MARLAAS_DATA_DIR", str(tmp_path / "data"))
    yield tmp_path / "data"


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    """Of `bus`, which is every other service."""
    return keyed.url


def own_replica(keyed: Keyed, log: Path, python: str, **settings: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    given = {"workers": "1", "families": "own", "own": "required", "own_python": python, "own_idle_s": "600", **settings}
    return replica(keyed, log, **given)


def group_of(ref: BlobRef | None, task: str = "t") -> GroupContext:
    environment = EnvironmentSection(name="own:letter_count", options={"length": 5})
    context = group_context(task, size=2, family="own", environment=environment, limits=Limits(max_turns=4), seed=1)
    return context.model_copy(update={"tenant": "acme", "package": ref})


def ended(task: str) -> TaskStatus:
    return TaskStatus(
        tenant="acme", task=task, name=task, pool="tiny", state="cancelled", version=0, steps=1, submitted_s=0.0, updated_s=0.0
    )


def unpacked(data: Path) -> list[str]:
    """Folders of packages that are there."""
    return [path.name for path in data.glob("packages/*/*") if path.is_dir()]


async def check_objection(bus: Bus, ref: BlobRef | None, name: str) -> str | None:
    section = EnvironmentSection(name="own:letter_count")
    check = CheckEnvironment(tenant="acme", task=name, family="own", environment=section, seed=1, package=ref, weight=1.0, by_operator=True)
    await bus.publish(Outgoing(streams.check("own", name), check, f"check:{name}"))
    return (await message_on(bus, streams.TURNS, streams.checked(name))).read(EnvironmentChecked).objection


async def test_package_is_checked_and_played_and_nothing_outlives_the_replica(
    bus: Bus, keyed: Keyed, tmp_path: Path, python: str, sandbox: Confinement, data: Path
) -> None:
    ref = await stored(bus, "acme", example_wheel())
    with own_replica(keyed, tmp_path / "log", python) as process:
        assert (await ready(bus)).families == ["own"]
        check = CheckPackage(tenant="acme", family="own", package=ref.sha256, wheel=ref)
        await bus.publish(Outgoing(streams.check_package("own", "acme", ref.sha256), check, "package"))
        answer = (await message_on(bus, streams.TURNS, streams.package_checked("acme", ref.sha256))).read(PackageChecked)
        assert (answer.objection, [one.name for one in answer.environments]) == (None, ["letter_count"])
        assert await check_objection(bus, ref, "check-1") is None
        assert "comes without its package" in (await check_objection(bus, None, "check-2") or "")

        group = group_of(ref)
        await bus.publish(Outgoing(streams.open_group("own", "t", 0), OpenGroup(group=group), "open"))
        requests = (await message_on(bus, streams.PROMPTS, streams.sample("tiny", "t", "0-0"))).read(SampleTurns).members
        turns = [
            SampledTurn(member=one.member, turn=0, transcript=one.transcript, reply="many", finish="stop", state=one.state)
            for one in requests
        ]
        await bus.publish(Outgoing(streams.turn("own", "t", "0-0"), TurnsSampled(group=group, members=turns), "turn"))

        async def goes_on() -> bool:
            asked = await bus.streams.last(streams.PROMPTS, streams.sample("tiny", "t", "0-0"))
            return asked is not None and asked.read(SampleTurns).members[0].turn == 1

        await eventually(goes_on)
        for task in ("t", "check-1", "check-2"):
            await bus.kv.put(streams.TASKS_BUCKET, task, ended(task))
        await eventually(lambda: unpacked(data) == [])
        assert await check_objection(bus, ref, "check-3") is None, "another task starts it once more"
        below = processes_of(process.pid)
        assert any("bwrap" in Path(f"/proc/{one}/cmdline").read_text() for one in below)
        process.kill()
        process.wait()
        await eventually(lambda: not any(map(lives, below)))
    assert unpacked(data) == [f"acme.{ref.sha256}"]
    with own_replica(keyed, tmp_path / "second", python) as process:
        await eventually(lambda: unpacked(data) == [])
        await ready(bus)
    assert await bus.streams.backlog(streams.FAILED) == 0


async def test_replica_that_does_not_serve_them_refuses(bus: Bus, keyed: Keyed, tmp_path: Path, data: Path) -> None:
    """A message that reaches it in another family's queue is forged."""
    ref = await stored(bus, "acme", example_wheel())
    with replica(keyed, tmp_path / "log", workers="1", families="module", allowed="*"):
        await ready(bus)
        group = group_of(ref).model_copy(update={"family": "module"})
        await bus.publish(Outgoing(streams.open_group("module", "t", 0), OpenGroup(group=group), "open"))
        (message,) = [await message_on(bus, streams.SCORED, streams.scored("t", "0-0"))]
        failures = {member.failure for member in message.read(TrajectoriesScored).members}
    assert len(failures) == 1 and "environment 'own:letter_count' is not allowed here" in str(failures)


def without_bwrap(folder: Path) -> str:
    """A PATH with all that a service runs, and no bwrap."""
    folder.mkdir()
    for name in ("sh", "env"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return str(folder)


async def test_machine_without_a_sandbox_serves_none(
    bus: Bus, keyed: Keyed, tmp_path: Path, python: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", without_bwrap(tmp_path / "bin"))
    with own_replica(keyed, tmp_path / "required", python) as process:
        assert process.wait(timeout=250) == 1
    assert "this machine has no sandbox for packages of tenants: there is no program bwrap" in (tmp_path / "required").read_text()
    with replica(keyed, tmp_path / "auto", workers="1", own="auto", own_python=python):
        assert "own" not in (await ready(bus)).families
    assert "own_not_served" in (tmp_path / "auto").read_text()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"own_python": "/nowhere/python"}, "MARLAAS_ENV_OWN_PYTHON: /nowhere/python cannot play environments"),
        ({"own_addresses": "acme=*:443"}, "MARLAAS_ENV_OWN_ADDRESSES: 'acme=*:443' is no tenant=host:port"),
    ],
)
async def test_wrong_setting_ends_the_replica_in_one_sentence(
    bus: Bus, keyed: Keyed, tmp_path: Path, python: str, sandbox: Confinement, data: Path, settings: dict[str, str], problem: str
) -> None:
    with own_replica(keyed, tmp_path / "log", python, **settings) as process:
        assert process.wait(timeout=250) == 1
    assert problem in (tmp_path / "log").read_text()
