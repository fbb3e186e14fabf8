"""The check of a new package: what is answered, and that the replica and its other work go on whatever the package does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Delivery
from common.errors import Reject, Retry, Unavailable
from common.messages import BlobRef, CheckPackage, PackageChecked
from env_svc.calls import Scored
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from env_svc.packages.check import PackageChecks
from tests.env.hosted.playing import step
from tests.env.packages.making import HASTY, Stage, example_wheel, guest_wheel, ref_of, staged, stored, wheel_of

ENVIRONMENT = """
from env_svc.contract import ChatMessage, Environment, Finish, Opening
class X(Environment):
    async def open(self, index, seed):
        return Opening([ChatMessage(role="user", content="?")], {})
    async def step(self, state, reply):
        return Finish(1.0)
"""


def delivery_of(ref: BlobRef, tenant: str = "acme", attempt: int = 1) -> Delivery:
    message = CheckPackage(tenant=tenant, family="own", package=ref.sha256, wheel=ref)
    return Delivery(streams.check_package("own", tenant, ref.sha256), {}, message.encode(), 7, attempt)


async def answer_of(stage: Stage, ref: BlobRef, *, attempt: int = 1) -> PackageChecked:
    checks = PackageChecks(stage.store, stage.hosts, ["pydantic"])
    [out] = [out async for out in checks.check(delivery_of(ref, attempt=attempt))]
    assert isinstance(out.message, PackageChecked)
    assert out.subject == streams.package_checked("acme", ref.sha256)
    assert stage.unpacked() == [] and stage.hosts.processes == 0, "nothing is left of a check"
    return out.message


async def test_package_that_can_be_played_is_described(bus: Bus, stage: Stage) -> None:
    answer = await answer_of(stage, await stored(bus, "acme", example_wheel()))
    assert (answer.objection, answer.name, answer.version) == (None, "letter-count", "1.0")
    assert [(one.name, one.components) for one in answer.environments] == [("letter_count", ["tries"])]


@pytest.mark.parametrize(
    ("source", "objection"),
    [
        ("import nothing_that_there_is", "no module 'nothing_that_there_is'"),
        ("raise RuntimeError('no luck')", "cannot be imported: RuntimeError: no luck"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("import os; os._exit(0)", "its process ended before it was ready (exit status 0)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process ended before it was ready"),
        ("kept = []\nwhile True: kept.append(bytearray(10**8))", "cannot be imported: MemoryError"),
        ("class X: ...", "expected a subclass of env_svc.contract.Environment"),
        ("from env_svc.contract import Environment\nclass X(Environment): ...", "does not define open, step"),
        ("class Y: ...", "has no 'X'"),
        (ENVIRONMENT + "    cpu_bound = 'yes'", "the host process sent an invalid frame: cpu_bound"),
        (ENVIRONMENT + "    components = [7]", "the host process sent an invalid frame: components.0"),
        (ENVIRONMENT + "    components = ['a\\0b']", "the host process sent an invalid frame: components.0"),
        (ENVIRONMENT + "    components = [str(n) for n in range(100)]", "its reward has 100 components, at most 64"),
        (ENVIRONMENT + "    components = ['x' * 10**7]", "the host process sent an invalid frame: a frame has"),
        (ENVIRONMENT + "    @classmethod\n    def arguments(cls): return ['a']", "takes arguments"),
        (
            ENVIRONMENT + "import os\nfor one in range(3, 64):\n    try: os.write(one, b'\\xff' * 4)\n    except OSError: pass",
            "the host process sent an invalid frame",
        ),
        (
            "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        os._exit(1)",
            "its process ended before it was ready",
        ),
    ],
)  # fmt: skip
async def test_package_that_cannot_be_played_is_refused_in_a_sentence(bus: Bus, stage: Stage, source: str, objection: str) -> None:
    wheel = wheel_of({"own_games.py": source}, {"x": "own_games:X"})
    answer = await answer_of(stage, await stored(bus, "acme", wheel))
    assert objection in (answer.objection or "")
    assert (answer.objection or "").startswith("environment 'x' (own_games:X): ")
    assert answer.environments == []


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        "import time; time.sleep(1e6)",
    ],
)
async def test_import_that_never_ends_is_tried_twice_while_others_play(
    bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path, source: str
) -> None:
    wheel = await stored(bus, "acme", wheel_of({"own_games.py": source}, {"x": "own_games:X"}))
    other = await stored(bus, "globex", guest_wheel())
    async with staged(bus, workers, sandbox, python, tmp_path / "packages") as stage:
        await stage.play(other, [step("word")], tenant="globex")  # its start may take longer than the others have
        stage.hosts._sandboxes = replace(stage.hosts._sandboxes, timings=replace(HASTY, start_timeout_s=6.0))
        checks = PackageChecks(stage.store, stage.hosts, [])
        checking = [asyncio.ensure_future(anext(checks.check(delivery_of(wheel, attempt=attempt)))) for attempt in (1, 2)]
        (outcome,) = await stage.play(other, [step("word")], tenant="globex")
        assert isinstance(outcome, Scored) and not any(one.done() for one in checking)
        with pytest.raises(Retry, match="was not ready in 6 s"):
            await checking[0]
        out = await checking[1]
        assert isinstance(out.message, PackageChecked)
        assert "environment 'x' (own_games:X): its process was not ready in 6 s" in (out.message.objection or "")


async def test_what_the_operator_has_not_installed_is_named(bus: Bus, stage: Stage) -> None:
    wheel = wheel_of({"own_games.py": ENVIRONMENT}, {"x": "own_games:X"}, requires=("torch>=2", "Pydantic", "marlaas"))
    answer = await answer_of(stage, await stored(bus, "acme", wheel))
    assert answer.objection == "it needs torch, which the operator has not installed; there is marlaas, pydantic"


@pytest.mark.parametrize(
    "content", [b"no wheel at all", b"PK\x05\x06" + b"\0" * 18, wheel_of({"zeros.py": "\0" * 3_000_000}, {"x": "zeros:X"})]
)
async def test_wheel_that_is_none_or_a_bomb_is_refused(bus: Bus, stage: Stage, content: bytes) -> None:
    assert (await answer_of(stage, await stored(bus, "acme", content))).objection


async def test_wheel_that_is_not_in_the_store_is_named(stage: Stage) -> None:
    answer = await answer_of(stage, ref_of("acme", b"nothing"))
    assert (answer.objection or "").endswith(".whl is not in the store")


async def test_wheel_of_another_tenant_is_rejected(bus: Bus, stage: Stage) -> None:
    theirs = await stored(bus, "globex", example_wheel())
    checks = PackageChecks(stage.store, stage.hosts, [])
    for ref in (theirs, theirs.model_copy(update={"name": f"package-acme-{'0' * 64}.whl"})):
        with pytest.raises(Reject, match="is not that package of tenant acme"):
            await anext(checks.check(delivery_of(ref)))


async def test_package_waits_for_a_store_that_is_down(
    nats_url: str, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path
) -> None:
    async with await Bus.connect(nats_url, "gone") as gone:
        pass
    async with staged(gone, workers, sandbox, python, tmp_path / "packages") as stage:
        checks = PackageChecks(stage.store, stage.hosts, [])
        with pytest.raises(Unavailable, match="could not fetch blob"):
            await anext(checks.check(delivery_of(ref_of("acme", b"x"))))
        with pytest.raises(Unavailable, match="could not fetch blob"):
            await stage.play(ref_of("acme", b"x"), [step("word")])
