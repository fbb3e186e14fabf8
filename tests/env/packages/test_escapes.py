"""Escape attempts of packages: those of hosted environments, and what a package could want of other tenants and of the service."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common import spec
from common.bus import Bus
from common.fairness.fair_queue import Claimant
from env_svc.allowed import AllowedNames
from env_svc.calls import Continued, Failed, OpenCall, Opened, Outcome
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from env_svc.tools.toolbox import Toolbox
from tests.env.hosted.attempts import BOMBS, FILES, NETWORK, PROCESSES
from tests.env.hosted.playing import step
from tests.env.hosted.targets import BOMB_S, SECRET, Target, has_succeeded, processes_of_hosts
from tests.env.packages.making import GUEST, Stage, guest_wheel, staged, stored, wheel_of
from tests.support.waiting import eventually

OF_OTHERS = {
    "the folder of packages": "import os\nprint(os.listdir('FOLDER')); print('GOT')",
    "another tenant's package": "import glob\nfor one in glob.glob('FOLDER/*/*/*'):\n    print('GOT')",
    "its module": "import of_globex\nprint(of_globex.SECRET)",
    "its file in /tmp": (
        "import glob\nfor one in [*glob.glob('/tmp/**/mine', recursive=True), '/proc/1/root/tmp/mine']:\n    print(open(one).read())"
    ),
    "its process": (
        "import glob\nfor one in glob.glob('/proc/[0-9]*/cmdline'):\n    print('GOT' if b'of_globex' in open(one, 'rb').read() else '')"
    ),
    "its proxy": (
        "import glob, socket\nfor one in ['/proxy', *glob.glob('FOLDER/*/proxy-*')]:\n"
        "    socket.socket(socket.AF_UNIX).connect(one)\n    print('GOT')"
    ),
    "its key in the service's memory": "print(open('/proc/HOST/maps').read()); print('GOT')",
}
"""FOLDER: of the service's unpacked packages. A process of tenant globex runs, with its own SECRET."""
NOSY = f"from own_guest import Intruder\nSECRET = '{SECRET}'\n"
LIES = {
    "a reward that is none": "{'kind': 'Scored', 'value': {'reward': float('nan'), 'components': {}}}",
    "components that no database takes": "{'kind': 'Scored', 'value': {'reward': 1.0, 'components': {'a\\0b': 1.0}}}",
    "a score for an opening": "{'kind': 'Scored', 'value': {'reward': 1.0, 'components': {}}}",
    "a state of the service": "opened(state=msgpack.packb(msgpack.ExtType(77, msgpack.packb([0, 0, ['os:system'], {}, b'x']))))",
    "a state that is too large": "opened(state=b'x' * 300_000)",
    "tools that are none": "opened(tools=[{'function': 'x'}])",
    "tools whose parameters are none": "opened(tools=[{'function': {'name': 'x', 'parameters': {'properties': [1]}}}])",
    "tools without end": "opened(tools=[{'name': str(n)} for n in range(1000)])",
    "nested tools": "opened(tools=[{'name': 'x', 'deep': deep}])",
    "a tool of another module": "opened(tool_names=['os:system'])",
    "an unknown role": "opened(messages=[{'role': 'root', 'content': 'x'}])",
    "no messages": "opened(messages=[])",
    "no map": "[1, 2]",
    "no kind": "{'kind': ['Opened'], 'value': {}}",
}
LIAR = """
import msgpack, os
from env_svc.contract import Environment
from env_svc.hosted import wire
deep = []
for _ in range(400): deep = [deep]
def opened(**changed):
    value = {'messages': [{'role': 'user', 'content': '?'}], 'tools': [], 'state': b'\\x80', 'tool_names': []}
    return {'kind': 'Opened', 'value': value | changed}
class Liar(Environment):
    async def open(self, index, seed):
        frame = wire.pack({'id': index, 'outcome': LIE})
        for one in range(3, 16):
            try:
                if not os.isatty(one) and one != 0: os.write(one, frame)
            except OSError: pass
        import asyncio
        await asyncio.sleep(1000)
    async def step(self, state, reply): ...
"""
"""Answers its first call itself, in place of its host."""


@pytest.fixture
async def stage(bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(bus, workers, sandbox, python, tmp_path / "packages", addresses="globex=127.0.0.1:1") as stage:
        yield stage


def content_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Continued), outcome
    return outcome.messages[0].content


async def test_nothing_outside_and_nothing_of_others_is_reached(bus: Bus, stage: Stage, target: Target) -> None:
    theirs = await stored(bus, "globex", wheel_of({"own_guest.py": GUEST, "of_globex.py": NOSY}, {"nosy": "of_globex:Intruder"}))
    keep = f"open('/tmp/mine', 'w').write('{SECRET}'); print(open('/tmp/mine').read())"
    (kept,) = await stage.play(theirs, [step(keep)], name="own:nosy", tenant="globex")
    assert content_of(kept).strip() == SECRET
    mine = await stored(bus, "acme", guest_wheel())
    attempts = NETWORK | FILES | PROCESSES | OF_OTHERS
    answers: dict[str, str] = {}
    for name, attempt in attempts.items():
        aimed = target.aimed(attempt.replace("FOLDER", str(stage.folder)))
        (outcome,) = await stage.play(mine, [step(aimed)], name="own:intruder")
        answers[name] = content_of(outcome)
    assert {name: answer for name, answer in answers.items() if has_succeeded(answer)} == {}
    assert not target.reached.is_set()
    assert len(answers) == 52 and stage.hosts.processes == 2


@pytest.mark.parametrize("name", BOMBS)
async def test_bomb_ends_with_its_own_package(bus: Bus, stage: Stage, name: str) -> None:
    mine, theirs = await stored(bus, "acme", guest_wheel()), await stored(bus, "globex", guest_wheel())

    async def neighbour(code: str) -> str:
        (outcome,) = await stage.play(theirs, [step(code)], name="own:intruder", tenant="globex")
        return content_of(outcome)

    assert await neighbour("import sys\nsys.mark = 7\nprint('set')") == "set\n"
    bombing = asyncio.ensure_future(stage.play(mine, [step(BOMBS[name])], name="own:computing", timeout_s=BOMB_S))
    assert await neighbour("print(6 * 7)") == "42\n"
    (outcome,) = await bombing
    assert isinstance(outcome, Failed) or "GOT" not in content_of(outcome)
    assert await neighbour("import sys\nprint(sys.mark)") == "7\n", "the neighbour was restarted"

    async def answers() -> bool:
        (again,) = await stage.play(mine, [step("print(6 * 7)")], name="own:computing")
        return isinstance(again, Continued) and content_of(again) == "42\n"

    await eventually(answers)
    await stage.hosts.stop()
    await eventually(lambda: not processes_of_hosts() or os.geteuid() != 0)


@pytest.mark.parametrize("lie", LIES)
async def test_lie_costs_the_liar_its_call(bus: Bus, stage: Stage, lie: str) -> None:
    ref = await stored(bus, "acme", wheel_of({"own_liar.py": LIAR.replace("LIE", LIES[lie])}, {"liar": "own_liar:Liar"}))
    (outcome,) = await stage.play(ref, [OpenCall(1, 0)], name="own:liar", timeout_s=20.0)
    if lie == "a tool of another module":  # a true frame, whose tool no tenant may name: `ToolCallExecutor` refuses that
        assert isinstance(outcome, Opened)
        return
    assert isinstance(outcome, Failed) and "the host process sent an invalid frame" in outcome.reason, outcome


async def test_tool_that_an_opening_names_needs_an_entry_of_its_tenant(bus: Bus, stage: Stage) -> None:

    ref = await stored(
        bus, "acme", wheel_of({"own_liar.py": LIAR.replace("LIE", LIES["a tool of another module"])}, {"liar": "own_liar:Liar"})
    )
    section = spec.EnvironmentSection(name="own:liar")
    for entries, refused in (("installed,_operator=*", True), ("installed,globex=*", True), ("installed,acme=os:*", False)):
        executor = ToolCallExecutor(EnvironmentExecutor(stage.workers, 20.0, own=stage.hosts), Toolbox(), AllowedNames(entries))
        batches = executor.run(Claimant("acme", "t"), section, [OpenCall(1, 0)], 60.0, package=ref)
        ((_, outcome),) = [one async for batch in batches for one in batch]
        assert isinstance(outcome, Failed)
        assert ("tool 'os:system' is not allowed here" in outcome.reason) == refused, outcome
        stage.hosts.end_task("t")
        await eventually(lambda: stage.hosts.processes == 0)
